//! The interface of a device, for code that implements or wraps one.
//!
//! [`Device::from_backend`](crate::Device::from_backend) takes a [`Backend`], and
//! [`Device::raw_backend`](crate::Device::raw_backend) returns that of a device. An application needs
//! neither.

#[doc(hidden)]
pub use crate::device::access::{Access, AccessKind, Note};
pub use crate::device::backend::{Backend, HandleCounts};
pub use crate::device::launch::Launch;
pub use crate::device::raw::{Phys, RawEvent, RawGraph, RawStream};
