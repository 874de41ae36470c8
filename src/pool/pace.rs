//! How far the pool grows before it maps handles elsewhere, and in how large handles.
//!
//! A handle mapped elsewhere costs the thread that asked for memory some 90 us on an H200, a new one half of
//! that. A program whose blocks change all the time spends a tenth of its time on them, where a few per cent more
//! memory would do. So any pool may grow by a small part of its peak, or of the device's memory or its limit, and
//! there in larger handles.

use super::tuning::{DEVICE_PART, LEAST_SLACK, POOL_HANDLES, SPARE_HANDLES, SPARE_PART};
use crate::device::{DeviceInfo, DeviceKind};

pub(super) struct Pace {
    /// The growth allowed before: this part of the peak, or what a device of so many bytes has to spare.
    part: f64,
    device: u64,
}

impl Pace {
    /// Fixed where it is configured, and where mappings are not those of a GPU's driver.
    pub(super) fn new(configured: Option<f64>, device: &DeviceInfo) -> Self {
        let is_fixed = configured.is_some() || device.kind != DeviceKind::Cuda;
        Self {
            part: configured.unwrap_or(LEAST_SLACK),
            device: if is_fixed { 0 } else { device.total_bytes },
        }
    }

    /// Bytes beyond a peak that a pool of up to `most` bytes grows by before it maps handles elsewhere.
    pub(super) fn slack(&self, peak: u64, most: u64) -> u64 {
        let spare = self.spare(most);
        let spare = spare.min((peak / SPARE_PART).max(spare / 2));
        spare.max((peak as f64 * self.part) as u64)
    }

    /// What the device, or a limit of `most` bytes, has to spare.
    fn spare(&self, most: u64) -> u64 {
        self.device.min(most) / DEVICE_PART
    }

    /// The least size of a new handle, of a pool that holds `held` bytes and may hold `most`. All but a byte of a
    /// handle may stay idle, so near a limit it is only a small part of what there is to spare.
    pub(super) fn handle(&self, held: u64, most: u64) -> u64 {
        let least = self.spare(most) / SPARE_HANDLES;
        match most < self.device {
            true => least,
            false if self.device == 0 => 0,
            false => least.max(held / POOL_HANDLES),
        }
    }

    /// The device refused memory: it has nothing to spare.
    pub(super) fn exhausted(&mut self) {
        self.device = 0;
    }
}

#[cfg(test)]
mod tests;
