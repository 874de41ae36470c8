//! The live blocks while a trace is read: turns pointers into block numbers, and detects impossible
//! events.

use std::collections::HashMap;

use super::{Event, EventKind, Trace};
use crate::device::host_available_bytes;

/// Number of events from which the free memory is checked before space for as many more is allocated. A
/// compressed file may expand a thousandfold.
const MANY: usize = 1 << 22;

/// The live blocks and the trace so far.
pub(super) struct Ledger {
    trace: Trace,
    max_bytes: u64,
    /// Block number and bytes by pointer.
    live: HashMap<u64, (u32, u64)>,
    live_bytes: u64,
    streams: HashMap<u64, u16>,
    /// Returns the machine's free memory, if known.
    free: fn() -> Option<u64>,
}

impl Ledger {
    /// An empty trace whose blocks may have at most `max_bytes` each.
    pub(super) fn new(name: &str, max_bytes: u64) -> Self {
        let trace = Trace {
            name: name.to_owned(),
            events: Vec::new(),
            streams: Vec::new(),
            blocks: 0,
            peak_live_bytes: 0,
        };
        Self {
            trace,
            max_bytes,
            live: HashMap::new(),
            live_bytes: 0,
            streams: HashMap::new(),
            free: host_available_bytes,
        }
    }

    fn push(&mut self, event: Event) -> Result<(), String> {
        let events = &mut self.trace.events;
        if events.len() >= MANY && events.len() == events.capacity() {
            // The events move to a list of twice the size, and each may be a live block.
            let each = 2 * size_of::<Event>() + size_of::<(u64, (u32, u64))>();
            let needed = (events.len() * each) as u64;
            if (self.free)().is_some_and(|free| needed > free) {
                let count = events.len();
                return Err(format!(
                    "more than {count} events take more memory than there is"
                ));
            }
        }
        events.push(event);
        Ok(())
    }

    pub(super) fn alloc(&mut self, pointer: u64, bytes: u64, stream: u64) -> Result<(), String> {
        if bytes == 0 {
            return Ok(());
        }
        if bytes > self.max_bytes {
            let max = self.max_bytes;
            return Err(format!(
                "{bytes} bytes are more than the whole device, which has {max}"
            ));
        }
        if let Some((_, held)) = self.live.get(&pointer) {
            return Err(format!(
                "{pointer:#x} is allocated again while it is live with {held} bytes: a free is missing"
            ));
        }
        let live_bytes = self
            .live_bytes
            .checked_add(bytes)
            .ok_or_else(|| "the live bytes no longer fit in 64 bits".to_owned())?;
        let block = self.trace.blocks;
        let blocks = block
            .checked_add(1)
            .ok_or_else(|| "more than 2^32 - 1 allocations".to_owned())?;
        let stream = self.stream(stream)?;
        self.push(Event {
            bytes,
            block,
            stream,
            kind: EventKind::Alloc,
        })?;
        self.live.insert(pointer, (block, bytes));
        self.live_bytes = live_bytes;
        self.trace.blocks = blocks;
        self.trace.peak_live_bytes = self.trace.peak_live_bytes.max(live_bytes);
        Ok(())
    }

    pub(super) fn free(&mut self, pointer: u64, bytes: u64, stream: u64) -> Result<(), String> {
        let Some(&(block, held)) = self.live.get(&pointer) else {
            if bytes == 0 {
                return Ok(());
            }
            return Err(format!("{pointer:#x} is freed but is not live"));
        };
        if held != bytes {
            return Err(format!(
                "{pointer:#x} is freed with {bytes} bytes but was allocated with {held}"
            ));
        }
        let stream = self.stream(stream)?;
        self.push(Event {
            bytes,
            block,
            stream,
            kind: EventKind::Free,
        })?;
        self.live.remove(&pointer);
        self.live_bytes -= bytes;
        Ok(())
    }

    fn stream(&mut self, name: u64) -> Result<u16, String> {
        if let Some(&index) = self.streams.get(&name) {
            return Ok(index);
        }
        let index = u16::try_from(self.trace.streams.len())
            .map_err(|_| "more than 65,536 streams".to_owned())?;
        self.trace.streams.push(name);
        self.streams.insert(name, index);
        Ok(index)
    }

    pub(super) fn finish(mut self) -> Trace {
        self.trace.events.shrink_to_fit();
        self.trace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_that_the_machine_has_no_memory_for_is_an_error() {
        let read = |free| {
            let mut ledger = Ledger::new("log", u64::MAX);
            ledger.free = free;
            for _ in 0..=MANY {
                ledger.alloc(0x10, 512, 0)?;
                ledger.free(0x10, 512, 0)?;
            }
            Ok::<usize, String>(ledger.finish().events.len())
        };
        assert_eq!(read(|| None), Ok(2 * MANY + 2));
        let why = read(|| Some(1 << 20)).expect_err("too many");
        assert!(why.contains("memory"), "{why}");
    }
}
