//! Every constant by which the pool finds memory, each with what needs it. Figures are of recorded traces, and of
//! programs of `benches/programs` recorded on PyTorch's meta device, replayed on the host device: reserved over live
//! bytes, unless another is named. A ratio moves by up to 0.005 with any change of what is placed where, so less than
//! that is no reason.
//!
//! Those of how far a pool grows, of handles, of holes and of the least cache are measured with today's pool. Those of
//! many streams, of the caches' part and of lanes that meet at the lock are older, and were not taken again.

use crate::heap::StreamIndex;

/// Most addresses that a pool reserves: half of those of a process.
pub(super) const MOST_ADDRESSES: u64 = 1 << 46;

/// Addresses reserved for each byte of the device's memory. A placement needs a gap as large as what it
/// lacks, while old mappings stand in others.
pub(super) const ADDRESSES_A_BYTE: u64 = 8;

/// Part of the peak of live bytes that the pool grows by before it maps handles elsewhere. With 0.007 moe maps 549
/// handles elsewhere in place of 151, images 269 in place of 69, and all traces together a sixth more.
pub(crate) const LEAST_SLACK: f64 = 0.018;

/// A GPU's pool may grow by the device's memory, or its limit, divided by this: by half of that in any case. Recomputed
/// activations (`ckpt`, a peak of 3,881 MiB) on an H200 of 141 GB then make or map elsewhere 75 handles after the first
/// iteration and hold 4,320 MiB, with 640 195 and 4,256, with 160 17 and 4,480; PyTorch's expandable segments hold
/// 4,206, its native allocator 6,098.
pub(super) const DEVICE_PART: u64 = 320;

/// It grows by more than half of that only as far as it is the peak of live bytes divided by this: a small program is to
/// hold little more than it has. Replayed as on an H200 the rl trace (a peak of 944 MiB) then holds 1.25 of its peak and
/// maps 6 handles elsewhere, with 1 here 1.39 and none, without a part of the device 1.05 and 1,747. With 8 `ckpt`
/// makes or maps elsewhere 160 handles.
pub(super) const SPARE_PART: u64 = 3;

/// A GPU's pool makes handles of what its device or limit has to spare, a [`DEVICE_PART`], divided by this at
/// least, and new memory in whole ones. In the same replay, where that is 32 MiB, tables makes or maps elsewhere
/// 68 handles in all and holds 1.16 of its peak; with 20, 16 MiB, 120 and 1.14; with 5, 64 MiB, 31 and 1.18. rl holds
/// 1.25, 1.32 and 1.29.
pub(super) const SPARE_HANDLES: u64 = 10;

/// A GPU's pool makes handles of its own bytes divided by this where that is more; not under a limit, near which
/// what is idle in a handle may be what a request lacks: llama fails at 1.02 times its peak. In the same replay gpt2 makes
/// or maps elsewhere 288 handles and holds 1.038, moe 230 and 1.011; with 32 it is 175 and 1.054, 147 and 1.011; without 715
/// and 1.012, 407 and 1.009.
pub(super) const POOL_HANDLES: u64 = 64;

/// Number of handles that adaptive sizing aims at. With 1,024 detect maps 365 handles elsewhere in place of 218, with
/// 512 llama holds 1.021 in place of 1.0198.
pub(super) const HANDLES_AIMED_AT: u64 = 768;

/// Number of handles of a large block. With 32 recomputed activations hold 1.026 of their peak in place of 1.016, with
/// 64 the tables trace maps 1,384 handles elsewhere in place of 1,065, all as means of six traces that lack other
/// fiftieths of their blocks.
pub(super) const HANDLES_A_STRETCH: u64 = 56;

/// Most bytes of a handle; from half of this on, making handles costs by the byte.
pub(super) const LARGEST_HANDLE: u64 = 256 << 20;

/// Old mappings that a request looks at though their work is not done: each may cost a question.
pub(super) const PENDING_LOOKED_AT: usize = 256;

