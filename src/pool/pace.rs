//! How far the pool grows before it maps handles elsewhere, by how much it mapped there so far.
//!
//! A handle mapped elsewhere costs the thread that asked for memory some 90 us on an H200, a new one half of
//! that. A program whose blocks change all the time spends a tenth of its time on them, where a few per cent more
//! memory would do. So what was mapped elsewhere earns growth, a part of its bytes, until remaps are rare or
//! there is a tenth more than the peak. Besides, any pool may grow by a small part of the device's memory, or of
//! its limit, in larger handles.

use super::tuning::{
    DEVICE_PART, EARNED_PART, LEAST_SLACK, POOL_HANDLES, ROOMY_SLACK, SPARE_HANDLES,
};
use crate::device::{DeviceInfo, DeviceKind};
use crate::seeded::seeded;

pub(super) struct Pace {
    /// The growth allowed before handles are mapped elsewhere: this part of the peak, or what a device of so many
    /// bytes has to spare.
    part: f64,
    device: u64,
    /// Bytes mapped elsewhere; `None` where the slack stays as it is.
    remapped: Option<u64>,
}

impl Pace {
    /// Fixed where it is configured, and where mappings are not those of a GPU's driver.
    pub(super) fn new(configured: Option<f64>, device: &DeviceInfo) -> Self {
        let is_fixed = configured.is_some() || device.kind != DeviceKind::Cuda;
        Self {
            part: configured.unwrap_or(LEAST_SLACK),
            device: if is_fixed { 0 } else { device.total_bytes },
            remapped: (!is_fixed).then_some(0),
        }
    }

    /// Bytes beyond a peak that a pool of up to `most` bytes grows by before it maps handles elsewhere.
    pub(super) fn slack(&self, peak: u64, most: u64) -> u64 {
        let part = |of: f64| self.spare(most).max((peak as f64 * of) as u64);
        let least = part(self.part);
        match self.remapped {
            Some(bytes) => (least + bytes / EARNED_PART).min(part(ROOMY_SLACK)),
            None => least,
        }
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

    pub(super) fn remapped(&mut self, bytes: u64) {
        if let Some(sum) = &mut self.remapped
            && !seeded!("slack-stays-whatever-remaps-cost")
        {
            *sum = sum.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
mod tests;
