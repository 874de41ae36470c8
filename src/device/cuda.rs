//! The CUDA device.

use std::sync::Arc;

use super::Backend;
use crate::error::{Error, Result};

pub(super) fn open(_ordinal: u32) -> Result<Arc<dyn Backend>> {
    Err(Error::invalid("device", "not built yet"))
}

pub(super) fn count() -> Result<u32> {
    Err(Error::invalid("device", "not built yet"))
}
