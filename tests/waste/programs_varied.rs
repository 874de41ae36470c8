//! More made programs, of other shapes: serving with growing caches, sharded training, analytics,
//! a scene's textures, and blocks of every size and age.

use warpool::observe::Trace;

use super::programs::{KIB, Live, MIB, Program};

/// Serving: conversations with a cache a layer that doubles, drafts that are thrown away, adapters
/// that come and go, logits of a batch whose size varies.
pub fn serving(seed: u64, weights: u64, most: usize, steps: u64) -> Trace {
    let mut p = Program::new(seed);
    for layer in 0..32u64 {
        p.alloc(weights / 32 * (3 + layer % 3) / 4, 0);
        p.alloc(p_bias(layer), 0);
    }
    let mut adapters: Vec<Vec<Live>> = Vec::new();
    let mut running: Vec<(Vec<Live>, u64, u64)> = Vec::new();
    for step in 0..steps {
        if running.len() < most && p.random.chance(2, 5) {
            let room = 512u64 << p.random.below(4);
            let caches = (0..16).map(|_| p.alloc(room * 1536, 0)).collect();
            running.push((caches, room, room / 2));
            let prompt = p.between(16, room);
            p.scratch(prompt * 11 * KIB, 0);
        }
        if step % 40 == 0 {
            if adapters.len() > 3 {
                let old = adapters.remove(0);
                p.free_all(old, 1);
            }
            let rank = 4u64 << p.random.below(4);
            let loaded = (0..96u64).map(|at| p.alloc(rank * (4 + at % 5) * 2 * KIB, 1));
            adapters.push(loaded.collect());
        }
        let mut at = 0;
        while at < running.len() {
            let grown = p.between(1, 64);
            let (caches, room, used) = &mut running[at];
            *used += grown;
            if *used > *room {
                *room *= 2;
                for cache in caches {
                    let new = p.alloc(cache.1 * 2, 0);
                    let old = std::mem::replace(cache, new);
                    p.free(old, 0);
                }
            }
            if running[at].1 > 16_384 || p.random.chance(1, 60) {
                let (done, _, _) = running.swap_remove(at);
                p.free_all(done, 0);
                continue;
            }
            at += 1;
        }
        let logits = p.alloc(running.len() as u64 * 128_256 * 2 + 1, 0);
        let draft = p.between(1, 4 * MIB);
        p.scratch(draft, 2);
        p.free(logits, 0);
    }
    p.finish("serving")
}

fn p_bias(layer: u64) -> u64 {
    (1 + layer % 4) * 8 * KIB
}

/// Sharded training: each layer's weights are gathered on a side stream before its use and dropped
/// after it, gradients fill buckets that a third stream reduces, the batch's length varies.
pub fn sharded(seed: u64, layers: u64, widest: u64, rounds: u64) -> Trace {
    let mut p = Program::new(seed);
    let shards: Vec<u64> = (0..layers)
        .map(|_| p.between(widest / 3, widest) & !511)
        .collect();
    for &bytes in &shards {
        for _ in 0..3 {
            p.alloc(bytes / 8, 0);
        }
    }
    for _ in 0..rounds {
        let length = p.between(20, 101);
        let mut kept = Vec::new();
        let mut ahead: Vec<Live> = Vec::new();
        for &bytes in &shards {
            ahead.push(p.alloc(bytes, 1));
            if ahead.len() > 2 {
                let used = ahead.remove(0);
                p.free(used, 1);
            }
            for part in [3, 1, 1] {
                kept.push(p.alloc(widest * part * length / 100 + part * 4096, 0));
            }
            p.scratch(widest * length / 50, 0);
        }
        p.free_all(ahead, 1);
        let mut bucket: Vec<Live> = Vec::new();
        for &bytes in shards.iter().rev() {
            let gathered = p.alloc(bytes, 1);
            p.scratch(widest * length / 40, 0);
            let gradient = p.alloc(bytes, 0);
            for _ in 0..3 {
                if let Some(live) = kept.pop() {
                    p.free(live, 0);
                }
            }
            p.free(gathered, 1);
            bucket.push(gradient);
            if bucket.len() == 4 {
                let flat = p.alloc(bucket.iter().map(|live| live.1).sum(), 2);
                p.free_all(std::mem::take(&mut bucket), 2);
                p.scratch(flat.1 / 8, 2);
                p.free(flat, 2);
            }
        }
        p.free_all(bucket, 0);
    }
    p.finish("sharded")
}