/// Old mappings that are kept: the pool's end waits some 20 us for the driver to take one down.
pub(super) const MOST_KEPT: usize = 4096;

/// Holes looked at for one that may be taken, of each stream: where the smallest waits for its stream, a larger may
/// not. With one, five_streams maps 817 handles elsewhere in place of 674.
pub(super) const HOLES_LOOKED_AT: usize = 8;

/// Slabs looked at for a slot that is ready, of each stream.
pub(super) const SLABS_LOOKED_AT: usize = 16;

/// Streams up to which the holes of all others are looked at for one that fits better than the stream's own,
/// which wastes least. Where sixteen each looked at all, a miss took 5,200 cycles under the lock on a host of
/// an H200; with two others 2,000. Eight threads with 10,000 live blocks each, on two cores, then take 490 to 510 ns a
/// pair in place of 410 to 450.
pub(super) const ALL_STREAMS: StreamIndex = 5;

/// Neighbouring holes of all streams are made one for a request where there are so many, or as many more as changed
/// since the last time. The recorded traces have fewer. Without, sixteen threads that grew to 5 GB each took
/// longer than 40 s; with this it is 0.7 s.
pub(super) const UNIFIED_AT_ONCE: u64 = 1024;

/// Where there are more streams, how many are looked at.
pub(super) const OTHER_STREAMS: StreamIndex = 2;

/// Holes of several streams are merged for blocks larger than a granule over this: its stream waits for all of them,
/// where a small block waits for the one hole that it takes. No trace here holds more or less with another value.
pub(super) const SMALL_PART: u64 = 4;

/// Times that a request looks at the caches again before it fails, where others filled them meanwhile.
pub(super) const CACHES_LOOKED_AT_AGAIN: u32 = 4;

/// Waits on the device that a request makes without the pool's lock before it makes one under it.
pub(super) const WAITS_WITHOUT_THE_LOCK: u32 = 8;

/// Bytes of a graph's segment for requests below this; larger ones get a segment of their own size.
pub(super) const GRAPH_SEGMENT: u64 = 2 << 20;

/// Least bytes that the cache of a pool's only stream may keep, so that a small pool keeps blocks too. That has a price where
/// no GPU's memory is to spare: KV caches that peak at 160 MiB hold 1.077 of that, with 4 MiB here 1.103, with half
/// a MiB 1.065, as means of twelve traces that lack other fiftieths of their blocks; but of half a MiB no block of a
/// MiB is kept.
pub(super) const LEAST_CACHE: u64 = 1 << 20;

/// The same where there are several streams: a cache's blocks go from stream to stream together. With a MiB a thread
/// that frees what another allocates takes 250 to 640 ns a pair in place of 75 to 120.
pub(super) const LEAST_CACHE_OF_SEVERAL: u64 = 4 << 20;

/// All caches together may keep the slack divided by this, where that is more. With 4 MiB the moe trace asks the
/// heap 204,000 times and frees there 69,000 times, with 46 MiB, a fifth of its slack, 138,000 and 5,000 times.
pub(super) const CACHE_PART: u64 = 5;

/// Misses for which a lane that found the pool's lock taken leaves it to others: a millisecond of a thread that
/// does nothing else. Where few are at the lock one finds it free by chance, and would give up what it gathered.
pub(super) const CROWDED_MISSES: u32 = 4096;

/// Such a lane keeps its live bytes divided by this, beside what each cache may keep, and the pool may grow by as
/// much: eight threads with 10,000 live blocks each do 15 million pairs a second and hold an eighth more, where it
/// did not grow 2 million.
pub(super) const CROWDED_PART: u64 = 8;

/// Such a lane serves a request by a block that is larger by up to one part in so many; or by up to so many bytes,
/// as long as the request is doubled at most; and by no more bytes than the last of these. Of the same live
/// blocks those at hand had 1.6 % more than was asked for.
pub(super) const NEAR_PART: u64 = 8;
pub(super) const NEAR_LEAST: u64 = 4096;
pub(super) const NEAR_MOST: u64 = 1 << 20;
