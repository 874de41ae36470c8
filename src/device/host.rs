//! The host device: real memory, real mappings, a thread a stream.

use std::sync::Arc;

use super::Backend;
use crate::error::{Error, Result};

/// How the host device is made.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct HostConfig {
    /// Physical bytes the device has; half of the machine's memory when `None`.
    pub capacity: Option<u64>,
}

pub(super) fn open(_config: HostConfig) -> Result<Arc<dyn Backend>> {
    Err(Error::invalid("device", "not built yet"))
}