/// Analytics: tables of columns that are filtered, joined through hash tables and concatenated, on
/// `streams` streams; a few results are kept for long.
pub fn analytics(seed: u64, column: u64, streams: u64, queries: u64) -> Trace {
    let mut p = Program::new(seed);
    let mut kept: Vec<(Live, u64)> = Vec::new();
    for query in 0..queries {
        let stream = p.random.below(streams);
        let rows = p.between(column / 64, column);
        let table: Vec<Live> = (0..8).map(|at| p.alloc(rows >> (at % 3), stream)).collect();
        let mut result = Vec::new();
        for &(_, bytes) in &table {
            let part = p.between(1, 100);
            p.scratch(bytes / 8, stream);
            p.scratch(2048, stream);
            result.push(p.alloc(bytes * part / 100 + 1, stream));
        }
        let hashed = p.alloc(rows * 2, stream);
        p.free_all(table, stream);
        let joined = p.alloc(rows + rows / 3, stream);
        p.free(hashed, stream);
        for live in result {
            if p.random.chance(1, 6) {
                kept.push((live, stream));
            } else {
                p.free(live, stream);
            }
        }
        p.free(joined, stream);
        if query % 4 == 3 {
            while kept.len() > 48 {
                let at = p.random.below(kept.len() as u64) as usize;
                let (old, on) = kept.swap_remove(at);
                p.free(old, on);
            }
        }
    }
    p.finish("analytics")
}

/// Blocks of every size and age on `streams` streams: sizes spread evenly over their logarithm,
/// about `live` bytes held, which rise and fall.
pub fn mixture(seed: u64, live: u64, largest: u64, streams: u64, events: u64) -> Trace {
    let mut p = Program::new(seed);
    let mut held: Vec<(Live, u64)> = Vec::new();
    let mut sum = 0;
    let scales = u64::from((largest / 256).ilog2());
    for event in 0..events {
        let wave = 50 + 50 * ((event * 12 / events) % 4) / 3;
        while sum > live * wave / 100 {
            // Half of what goes is young, the other half of any age.
            let young = p.random.chance(1, 2) && held.len() > 32;
            let from = if young { held.len() - 32 } else { 0 };
            let at = from + p.random.below((held.len() - from) as u64) as usize;
            let (old, stream) = held.remove(at);
            sum -= old.1;
            p.free(old, stream);
        }
        let scale = 256u64 << p.random.below(scales);
        let bytes = p.between(scale, 2 * scale);
        let stream = p.random.below(streams);
        held.push((p.alloc(bytes, stream), stream));
        sum += bytes;
    }
    p.finish("mixture")
}

/// `streams` streams whose peaks alternate, in blocks between 1 KiB and an eighth of the working
/// set that a round frees in the order of another.
pub fn in_turns(seed: u64, working_set: u64, streams: u64, rounds: u64) -> Trace {
    let mut p = Program::new(seed);
    let mut kept: Vec<(Live, u64)> = Vec::new();
    for round in 0..rounds {
        let busy = round % streams;
        let full = p.scaled(working_set, 60);
        let mut live = Vec::new();
        let mut held = 0;
        while held < full {
            let scale = KIB << p.random.below(u64::from((working_set / 8 / KIB).ilog2()));
            let bytes = p.between(scale, 2 * scale);
            live.push(p.alloc(bytes, busy));
            held += bytes;
        }
        let order = p.random.below(3);
        while !live.is_empty() {
            let at = match order {
                0 => live.len() - 1,
                1 => 0,
                _ => p.random.below(live.len() as u64) as usize,
            };
            let block = live.remove(at);
            if p.random.chance(1, 25) {
                kept.push((block, busy));
            } else {
                p.free(block, busy);
            }
        }
        while kept.len() > 40 {
            let (old, stream) = kept.remove(0);
            p.free(old, stream);
        }
    }
    p.finish("in turns")
}
