//! Made programs: what training, inference, rendering and many small blocks ask of an allocator.
//!
//! Each is a list of requests made from a seed, in the shapes that real programs have: sizes follow
//! a batch, a length or a resolution that changes from round to round, weights stay, activations
//! are freed in reverse, a side stream fetches ahead.

use warpool::device::sim::Rng;
use warpool::observe::{Trace, TraceWriter};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A program under construction.
pub struct Program {
    writer: TraceWriter<Vec<u8>>,
    pub random: Rng,
    next: u64,
}

/// A live block: its pointer and its bytes.
pub type Live = (u64, u64);

impl Program {
    pub fn new(seed: u64) -> Self {
        Self {
            writer: TraceWriter::new(Vec::new()).expect("writes"),
            random: Rng::new(seed),
            next: 1 << 20,
        }
    }

    pub fn alloc(&mut self, bytes: u64, stream: u64) -> Live {
        self.next += 1;
        let live = (self.next, bytes.max(1));
        self.writer
            .allocate(live.0, live.1, stream)
            .expect("writes");
        live
    }

    pub fn free(&mut self, (pointer, bytes): Live, stream: u64) {
        self.writer.free(pointer, bytes, stream).expect("writes");
    }

    /// Allocated, used and freed at once.
    pub fn scratch(&mut self, bytes: u64, stream: u64) {
        let live = self.alloc(bytes, stream);
        self.free(live, stream);
    }

    pub fn free_all(&mut self, live: impl IntoIterator<Item = Live>, stream: u64) {
        for live in live {
            self.free(live, stream);
        }
    }

    /// A number in `from..to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.random.below(to - from)
    }

    /// `bytes` times a factor in [`low`, 1), as a program's shapes scale: in whole rows.
    pub fn scaled(&mut self, bytes: u64, low: u64) -> u64 {
        let part = self.between(low, 100);
        (bytes * part / 100).next_multiple_of(256)
    }

    pub fn finish(self, name: &str) -> Trace {
        let text = self.writer.finish().expect("writes");
        Trace::read_from(name, text.as_slice(), u64::MAX).expect("reads")
    }
}

/// Training: weights, then rounds of a batch fetched ahead on a side stream, activations kept
/// forward and freed backward, gradients, an optimiser's small steps.
pub fn training(seed: u64, layers: u64, widest: u64, rounds: u64) -> Trace {
    let mut p = Program::new(seed);
    let sizes: Vec<u64> = (0..layers)
        .map(|_| p.between(widest / 8, widest) & !255)
        .collect();
    for &bytes in &sizes {
        for part in [bytes / 4, bytes / 4, 512, 256, 2048] {
            p.alloc(part, 0);
        }
    }
    let mut fetched = p.alloc(widest, 1);
    for _ in 0..rounds {
        let (batch, factor) = (fetched, p.between(50, 101));
        let bytes = p.scaled(widest, 50);
        fetched = p.alloc(bytes, 1);
        let mut kept = Vec::new();
        for &bytes in &sizes {
            let bytes = bytes * factor / 100;
            kept.push(p.alloc(bytes, 0));
            kept.push(p.alloc(bytes / 64, 0));
            kept.push(p.alloc(1000, 0));
            p.scratch(bytes / 2 + 4096, 0);
        }
        let mut gradients = Vec::new();
        for &bytes in sizes.iter().rev() {
            p.scratch(bytes * factor / 100, 0);
            gradients.push(p.alloc(bytes / 4, 0));
            for _ in 0..3 {
                if let Some(live) = kept.pop() {
                    p.free(live, 0);
                }
            }
        }
        for &bytes in &sizes {
            p.scratch(bytes / 4, 0);
            p.scratch(4, 0);
        }
        p.free_all(gradients, 0);
        p.free(batch, 0);
    }
    p.finish("training")
}

/// Inference: requests of varying length come and go, each with a cache that grows a step at a
/// time by reallocation; working memory follows the length.
pub fn inference(seed: u64, weights: u64, most: usize, steps: u64) -> Trace {
    let mut p = Program::new(seed);
    for _ in 0..48 {
        p.alloc(weights / 48, 0);
        p.alloc(16 * KIB, 0);
    }
    let mut running: Vec<Vec<Live>> = Vec::new();
    for _ in 0..steps {
        if running.len() < most && p.random.chance(1, 3) {
            let length = p.between(64, 4096);
            running.push((0..24).map(|_| p.alloc(length * 2048, 0)).collect());
            p.scratch(length * 16 * KIB, 0);
        }
        if running.is_empty() {
            continue;
        }
        let at = p.random.below(running.len() as u64) as usize;
        for layer in 0..running[at].len() {
            let old = running[at][layer];
            running[at][layer] = p.alloc(old.1 + 128 * 2048, 0);
            p.free(old, 0);
            p.scratch(old.1 / 2 + 700, 0);
        }
        if p.random.chance(1, 8) {
            let done = running.swap_remove(at);
            p.free_all(done, 0);
        }
    }
    p.finish("inference")
}

