//! Turns events into rows: tracks the live blocks and their pointers in the log.

use std::collections::{HashMap, VecDeque};
use std::io::Write;

use super::buffer::{Event, What};
use crate::device::Addr;

/// The columns, as RMM names them.
pub(super) const HEADER: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream\n";

/// Pointers are invented, because addresses of moved blocks are reused. They start here,
const POINTER_BASE: u64 = 0x7f00_0000_0000;
/// and are this many bytes apart.
const POINTER_STEP: u64 = 512;

/// A live block: its pointer in the log, and its bytes.
#[derive(Clone, Copy)]
struct Live {
    pointer: u64,
    bytes: u64,
}

/// The live blocks by address.
#[derive(Default)]
pub(super) struct Book {
    live: HashMap<Addr, Live>,
    /// Blocks that are being moved.
    lifted: VecDeque<Option<Live>>,
    allocated: u64,
}

impl Book {
    /// Appends a row for each of `events`.
    pub(super) fn write(&mut self, events: &[Event], rows: &mut Vec<u8>) {
        for event in events {
            self.event(event, rows);
        }
    }

    fn event(&mut self, event: &Event, rows: &mut Vec<u8>) {
        match event.what {
            What::Alloc { addr, bytes } => {
                let pointer = POINTER_BASE + self.allocated * POINTER_STEP;
                self.allocated += 1;
                let block = Live { pointer, bytes };
                if let Some(before) = self.live.insert(addr, block) {
                    row(rows, event, "free", before);
                }
                row(rows, event, "allocate", block);
            }
            // A block that a graph kept is freed twice: by the program, and by the graph.
            What::Free { addr } => {
                if let Some(block) = self.live.remove(&addr) {
                    row(rows, event, "free", block);
                }
            }
            What::Resize { addr, bytes } => {
                if let Some(block) = self.live.get_mut(&addr) {
                    row(rows, event, "free", *block);
                    block.bytes = bytes;
                    row(rows, event, "allocate", *block);
                }
            }
            What::Failure { bytes } => {
                let nothing = Live { pointer: 0, bytes };
                row(rows, event, "allocate failure", nothing);
            }
            What::Lift { addr } => self.lifted.push_back(self.live.remove(&addr)),
            What::Put { addr } => {
                if let Some(block) = self.lifted.pop_front().flatten() {
                    self.live.insert(addr, block);
                }
            }
        }
    }
}

fn row(rows: &mut Vec<u8>, event: &Event, action: &str, block: Live) {
    let (seconds, micros) = (event.micros / 1_000_000, event.micros % 1_000_000);
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    let seconds = seconds % 60;
    let (thread, stream) = (event.thread, event.stream);
    let Live { pointer, bytes } = block;
    // Writing to memory does not fail.
    let _ = writeln!(
        rows,
        "{thread},{hours:02}:{minutes:02}:{seconds:02}:{micros:06},{action},{pointer:#x},{bytes},{stream:#x}"
    );
}
