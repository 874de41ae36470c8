//! How far the pool grows before it maps handles elsewhere, and how large its handles are.
//!
//! On an H200, mapping a handle elsewhere takes the allocating thread 50 to 90 us, a new handle some 40. A
//! program whose blocks change all the time spends a tenth of its time on that, unless it gets a few per cent more
//! memory. So a pool may grow by a small part of its peak or of the device's memory, up to its limit, in larger handles.
//! What the device had free when the pool grew last limits it too: others may have the rest.

use super::tuning::{
    CACHE_PART, DEVICE_PART, LEAST_SLACK, LIMIT_PART, POOL_HANDLES, SLACK_CACHE_PART,
    SPARE_HANDLES, SPARE_PART,
};
use crate::device::{DeviceInfo, DeviceKind};

pub(super) struct Pace {
    /// The growth allowed, as a part of the peak.
    part: f64,
    /// Bytes of a GPU, or 0.
    device: u64,
    /// Most bytes that the pool may hold, as far as the GPU's free memory is known.
    pub(super) most: u64,
}

impl Pace {
    /// The slack is a fixed part of the peak if it is configured, and on devices that are no GPU.
    pub(super) fn new(configured: Option<f64>, device: &DeviceInfo) -> Self {
        let is_fixed = configured.is_some() || device.kind != DeviceKind::Cuda;
        Self {
            part: configured.unwrap_or(LEAST_SLACK),
            device: if is_fixed { 0 } else { device.total_bytes },
            most: u64::MAX,
        }
    }

    /// Whether it matters how much memory the device has free.
    pub(super) fn asks(&self) -> bool {
        self.device > 0
    }

    /// Bytes beyond a peak up to which a pool limited to `most` grows before it maps handles elsewhere. What the limit
    /// leaves just above the peak stays for requests that remaps cannot serve, and half of what it leaves beyond.
    pub(super) fn slack(&self, peak: u64, most: u64) -> u64 {
        self.spare(peak, most).max((peak as f64 * self.part) as u64)
    }

    /// The same of a GPU's memory, whatever the peak.
    fn spare(&self, peak: u64, most: u64) -> u64 {
        let spare = self.device / DEVICE_PART;
        let spare = spare.min((peak / SPARE_PART).max(spare / 2));
        let left = most.saturating_sub(peak + peak / LIMIT_PART) / 2;
        spare.min(left)
    }

    /// Bytes that all caches together may keep.
    pub(super) fn cached(&self, peak: u64, most: u64) -> u64 {
        (self.spare(peak, most) / CACHE_PART).max(self.slack(peak, most) / SLACK_CACHE_PART)
    }

    /// The least size of a new handle, for a pool that holds `held` bytes and may hold `most`. All but a byte of a
    /// handle may stay idle, so without two thirds of a GPU to spare it is only a small part of what the pool may hold.
    pub(super) fn handle(&self, held: u64, most: u64) -> u64 {
        let least = self.device.min(most) / DEVICE_PART / SPARE_HANDLES;
        let spares = self.asks() && most.saturating_sub(held) > self.device / 3 * 2;
        least.max(held / POOL_HANDLES * u64::from(spares))
    }
}

#[cfg(test)]
mod tests;
