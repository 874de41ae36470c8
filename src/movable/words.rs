//! The memory of the address table.
//!
//! Its address never changes: address space for 2^28 entries is reserved at once, and memory is
//! mapped as handles are added.

use crate::device::{Addr, Device, Overhead, Scratch, Stream};
use crate::error::{Error, Result};

/// Entries that address space is reserved for.
const ENTRIES: u64 = 1 << 28;

/// Bytes of an entry.
pub(super) const ENTRY_BYTES: u64 = 8;

/// The memory of the table.
pub(super) struct Words {
    mapped: Vec<Scratch>,
    /// The address range after the mapped memory.
    range: Scratch,
    device: Device,
    overhead: Overhead,
}

impl Words {
    pub(super) fn new(device: &Device, overhead: &Overhead) -> Result<Self> {
        let span = (ENTRIES * ENTRY_BYTES).next_multiple_of(device.info().granule);
        Ok(Self {
            mapped: Vec::new(),
            range: Scratch::reserved(device, span, overhead)?,
            device: device.clone(),
            overhead: overhead.clone(),
        })
    }

    pub(super) fn base(&self) -> Addr {
        self.range.addr()
    }

    /// Device address of the entry of `index`.
    pub(super) fn word(&self, index: u32) -> Addr {
        self.base() + u64::from(index) * ENTRY_BYTES
    }

    /// Maps memory for `entries` entries, zero after the work queued on `stream` so far.
    pub(super) fn ensure(&mut self, entries: u64, stream: &Stream) -> Result<()> {
        let granule = self.device.info().granule;
        if entries > ENTRIES {
            let why = format!("{entries} are more than the address table's {ENTRIES}: drop some");
            return Err(Error::invalid("handles", why));
        }
        while (self.mapped.len() as u64 * granule) < entries * ENTRY_BYTES {
            let at = self.base() + self.mapped.len() as u64 * granule;
            let memory = Scratch::at(&self.device, at, 0, Some(self.overhead.clone()));
            let memory = memory.map(granule)?;
            // SAFETY: the range was just mapped, and stays mapped until the table is dropped, which
            // is after the stream's work.
            unsafe {
                // On a stream of the crate's own, which no capture has.
                self.device.backend().fill(at, 0, granule, stream.raw())?;
            }
            self.mapped.push(memory);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_entries_than_there_are_addresses_for_are_refused_and_nothing_is_mapped() {
        let device = Device::host().unwrap();
        let stream = device.stream().unwrap();
        let mut words = Words::new(&device, &Overhead::default()).unwrap();
        words.ensure(1, &stream).unwrap();
        for entries in [ENTRIES + 1, u64::MAX] {
            let refused = words.ensure(entries, &stream).unwrap_err().to_string();
            assert!(refused.contains("drop some"), "{refused}");
        }
        assert_eq!(words.mapped.len(), 1);
        stream.synchronize().unwrap();
    }
}
