//! One suite for every device: what the host device promises a GPU keeps, and the other way round.
//!
//! Each sentence below is run on each device; afterwards the device must have back everything it
//! handed out.

mod capture;
#[cfg(feature = "convert")]
mod kernels;
mod lifetimes;
mod memory;
mod opening;
mod order;
