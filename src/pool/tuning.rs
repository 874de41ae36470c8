//! Every constant by which the pool finds memory, each with what needs it. Figures are of recorded traces, and of
//! programs of `benches/programs`, replayed on the host device: reserved over live bytes, unless another is named. A
//! ratio moves by up to 0.005 with any change of what is placed where, so less than that is no reason.
//!
//! Those of many streams, of the caches' part and of lanes that meet at the lock are older than today's pool.

use crate::heap::StreamIndex;

/// Most addresses that a pool reserves: half of those of a process.
pub(super) const MOST_ADDRESSES: u64 = 1 << 46;

/// Addresses reserved for each byte of the device's memory: old mappings stand in many of them.
pub(super) const ADDRESSES_A_BYTE: u64 = 8;

/// No more than these, unless its memory is more: a process has 2^47, and perhaps many pools of a large host.
pub(super) const FEW_ADDRESSES: u64 = 1 << 40;

/// Part of the peak of live bytes that the pool grows by before it maps handles elsewhere. With 0.007 moe maps 549
/// handles elsewhere in place of 151, images 269 in place of 69, and all traces together a sixth more.
pub(crate) const LEAST_SLACK: f64 = 0.018;

/// A GPU's pool may grow by the device's memory, or its limit, divided by this: by half of that in any case. Recomputed
/// activations (`ckpt`, a peak of 3,881 MiB) on an H200 of 141 GB then make or map elsewhere 75 handles after the first
/// iteration and hold 4,320 MiB, with 640 195 and 4,256, with 160 17 and 4,480; PyTorch holds 4,206 to 6,098.
pub(super) const DEVICE_PART: u64 = 320;

/// It grows by more than half of that only up to the peak of live bytes divided by this, as small programs are to hold
/// little more than they have. Replayed as on an H200 the rl trace (a peak of 944 MiB) then holds 1.25 of its peak and
/// maps 6 handles elsewhere, with 1 1.39 and none. With 8 `ckpt` makes or maps elsewhere 160 handles.
pub(super) const SPARE_PART: u64 = 3;

/// A GPU's pool makes handles of a [`DEVICE_PART`] divided by this at least, and new memory in whole ones. In the same
/// replay, where that is 32 MiB, tables makes or maps elsewhere 68 handles and holds 1.16 of its peak; with 20 120 and
/// 1.14; with 5 31 and 1.18. rl holds 1.25, 1.32 and 1.29.
pub(super) const SPARE_HANDLES: u64 = 10;

/// A GPU's pool makes handles of its own bytes divided by this where that is more; not under a limit, where llama fails
/// at 1.02 times its peak for what is idle in a handle. In the same replay gpt2 makes or maps elsewhere 288 handles and
/// holds 1.038, moe 230 and 1.011; with 32 it is 175 and 1.054, 147 and 1.011; without 715 and 1.012, 407 and 1.009.
pub(super) const POOL_HANDLES: u64 = 64;

/// Number of handles that adaptive sizing aims at. With 1,024 detect maps 365 handles elsewhere in place of 218, with
/// 512 llama holds 1.021 in place of 1.0198.
pub(super) const HANDLES_AIMED_AT: u64 = 768;

/// Number of handles of a large block. With 32 recomputed activations hold 1.026 of their peak in place of 1.016, with
/// 64 the tables trace maps 1,384 handles elsewhere in place of 1,065, as means of six traces thinned differently.
pub(super) const HANDLES_A_STRETCH: u64 = 56;

/// Most bytes of a handle; from half of this on, making handles costs by the byte.
pub(super) const LARGEST_HANDLE: u64 = 256 << 20;

/// Old mappings that a request looks at though their work is not done: each may cost a question.
pub(super) const PENDING_LOOKED_AT: usize = 256;

/// Old mappings that are kept: the pool's end waits some 20 us for the driver to take one down.
pub(super) const MOST_KEPT: usize = 4096;

/// Holes of each stream looked at for one that is ready. With one, five_streams maps 817 handles in place of 674.
pub(super) const HOLES_LOOKED_AT: usize = 8;

