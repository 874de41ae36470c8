//! Devices: one contract for all of them, the simulated device and the checker of stream order, and what
//! other libraries own.

#[cfg(feature = "sanitize")]
mod checker;
#[cfg(feature = "sanitize")]
mod checker_oracle;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod driver_pool;
#[cfg(feature = "convert")]
mod launches;
mod pattern;
#[cfg(all(feature = "convert", feature = "rustacuda"))]
mod rustacuda;
mod several;
mod simulator;
