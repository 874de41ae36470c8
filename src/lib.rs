//! warpool: device memory for applications that run their own CUDA kernels.
//!
//! # The problem
//!
//! A GPU program queues work on streams and runs ahead of it. Asking the driver for memory breaks
//! that: an allocation costs microseconds to milliseconds, and a free waits for the device. So
//! programs keep a pool, and pools have three troubles. Memory freed on one stream must not reach
//! another before the work that uses it is done. Blocks of many sizes leave holes, and the pool
//! comes to hold half as much again as the program has live. And none of it can be tested without
//! the hardware, where a fault shows as a wrong number much later.
//!
//! # Stream order
//!
//! A [`Pool`] allocates and frees in the order of a [`Stream`]. A [`Block`] freed on a stream is
//! there for the next allocation on that stream at once, although work that uses it may still be
//! queued: the new owner's work is queued behind it. For any other stream the freed memory carries
//! the point of its stream that must have passed. Taking it elsewhere makes the taking stream wait
//! for that point *on the device*; the host never waits. Waits that the application makes through
//! this crate are remembered ([`device`] says how), so none is added twice.
//!
//! # Typed memory
//!
//! A [`PoolBuf`] and a [`Movable`] know what queued work does to them, so operations that take their
//! views may be given any stream: each waits on the device for what it must, and the free waits for all.
//! Kernels of the application's own do the same by [`Stream::kernel`]. Only plain addresses are ordered
//! by the application. `docs/soundness.md` says for each type what safe code may rely on.
//!
//! # Addresses and memory
//!
//! A pool reserves one long range of addresses and maps physical handles into it as they are
//! needed. A hole in the addresses costs nothing, since the memory under an idle handle can be
//! unmapped and mapped where a block is wanted. Such a move costs about what a new handle costs, so
//! idle memory is moved before the pool grows, and what the pool holds stays close to what is live.
//! Blocks are placed by exact best fit; a free on the allocating stream
//! touches only that stream's own state.
//!
//! # When memory runs out
//!
//! A request that finds nothing climbs a ladder: its own stream's holes, holes of other streams
//! that are ready, a wait on the device, idle handles, growth, then steps that others registered,
//! the application's own among them ([`Pool::on_pressure`]). Only then is it
//! [`Error::OutOfMemory`], with the figures and with what to do next. Errors are values: nothing
//! here aborts, and after an error the pool is as it was.
//!
//! # Graphs
//!
//! Work captured from a stream ([`Stream::begin_capture`]) becomes a [`Graph`]. What a pool hands out
//! meanwhile is the graph's: nobody else gets it, nothing moves it, and it goes back behind the last
//! launch when the graph is dropped.
//!
//! # A device everywhere
//!
//! [`Device::cuda`] is a GPU through its driver, which is opened when first needed and never linked
//! against. [`Device::host`] has the same contract on any machine: real memory, real mappings, a
//! thread a stream, and the kernels compiled from the same sources. [`Device::any`] takes a GPU
//! where there is one, and [`Device::no_gpu`] says why it did not.
//!
//! # The parts
//!
//! - [`device`]: devices, streams, events, and what is known of their order.
//! - [`pool`]: the pool, its configuration and its figures.
//! - [`compact`]: which live blocks to move to make room, and moving them.
//! - [`host`]: page-locked host memory, and copies that nobody waits for.
//! - [`recompute`], [`fit`]: which activations to keep and which to make again; the largest batch that
//!   fits.
//! - `convert`, a feature that is on by default: conversions between floating-point formats, bit for bit as
//!   the hardware rounds.
//! - [`collective`]: sums of gradients, gathers and broadcasts between devices.
//! - [`observe`]: traces of real programs, their replay with every block verified, reports.
//! - `sanitize`, a feature: reports uses of device memory that nothing orders.
//! - [`interop`]: streams and contexts that other libraries own.
//! - [`backend`]: what a device is made of, for those who write one.
//!
//! What the crate's own tests, benches and command line need beyond that is public and hidden from these
//! pages (the kernels' C interface, the planner, the books' checks): no promise is made of it.
//!
//! # Proof
//!
//! Every block a replay hands out is stamped and verified by kernels in stream order; one suite of
//! tests holds every device to the same contract; the pool is run against a naive model with its
//! books checked after every step.

#![cfg_attr(test, recursion_limit = "256")]
// They panic where nobody reads, in drops too.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![cfg_attr(
    not(feature = "convert"),
    allow(
        dead_code,
        unused_imports,
        reason = "the log of uses and the views have parts that conversions alone use"
    )
)]

// Tests that the suites share with the crate name it as the suites do.
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
mod seeded;
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
