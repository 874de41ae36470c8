//! Any parts of segments handed out and taken back, against a plain list of them.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Segments, keep_block};
use crate::device::{Addr, Device, Stream};
use crate::pool::{Pool, PoolConfig};

const UNIT: u64 = 256;

/// A segment: its place, its parts by address as (address, bytes, free), and the live ones.
struct Plain {
    start: Addr,
    parts: Vec<(Addr, u64, bool)>,
    live: Vec<Addr>,
    high: Addr,
}

impl Plain {
    fn end(&self) -> Addr {
        self.parts.last().map_or(self.start, |part| part.0 + part.1)
    }

    /// Joins free parts beside the one at `addr`, which is made free.
    fn file(&mut self, addr: Addr) {
        let mut at = self.parts.iter().position(|part| part.0 == addr).unwrap();
        self.parts[at].2 = true;
        if self.parts.get(at + 1).is_some_and(|part| part.2) {
            self.parts[at].1 += self.parts.remove(at + 1).1;
        }
        if at > 0 && self.parts[at - 1].2 {
            at -= 1;
            self.parts[at].1 += self.parts.remove(at + 1).1;
        }
    }
}

struct Both {
    parts: Segments,
    plain: Vec<Plain>,
    pool: Pool,
    stream: Stream,
}

impl Both {
    fn new() -> Self {
        let device = Device::host().unwrap();
        let pool = Pool::new(&device, PoolConfig::default().cache_bytes(0)).unwrap();
        Self {
            parts: Segments::default(),
            plain: Vec::new(),
            stream: device.stream().unwrap(),
            pool,
        }
    }

    fn add(&mut self, units: u64) {
        let block = self.pool.alloc(&self.stream, units * UNIT).unwrap();
        let start = block.addr();
        self.plain.push(Plain {
            start,
            parts: vec![(start, units * UNIT, true)],
            live: Vec::new(),
            high: start,
        });
        self.plain.sort_by_key(|segment| segment.start);
        self.parts.add(block);
    }

    fn take(&mut self, bytes: u64) {
        let free = self.plain.iter().flat_map(|segment| &segment.parts);
        let fits = free.filter(|part| part.2 && part.1 >= bytes);
        let best = fits.map(|part| (part.1, part.0)).min();
        assert_eq!(self.parts.take(bytes), best.map(|(_, addr)| addr));
        let Some((size, addr)) = best else {
            return;
        };
        let holds = |segment: &&mut Plain| (segment.start..segment.end()).contains(&addr);
        let segment = self.plain.iter_mut().find(holds).unwrap();
        let at = segment
            .parts
            .iter()
            .position(|part| part.0 == addr)
            .unwrap();
        segment.parts[at] = (addr, bytes, false);
        if size > bytes {
            segment
                .parts
                .insert(at + 1, (addr + bytes, size - bytes, true));
        }
        segment.live.push(addr);
        segment.high = segment.high.max(addr + bytes);
    }

    fn give(&mut self, draw: usize, again: bool) {
        let live = self.plain.iter().enumerate();
        let live: Vec<(usize, Addr)> = live
            .flat_map(|(at, segment)| segment.live.iter().map(move |&addr| (at, addr)))
            .collect();
        if live.is_empty() {
            return;
        }
        let (at, addr) = live[draw % live.len()];
        let segment = &mut self.plain[at];
        let part = segment.parts.iter().find(|part| part.0 == addr).unwrap();
        let gone = self.parts.give(addr, part.1, again);
        segment.live.retain(|&other| other != addr);
        if again {
            segment.file(addr);
        }
        let goes = self.parts.released && segment.live.is_empty();
        assert_eq!(
            gone.map(|block| block.addr()),
            goes.then_some(segment.start)
        );
        if goes {
            self.plain.remove(at);
        }
    }

    fn trim(&mut self) {
        for segment in &mut self.plain {
            let (end, high, start) = (segment.end(), segment.high, segment.start);
            let Some(last) = segment.parts.last_mut().filter(|part| part.2) else {
                continue;
            };
            let keep = high.max(last.0);
            if keep == end || keep == start {
                continue;
            }
            last.1 = keep - last.0;
            if last.1 == 0 {
                segment.parts.pop();
            }
        }
        self.parts.trim();
    }

    fn agree(&self) {
        let said = self.plain.iter().flat_map(|it| it.parts.clone());
        let free: Vec<_> = said.filter(|part| part.2).map(|it| (it.0, it.1)).collect();
        let seen: Vec<_> = self
            .parts
            .segments
            .values()
            .flat_map(|it| it.free.clone())
            .collect();
        assert_eq!(seen, free);
        for (segment, plain) in self.parts.segments.values().zip(&self.plain) {
            assert_eq!((segment.live, segment.high), (plain.live.len(), plain.high));
            assert_eq!(segment.block.addr() + segment.block.capacity(), plain.end());
        }
        assert_eq!(self.parts.segments.len(), self.plain.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_parts_taken_and_given_leave_what_they_leave_of_a_plain_list(
        steps in vec((0u8..12, any::<u8>(), any::<bool>()), 1..80),
        released in any::<bool>(),
    ) {
        let mut both = Both::new();
        both.add(12);
        // Side by side, so that parts of two segments would join if they could.
        both.add(8);
        both.parts.released = released;
        for (kind, draw, again) in steps {
            match kind {
                0..=4 => both.take((1 + u64::from(draw) % 6) * UNIT),
                5..=9 => both.give(draw.into(), again),
                10 if draw % 4 == 0 && !released => both.trim(),
                11 if both.plain.len() < 3 => both.add(1 + u64::from(draw) % 9),
                _ => {}
            }
            both.agree();
        }
    }
}

#[test]
fn a_block_that_a_graph_keeps_is_freed_behind_a_stream_whose_capture_begins_as_the_block_goes() {
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let [home, captured] = [(); 2].map(|()| device.stream().unwrap());
    let block = pool.alloc(&home, 1 << 20).unwrap();
    let capture = captured.begin_capture().unwrap();
    let recorder = captured.recorder().unwrap();
    let graph = capture.end().unwrap();
    let queued = home.core().timeline.open_tick();
    // As by another thread, since the drop looked for captures.
    let begun = home.begin_capture().unwrap();
    keep_block(block, vec![recorder.clone()], captured.core());
    drop(graph);
    let gate = &recorder.gate().core().timeline;
    assert!(gate.is_behind(&home.core().timeline, queued));
    drop(begun);
}

#[test]
fn a_request_that_empties_all_caches_looks_at_none_of_a_graphs_gate() {
    let device = Device::host().unwrap();
    let pool = Pool::new(&device, PoolConfig::default()).unwrap();
    let stream = device.stream().unwrap();
    drop(pool.alloc(&stream, 1 << 20).unwrap());
    let graphs = [(); 10].map(|()| {
        let capture = stream.begin_capture().unwrap();
        drop(pool.alloc(&stream, 1 << 20).unwrap());
        capture.end().unwrap()
    });
    let lanes = pool.shared().listed();
    assert_eq!(lanes.len(), 1, "those of gates keep nothing");
    drop(graphs);
}
