//! warpool: device memory for applications that run their own CUDA kernels.
//!
//! # The problem
//!
//! A GPU program queues work on streams and runs ahead of it. Requesting memory from the driver
//! breaks that: an allocation takes microseconds to milliseconds, and a free waits for the device.
//! So programs keep a pool, and pools have three problems. Memory freed on one stream must not be
//! used on another before the work that uses it is done. Blocks of many sizes leave holes, and the
//! pool comes to hold half as much again as the program has live. And none of it can be tested
//! without the hardware, where a fault shows as a wrong number much later.
//!
//! # Stream order
//!
//! A [`Pool`] allocates and frees in the order of a [`Stream`]. Memory of a [`Block`] freed on a
//! stream is available to the next allocation on that stream at once, although work that uses it
//! may still be queued: the new owner's work is queued after it. For every other stream, the freed
//! memory carries a point of its stream. An allocation elsewhere makes its stream wait for that
//! point *on the device*; the host never waits. The crate remembers waits that the application
//! makes through it ([`device`] says how), so none is added twice.
//!
//! # Typed memory
//!
//! A [`PoolBuf`] and a [`Movable`] record what queued work does to them. So operations on their views
//! may be queued on any stream: each waits on the device for conflicting work, and the free waits for
//! all of it. The application's own kernels get the same through [`Stream::kernel`]. The application
//! orders only work on plain addresses. `docs/soundness.md` says for each type what safe code may rely
//! on.
//!
//! # Addresses and memory
//!
//! A pool reserves one long range of addresses and maps physical handles into it on demand. A hole
//! in the addresses costs nothing, because the memory of an idle handle can be unmapped and mapped
//! where a block needs it. Such a remap costs more than a new handle. So the pool first grows by a
//! small part over its peak, then it remaps idle memory before it grows further: it holds little more
//! than the live bytes. Blocks are placed by exact best fit; a free on the allocating stream touches
//! only that stream's own state.
//!
//! # When memory runs out
//!
//! A request that finds nothing runs through a ladder: its own stream's holes, holes of other
//! streams that are ready, a wait on the device, idle handles, growth, then registered steps,
//! including those of the application ([`Pool::on_pressure`]). Only then does it return
//! [`Error::OutOfMemory`], with details and advice. Errors are values: nothing here aborts, and
//! after an error the pool is unchanged.
//!
//! # Graphs
//!
//! Work captured from a stream ([`Stream::begin_capture`]) becomes a [`Graph`]. Memory that a pool
//! allocates meanwhile belongs to the graph: nothing else uses it and nothing moves it. It returns to
//! the pool after the last launch, when the graph is dropped.
//!
//! # A device everywhere
//!
//! [`Device::cuda`] is a GPU through its driver, which is opened on first use and never linked
//! against. [`Device::host`] has the same contract on any machine: real memory, real mappings, one
//! thread per stream, and the kernels compiled from the same sources. [`Device::any`] takes a GPU
//! if there is one; otherwise [`Device::no_gpu`] says why not.
//!
//! # The parts
//!
//! - [`device`]: devices, streams, events, and their known order.
//! - [`pool`]: the pool, its configuration and its statistics.
//! - [`compact`]: chooses which live blocks to move to make room, and moves them.
//! - [`host`]: page-locked host memory, and copies that do not block the host.
//! - [`recompute`], [`fit`]: which activations to keep and which to compute again; the largest batch
//!   that fits.
//! - `convert`, a feature that is on by default: conversions between floating-point formats, to the same
//!   bits as the hardware's.
//! - [`collective`]: sums of gradients, gathers and broadcasts between devices.
//! - [`observe`]: traces of real programs, their replay with every block verified, reports.
//! - `sanitize`, a feature: reports uses of device memory that nothing orders.
//! - [`interop`]: streams and contexts that other libraries own.
//! - [`backend`]: the interface of a device, for code that implements one.
//!
//! The crate's own tests, benches and command line need more. That is public but hidden from these pages
//! (the kernels' C interface, the planner, the invariant checks), and may change at any time.
//!
//! # Proof
//!
//! A replay stamps every block and verifies it by kernels in stream order. One test suite checks
//! every device against the same contract. The pool is compared with a naive model, and its
//! invariants are checked after every step.

#![cfg_attr(test, recursion_limit = "256")]
// They panic if nobody reads the output, in drops too.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![cfg_attr(
    not(feature = "convert"),
    allow(
        dead_code,
        unused_imports,
        reason = "the log of uses and the views have parts that conversions alone use"
    )
)]

// The suites share tests with the crate; those name the crate as the suites do.
#[cfg(test)]
extern crate self as warpool;

mod arena;
pub mod backend;
pub mod collective;
pub mod compact;
#[cfg(feature = "convert")]
pub mod convert;
pub mod device;
#[doc(hidden)]
pub mod driver;
mod error;
pub mod fit;
mod heap;
pub mod host;
pub mod interop;
pub mod movable;
pub mod observe;
pub mod pool;
pub mod recompute;
mod record;
#[cfg(feature = "sanitize")]
pub mod sanitize;
mod sync;

pub use device::{Capture, Device, Event, Graph, Stream};
pub use error::{Error, OutOfMemory, Result};
pub use movable::{Movable, Resident, ResidentMut};
pub use pool::{Block, GrowBuf, Pool, PoolBuf, PoolConfig, PoolStats, View, ViewMut};

/// Element types of device memory are [`bytemuck::Pod`].
pub use bytemuck;
/// The 16-bit floats: [`half::f16`] and [`half::bf16`].
pub use half;

/// The code in the README and in the guide, compiled and run.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[cfg(feature = "convert")]
    #[doc = include_str!("../docs/guide/1-streams.md")]
    struct Streams;
    #[doc = include_str!("../docs/guide/2-moving.md")]
    struct Moving;
    #[doc = include_str!("../docs/guide/3-out-of-memory.md")]
    struct OutOfMemory;
    #[doc = include_str!("../docs/guide/4-testing.md")]
    struct Testing;
    #[doc = include_str!("../docs/guide/5-measuring.md")]
    struct Measuring;
    #[doc = include_str!("../docs/guide/6-more-than-fits.md")]
    struct MoreThanFits;
    #[doc = include_str!("../docs/guide/7-several-gpus.md")]
    struct SeveralGpus;
    #[doc = include_str!("../docs/guide/8-eight-bits.md")]
    struct EightBits;
}
