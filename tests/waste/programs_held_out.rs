//! More synthetic workloads: speculative decoding, meshes, two models, five alternating peaks.

use warpool::observe::Trace;

use super::programs::{KIB, Live, MIB, Program};

/// Speculative decoding: each conversation holds key and value blocks of random lengths for a large
/// and a small model; a tree of drafts is allocated each step, most of it is dropped, what is accepted
/// is copied into new blocks.
pub fn speculative(seed: u64, weights: u64, most: usize, steps: u64) -> Trace {
    let mut p = Program::new(seed);
    for layer in 0..40u64 {
        p.alloc(weights / 40 * (2 + layer % 3) / 3, 0);
        p.alloc(weights / 640, 1);
        p.alloc(4 * KIB * (1 + layer % 2), 0);
    }
    let mut running: Vec<Vec<Live>> = Vec::new();
    for _ in 0..steps {
        if running.len() < most && p.random.chance(1, 2) {
            let prompt = p.between(40, 6000);
            p.scratch(prompt * 9 * KIB, 0);
            running.push((0..6).map(|_| p.alloc(prompt * 1100, 0)).collect());
        }
        let mut drafts = Vec::new();
        for _ in 0..running.len().min(12) {
            let bytes = p.between(20 * KIB, 900 * KIB);
            drafts.push(p.alloc(bytes, 1));
        }
        let logits = p.alloc(1 + running.len() as u64 * 151_936 * 2, 0);
        for blocks in &mut running {
            if p.random.chance(1, 3) {
                let bytes = p.between(64, 1400) * 1100;
                blocks.push(p.alloc(bytes, 0));
            }
        }
        p.free_all(drafts, 1);
        p.free(logits, 0);
        if !running.is_empty() && p.random.chance(1, 4) {
            let at = p.random.below(running.len() as u64) as usize;
            // A long one is gathered into one block before it goes on.
            if running[at].len() > 30 {
                let all = running[at].iter().map(|live| live.1).sum();
                let whole = p.alloc(all, 0);
                let parts = std::mem::replace(&mut running[at], vec![whole]);
                p.free_all(parts, 0);
            } else if p.random.chance(1, 3) {
                let done = running.swap_remove(at);
                p.free_all(done, 0);
            }
        }
    }
    p.finish("speculative")
}

/// A simulation on a mesh that is refined and coarsened: every field is allocated anew at each change
/// of size and its old values are interpolated, one field after another; between changes each step has
/// fluxes and halos on a stream of each neighbour.
pub fn mesh(seed: u64, field: u64, fields: u64, phases: u64) -> Trace {
    let mut p = Program::new(seed);
    let mut cells = 50;
    let bytes = |cells: u64, at: u64| field * cells / 100 * (1 + at % 3) / 3 + 64 * (at % 5);
    let mut held: Vec<Live> = (0..fields).map(|at| p.alloc(bytes(cells, at), 0)).collect();
    let mut kept: Vec<Live> = Vec::new();
    for phase in 0..phases {
        cells = p.between(35, 101);
        for at in 0..fields {
            let new = p.alloc(bytes(cells, at), 0);
            p.scratch(new.1 / 9 + 77, 0);
            let old = std::mem::replace(&mut held[at as usize], new);
            p.free(old, 0);
        }
        for _ in 0..p.between(2, 8) {
            let flux: Vec<Live> = (0..3).map(|_| p.alloc(field * cells / 300, 0)).collect();
            for side in 1..4u64 {
                let halo = p.between(3 * KIB, field / 40 + 4 * KIB);
                let received = p.alloc(halo, side);
                p.scratch(halo, side);
                p.free(received, side);
            }
            p.free_all(flux, 0);
            p.scratch(8, 0);
        }
        // Particles and probes, of which some stay for several phases.
        for _ in 0..20 {
            let bytes = p.between(100, 700 * KIB);
            kept.push(p.alloc(bytes, 0));
        }
        while kept.len() > 60 + (phase % 5) as usize * 20 {
            let at = p.random.below(kept.len() as u64) as usize;
            let old = kept.swap_remove(at);
            p.free(old, 0);
        }
    }
    p.finish("mesh")
}

/// A server of two models, each on its own stream, that answers bursts for one, then for the other;
/// each keeps a cache of earlier answers' states.
pub fn two_models(seed: u64, weights: u64, bursts: u64) -> Trace {
    let mut p = Program::new(seed);
    for layer in 0..24u64 {
        for stream in 0..2 {
            p.alloc(weights / 48 + layer * 70_001 * (stream + 1), stream);
            p.alloc(6 * KIB, stream);
        }
    }
    let mut states: [Vec<Live>; 2] = Default::default();
    for burst in 0..bursts {
        let model = burst % 2;
        for _ in 0..p.between(3, 30) {
            let (batch, width) = (p.between(1, 33), weights / 4096 * (1 + model));
            let mut before = p.alloc(batch * width, model);
            for _ in 0..24 {
                let mixed = p.alloc(batch * width * 3, model);
                let next = p.alloc(batch * width, model);
                p.free(mixed, model);
                p.free(before, model);
                before = next;
            }
            let state = p.between(batch * width / 9, batch * width / 2) + 1;
            states[model as usize].push(p.alloc(state, model));
            p.free(before, model);
        }
        for other in 0..2 {
            let most = if other == model { 90 } else { 30 };
            while states[other as usize].len() > most {
                let count = states[other as usize].len() as u64;
                let at = p.random.below(count.div_ceil(2)) as usize;
                let old = states[other as usize].remove(at);
                p.free(old, other);
            }
        }
    }
    p.finish("two models")
}

/// Five streams whose peaks alternate and overlap: each works through jobs of its own, phases apart,
/// with tensors in whole rows that are freed in the order of their making, and results handed to the
/// next stream, which frees them.
pub fn five_peaks(seed: u64, peak: u64, jobs: u64) -> Trace {
    const STREAMS: u64 = 5;
    let mut p = Program::new(seed);
    let mut live: Vec<Vec<Live>> = vec![Vec::new(); STREAMS as usize];
    let mut results: Vec<(Live, u64)> = Vec::new();
    for job in 0..jobs {
        let (rising, falling) = (job % STREAMS, (job + STREAMS - 1) % STREAMS);
        let mut held = 0;
        let full = p.scaled(peak, 55);
        while held < full {
            let rows = 1 + p.random.below(64) * p.random.below(64);
            let bytes = (rows * peak / 40_000 + 300) & !255;
            let made = p.alloc(bytes, rising);
            live[rising as usize].push(made);
            held += bytes;
            p.scratch(bytes / 3 + 500, rising);
            // The one before lets go while this one grows.
            for _ in 0..2 {
                if !live[falling as usize].is_empty() {
                    let old = live[falling as usize].remove(0);
                    p.free(old, falling);
                }
            }
        }
        let rest = std::mem::take(&mut live[falling as usize]);
        p.free_all(rest, falling);
        let result = p.alloc(peak / 90 + 900 * job, rising);
        results.push((result, (rising + 1) % STREAMS));
        if results.len() > 7 {
            let (old, on) = results.remove(0);
            p.free(old, on);
        }
        p.scratch(peak / 200, (rising + 2) % STREAMS);
        let small = 16 * MIB.min(peak / 64);
        p.scratch(small, (rising + 3) % STREAMS);
    }
    p.finish("five peaks")
}
