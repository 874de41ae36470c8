//! Errors: every call of a device that fails, and malformed input of every kind.

#[path = "../common/mod.rs"]
mod common;
mod every_call;
mod growing_calls;
mod malformed;
mod paths;
mod pool_calls;
mod sleeping_calls;