/// Slabs looked at for a slot that is ready, of each stream.
pub(super) const SLABS_LOOKED_AT: usize = 16;

/// Streams up to which the holes of all others are looked at for one that fits better than the stream's own, which
/// wastes least. Where sixteen each looked at all, a miss took 5,200 cycles under the lock on a host of an H200; with
/// two others 2,000.
pub(super) const ALL_STREAMS: StreamIndex = 5;

/// Neighbouring holes of all streams are made one where there are up to so many, or as many more as changed since the
/// last time. Without, sixteen threads that grew to 5 GB each took longer than 40 s; with this it is 0.7 s.
pub(super) const UNIFIED_AT_ONCE: u64 = 1024;

/// Where there are more streams, how many are looked at.
pub(super) const OTHER_STREAMS: StreamIndex = 2;

/// Holes of several streams are merged for blocks larger than a granule over this: small blocks do better with a wait
/// for the one hole that they take. No trace here holds more or less with another value.
pub(super) const SMALL_PART: u64 = 4;

/// Times that a request looks at the caches again before it fails, where others filled them meanwhile.
pub(super) const CACHES_LOOKED_AT_AGAIN: u32 = 4;

/// Waits on the device that a request makes without the pool's lock before it makes one under it.
pub(super) const WAITS_WITHOUT_THE_LOCK: u32 = 8;

/// All streams are read for the joint peak once in as many requests as there are streams over this. 4,000 streams that
/// allocate a block each took 2.0 s where each request could have all read, with this 0.6 s.
pub(super) const READ_PART: u64 = 64;

/// Of so many drops of blocks that other streams use, one asks the driver how far those are. In two rounds `streams` then
/// spends 6.0 and 7.6 ms in the driver and `offload` 0.4 % of its time, with 1 12.9 and 12.4 ms and 0.7 to 0.9 %. 8, 16 and
/// never are not told apart from 4 by these; with fewer questions `streams` has more waits.
pub(super) const DROPS_A_QUESTION: u64 = 4;
/// Bytes of a graph's segment for requests below this; larger ones get a segment of their own size.
pub(super) const GRAPH_SEGMENT: u64 = 2 << 20;

/// Least bytes that the cache of a pool's only stream may keep, so that a small pool keeps blocks too, up to a MiB. KV
/// caches that peak at 160 MiB hold 1.077 of that, with 4 MiB here 1.103, with half a MiB 1.065, as means of twelve
/// traces thinned differently.
pub(super) const LEAST_CACHE: u64 = 1 << 20;

/// The same where there are several streams: a cache's blocks go from stream to stream together. With a MiB a thread
/// that frees what another allocates takes 250 to 640 ns a pair in place of 75 to 120.
pub(super) const LEAST_CACHE_OF_SEVERAL: u64 = 4 << 20;

/// All caches together may keep the slack divided by this, where that is more. With 4 MiB the moe trace asks the
/// heap 204,000 times and frees there 69,000 times, with 46 MiB, a fifth of its slack, 138,000 and 5,000 times.
pub(super) const CACHE_PART: u64 = 5;

/// Misses for which a lane that found the pool's lock taken leaves it to others: a millisecond of a thread that does
/// nothing else. One that finds it free by chance is not to give up what it gathered.
pub(super) const CROWDED_MISSES: u32 = 4096;

/// Such a lane keeps its live bytes divided by this, beside what each cache may keep, and the pool grows by as much:
/// eight threads with 10,000 live blocks each do 15 million pairs a second and hold an eighth more, without 2 million.
pub(super) const CROWDED_PART: u64 = 8;

/// Such a lane serves a request by a block that is larger by up to one part in so many; or by up to so many bytes, if
/// that is no more than the request has; and by no more than the last. Those live blocks had 1.6 % more than asked for.
pub(super) const NEAR_PART: u64 = 8;
pub(super) const NEAR_LEAST: u64 = 4096;
pub(super) const NEAR_MOST: u64 = 1 << 20;
