//! Conversions between floating-point formats, and loss scaling, against a reference of their own.

#[path = "../common/mod.rs"]
mod common;
mod conversions;
mod every_input;
mod from_f64;
mod loss_scale;
mod pairs;
mod reference;
mod stochastic;
mod strided;
