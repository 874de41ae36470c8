//! The checker's reports.

use std::fmt;
use std::ops::Range;

use crate::device::{AccessKind, Addr, RawStream};

/// The kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// Two uses of the same bytes, one of them a write, that nothing orders.
    Race,
    /// A block is used after its free in stream order.
    UseAfterFree,
    /// Pool memory outside every block is used.
    NoBlock,
    /// Reserved addresses without memory are used.
    NotMapped,
    /// Memory is unmapped while queued work may still use it.
    UnmapInUse,
    /// Bytes that belong to a live block are allocated again.
    GivenTwice,
    /// Bytes that belong to no block are freed.
    FreedTwice,
}

/// One side of a report: an operation and its effect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Party {
    /// The operation: a call of the backend, a kernel, or the name that the application declared.
    pub what: String,
    /// Its effect there.
    pub kind: AccessKind,
    /// The stream it is queued on.
    pub stream: RawStream,
    /// The stream's name, if it has one.
    pub stream_name: Option<String>,
    /// Its number among all operations queued on the device, from 1.
    pub number: u64,
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The kind of fault.
    pub fault: Fault,
    /// The bytes, at the addresses that the second operation used.
    pub range: Range<Addr>,
    /// The operation that was queued first, if there are two.
    pub first: Option<Party>,
    /// The operation that was queued last; for an unmap, the work that may still run.
    pub second: Party,
}

impl Party {
    fn place(&self) -> String {
        match &self.stream_name {
            Some(name) => format!("stream `{name}`"),
            None => format!("stream {:#x}", self.stream.0),
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            AccessKind::Read => "reads",
            AccessKind::Write => "writes",
            AccessKind::Atomic => "adds",
        };
        write!(
            f,
            "{} ({kind}; operation {} on {})",
            self.what,
            self.number,
            self.place()
        )
    }
}

impl Report {
    /// What is missing, or how to correct it.
    fn advice(&self) -> String {
        let (second, first) = (&self.second, self.first.as_ref());
        match (self.fault, first) {
            (Fault::Race, Some(first)) => format!(
                "nothing makes {to} wait for {from}: record an event on {from} behind {what} and \
                 let {to} wait for it before {then}, or wait on the host in between",
                from = first.place(),
                to = second.place(),
                what = first.what,
                then = second.what,
            ),
            (Fault::UseAfterFree, _) => {
                String::from("drop the block after the last use is queued, not before")
            }
            (Fault::NoBlock, _) => String::from("allocate it first, and stay inside the block"),
            (Fault::NotMapped, _) => String::from("map memory there first"),
            (Fault::UnmapInUse, _) => {
                format!("wait on the host for {} before the unmap", second.place())
            }
            _ => String::from("free each block once"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = match self.fault {
            Fault::Race => "unordered uses of the same memory",
            Fault::UseAfterFree => "use after free",
            Fault::NoBlock => "use of pool memory that no block has",
            Fault::NotMapped => "use of addresses with no memory",
            Fault::UnmapInUse => "unmap under queued work",
            Fault::GivenTwice => "memory given out twice",
            Fault::FreedTwice => "memory freed that no block has",
        };
        let bytes = self.range.end - self.range.start;
        write!(f, "{fault}: {bytes} bytes at {:#x}: ", self.range.start)?;
        if let Some(first) = &self.first {
            write!(f, "{first}, then ")?;
        }
        write!(f, "{}; {}", self.second, self.advice())
    }
}

impl std::error::Error for Report {}