/// Five streams whose peaks alternate: one after the other has the large working set, the rest
/// keep little.
pub fn alternating(seed: u64, working_set: u64, rounds: u64) -> Trace {
    const STREAMS: u64 = 5;
    let mut p = Program::new(seed);
    let mut kept: Vec<Vec<Live>> = vec![Vec::new(); STREAMS as usize];
    for round in 0..rounds {
        let busy = round % STREAMS;
        let full = p.scaled(working_set, 70);
        let mut held = 0;
        while held < full {
            let bytes = match p.random.below(8) {
                0..3 => p.between(1, 64 * KIB),
                3..6 => p.between(64 * KIB, 4 * MIB),
                _ => p.between(4 * MIB, working_set / 16),
            };
            let live = p.alloc(bytes, busy);
            kept[busy as usize].push(live);
            held += bytes;
            if p.random.chance(1, 4) {
                let other = p.random.below(STREAMS);
                let bytes = p.between(1, 2 * MIB);
                p.scratch(bytes, other);
            }
        }
        // A tenth stays until the stream's next turn; what others kept from before goes now.
        let mut leaving = std::mem::take(&mut kept[busy as usize]);
        let stays = leaving.len() / 10;
        for _ in 0..leaving.len() - stays {
            let at = p.random.below(leaving.len() as u64) as usize;
            let live = leaving.swap_remove(at);
            p.free(live, busy);
        }
        let next = (busy + 1) % STREAMS;
        let old = std::mem::take(&mut kept[next as usize]);
        p.free_all(old, next);
        kept[busy as usize] = leaving;
    }
    p.finish("alternating")
}

/// Small blocks by the ten thousand beside a few large ones, with survivors.
pub fn small_blocks(seed: u64, count: u64, rounds: u64) -> Trace {
    let mut p = Program::new(seed);
    let mut survivors = Vec::new();
    for _ in 0..rounds {
        let stream = p.random.below(2);
        let mut live: Vec<Live> = Vec::new();
        for at in 0..count {
            let bytes = p.between(1, 4097);
            live.push(p.alloc(bytes, stream));
            if at % 512 == 0 {
                let bytes = p.between(MIB, 16 * MIB);
                live.push(p.alloc(bytes, stream));
            }
        }
        while !live.is_empty() {
            let at = p.random.below(live.len() as u64) as usize;
            let block = live.swap_remove(at);
            if block.1 <= 4096 && p.random.chance(1, 1000) {
                survivors.push((block, stream));
            } else {
                p.free(block, stream);
            }
        }
        while survivors.len() > 200 {
            let (block, stream) = survivors.swap_remove(0);
            p.free(block, stream);
        }
    }
    p.finish("small blocks")
}

/// Diffusion: a network of halving resolutions, each image of another size, adapters swapped in
/// between.
pub fn diffusion(seed: u64, pixels: u64, images: u64) -> Trace {
    let mut p = Program::new(seed);
    for level in 0..40u64 {
        p.alloc(pixels * (1 + level % 7) / 16, 0);
    }
    let mut adapter: Vec<Live> = Vec::new();
    for image in 0..images {
        if image % 3 == 0 {
            let old = std::mem::take(&mut adapter);
            p.free_all(old, 0);
            for _ in 0..64 {
                let bytes = p.between(16 * KIB, 768 * KIB);
                adapter.push(p.alloc(bytes, 0));
            }
        }
        let size = p.scaled(pixels, 25);
        let latent = p.alloc(size / 64, 0);
        for _ in 0..4 {
            let mut skips = Vec::new();
            for level in 0..6u64 {
                skips.push(p.alloc((size >> level) * 3 / 4, 0));
                p.scratch(size >> level, 0);
                p.scratch((size >> level) / 8 + 900, 0);
            }
            while let Some(skip) = skips.pop() {
                p.scratch(skip.1 * 2, 0);
                p.free(skip, 0);
            }
        }
        let decoded = p.alloc(size * 3, 1);
        p.free(latent, 0);
        p.scratch(size * 2, 1);
        p.free(decoded, 1);
    }
    p.finish("diffusion")
}

/// Rendering: textures that stream in and out by distance, buffers of each frame on three streams.
pub fn rendering(seed: u64, textures: usize, frames: u64) -> Trace {
    let mut p = Program::new(seed);
    let mut resident: Vec<Live> = Vec::new();
    for _ in 0..frames {
        for _ in 0..p.random.below(12) {
            let side = 64u64 << p.random.below(6);
            resident.push(p.alloc(side * side * 4 / 3 * 4, 0));
        }
        while resident.len() > textures {
            let at = p.random.below(resident.len() as u64) as usize;
            let old = resident.swap_remove(at);
            p.free(old, 0);
        }
        let mut frame = Vec::new();
        for stream in 0..3 {
            for _ in 0..6 {
                let bytes = p.between(300, 12 * MIB);
                frame.push((p.alloc(bytes, stream), stream));
            }
        }
        for (live, stream) in frame {
            p.free(live, stream);
        }
    }
    p.finish("rendering")
}
