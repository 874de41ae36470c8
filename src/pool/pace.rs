//! How far the pool grows before it maps handles elsewhere, by what that has cost.
//!
//! A handle mapped elsewhere costs the thread that asked for memory some 90 us on an H200, a new one a
//! fifth of that. A program whose blocks change all the time spends a tenth of its time on them, where a few
//! per cent more memory would do. So the pool keeps an account: time spent on mapping elsewhere is paid in, a
//! hundredth of all time is paid out, and once the account is full the pool may grow by more. Besides, any pool
//! may grow by a small part of the device's memory, or of its limit, in larger handles.

use std::time::{Duration, Instant};

use super::tuning::{
    DEVICE_PART, LEAST_SLACK, PACE_FULL, PACE_PART, POOL_HANDLES, ROOMY_SLACK, SPARE_HANDLES,
};
use crate::device::{DeviceInfo, DeviceKind};
use crate::seeded::seeded;

pub(super) struct Pace {
    /// The growth allowed before handles are mapped elsewhere: this part of the peak, or what a device of so many
    /// bytes has to spare.
    part: f64,
    device: u64,
    /// Time spent that no other time has made up for, as long as that may change the slack.
    account: Option<Duration>,
    last: Instant,
}

impl Pace {
    /// Fixed where it is configured, and where mappings are not those of a GPU's driver.
    pub(super) fn new(configured: Option<f64>, device: &DeviceInfo) -> Self {
        let is_fixed = configured.is_some() || device.kind != DeviceKind::Cuda;
        Self {
            part: configured.unwrap_or(LEAST_SLACK),
            device: if is_fixed { 0 } else { device.total_bytes },
            account: (!is_fixed).then_some(Duration::ZERO),
            last: Instant::now(),
        }
    }

    /// Bytes beyond a peak that a pool of up to `most` bytes grows by before it maps handles elsewhere.
    pub(super) fn slack(&self, peak: u64, most: u64) -> u64 {
        self.spare(most).max((peak as f64 * self.part) as u64)
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

    /// A request spent this long, until `now`, on mapping handles elsewhere.
    pub(super) fn remapped(&mut self, spent: Duration, now: Instant) {
        let Some(account) = &mut self.account else {
            return;
        };
        let paid_out = now.saturating_duration_since(self.last) / PACE_PART;
        self.last = now;
        *account = (*account + spent).saturating_sub(paid_out);
        if *account > PACE_FULL && !seeded!("slack-stays-whatever-remaps-cost") {
            self.part = ROOMY_SLACK;
            self.account = None;
        }
    }
}

#[cfg(test)]
mod tests;
