//! The live blocks while a trace is read: turns pointers into block numbers, and detects impossible
//! events.

use std::collections::HashMap;

use super::{Event, EventKind, Trace};

/// The blocks live so far, and the trace so far.
pub(super) struct Ledger {
    trace: Trace,
    max_bytes: u64,
    /// Block number and bytes by pointer.
    live: HashMap<u64, (u32, u64)>,
    live_bytes: u64,
    streams: HashMap<u64, u16>,
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
        }
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
        self.live.insert(pointer, (block, bytes));
        self.live_bytes = live_bytes;
        self.trace.blocks = blocks;
        self.trace.peak_live_bytes = self.trace.peak_live_bytes.max(live_bytes);
        self.trace.events.push(Event {
            bytes,
            block,
            stream,
            kind: EventKind::Alloc,
        });
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
        self.live.remove(&pointer);
        self.live_bytes -= bytes;
        self.trace.events.push(Event {
            bytes,
            block,
            stream,
            kind: EventKind::Free,
        });
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
