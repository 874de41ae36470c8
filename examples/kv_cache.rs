//! Key-value caches of sequences that grow token by token, in three ways: buffers that grow in place, growth
//! by copying, and space for the longest sequence from the start.
//!
//! `cargo run --release --example kv_cache`
//!
//! Serves 64 sequences of random lengths, 16 at a time; each step adds 64 tokens to each running sequence.
//! Every element is read back when its sequence ends. Runs on the GPU, or on the host device if there is
//! none.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use warpool::half::f16;
use warpool::observe::Bytes;
use warpool::{Device, GrowBuf, Pool, PoolBuf, PoolConfig, Result, Stream, View};

const SEQUENCES: u32 = 64;
const AT_ONCE: usize = 16;

/// Tokens added per step, and the most tokens of a sequence.
const CHUNK: usize = 64;
const MOST: usize = 4096;

/// Elements per token: keys and values of 4 layers, 2 heads of 128.
const TOKEN: usize = 2 * 4 * 2 * 128;

/// The cache of one sequence.
trait Cache {
    /// Adds elements with the value `value`; returns the bytes copied for it.
    fn add(&mut self, pool: &Pool, stream: &Stream, elements: usize, value: f16) -> Result<usize>;

    fn view(&self) -> View<'_, f16>;
}

/// Grows in place.
impl Cache for GrowBuf<f16> {
    fn add(&mut self, _: &Pool, stream: &Stream, elements: usize, value: f16) -> Result<usize> {
        let before = self.len();
        self.resize(before + elements)?;
        let new = self.view_mut().slice(before..)?;
        new.fill(stream, value)?;
        Ok(0)
    }

    fn view(&self) -> View<'_, f16> {
        self.view()
    }
}

/// Each step allocates a new buffer and copies the old one to its front.
impl Cache for PoolBuf<f16> {
    fn add(&mut self, pool: &Pool, stream: &Stream, elements: usize, value: f16) -> Result<usize> {
        let before = self.len();
        let mut longer = pool.alloc_typed(stream, before + elements)?;
        let (old, new) = longer.view_mut().split_at(before)?;
        old.copy_from(stream, &*self)?;
        new.fill(stream, value)?;
        *self = longer;
        Ok(before * size_of::<f16>())
    }

    fn view(&self) -> View<'_, f16> {
        self.view()
    }
}

/// Has space for the longest sequence.
struct Fixed {
    room: PoolBuf<f16>,
    len: usize,
}

impl Cache for Fixed {
    fn add(&mut self, _: &Pool, stream: &Stream, elements: usize, value: f16) -> Result<usize> {
        let to = self.len + elements;
        let new = self.room.slice_mut(self.len..to)?;
        new.fill(stream, value)?;
        self.len = to;
        Ok(0)
    }

    fn view(&self) -> View<'_, f16> {
        let room = self.room.view();
        room.slice(..self.len).unwrap_or(room)
    }
}

/// Makes a cache.
type Make = fn(&Pool, &Stream) -> Result<Box<dyn Cache>>;

/// Number of tokens of each sequence: between 64 and 128, or between 2048 and 4096, equally often.
fn lengths() -> VecDeque<usize> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let length = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let part = (state >> 11) as f64 / (1u64 << 53) as f64;
        (64.0 * 2f64.powf(6.0 * part)) as usize
    };
    (0..SEQUENCES).map(length).collect()
}

/// A value that differs between a sequence's steps and between adjacent sequences. Its two bytes are equal,
/// so that writing it is one fill.
fn value(sequence: u32, step: usize) -> f16 {
    let byte = (sequence as usize * 37 + step) % 120;
    f16::from_bits((byte * 257) as u16)
}

struct Sequence {
    number: u32,
    tokens: usize,
    done: usize,
    cache: Box<dyn Cache>,
}

impl Sequence {
    /// Number of elements that differ from what was written.
    fn wrong(&self, stream: &Stream) -> Result<usize> {
        let elements = self.cache.view().download(stream)?;
        let steps = elements.chunks(CHUNK * TOKEN).enumerate();
        let wrong = steps.map(|(step, part)| {
            let right = value(self.number, step);
            part.iter().filter(|&&element| element != right).count()
        });
        Ok(wrong.sum::<usize>() + self.tokens * TOKEN - elements.len())
    }
}

#[derive(Default)]
struct Served {
    /// Most bytes of tokens at once.
    needed: usize,
    held: u64,
    copied: usize,
    took: Duration,
    wrong: usize,
}

fn serve(device: &Device, make: Make) -> Result<Served> {
    let pool = Pool::new(device, PoolConfig::default())?;
    let stream = device.stream()?;
    let (mut waiting, mut under_way) = (lengths(), Vec::<Sequence>::new());
    let mut served = Served::default();
    let mut next = 0;
    while !(waiting.is_empty() && under_way.is_empty()) {
        let begin = Instant::now();
        while under_way.len() < AT_ONCE
            && let Some(tokens) = waiting.pop_front()
        {
            let (number, cache) = (next, make(&pool, &stream)?);
            under_way.push(Sequence {
                number,
                tokens,
                done: 0,
                cache,
            });
            next += 1;
        }
        for it in &mut under_way {
            let tokens = CHUNK.min(it.tokens - it.done);
            let value = value(it.number, it.done / CHUNK);
            served.copied += it.cache.add(&pool, &stream, tokens * TOKEN, value)?;
            it.done += tokens;
        }
        stream.synchronize()?;
        served.took += begin.elapsed();
        let tokens: usize = under_way.iter().map(|it| it.done).sum();
        served.needed = served.needed.max(tokens * TOKEN * size_of::<f16>());
        let over = |it: &mut Sequence| it.done == it.tokens;
        for ended in under_way.extract_if(.., over) {
            served.wrong += ended.wrong(&stream)?;
        }
    }
    served.held = pool.stats().reserved.peak;
    Ok(served)
}

fn main() -> Result<()> {
    let device = Device::any()?;
    println!("device: {}", device.info().name);
    println!("{SEQUENCES} sequences of up to {MOST} tokens, {AT_ONCE} at a time\n");
    let ways: [(&str, Make); 3] = [
        ("growing buffers", |pool, stream| {
            Ok(Box::new(pool.grow_buf::<f16>(stream, MOST * TOKEN)?))
        }),
        ("concatenation", |pool, stream| {
            Ok(Box::new(pool.alloc_typed::<f16>(stream, 0)?))
        }),
        ("fixed maximum", |pool, stream| {
            let room = pool.alloc_typed(stream, MOST * TOKEN)?;
            Ok(Box::new(Fixed { room, len: 0 }))
        }),
    ];
    println!(
        "{:16}{:>12}{:>8}{:>12}{:>12}",
        "", "peak held", "ratio", "copied", "time"
    );
    let mut wrong = 0;
    for (name, make) in ways {
        let served = serve(&device, make)?;
        let (held, copied) = (Bytes(served.held), Bytes(served.copied as u64));
        let ratio = served.held as f64 / served.needed as f64;
        let ms = served.took.as_secs_f64() * 1e3;
        println!(
            "{name:16}{:>12}{ratio:>8.2}{:>12}{ms:>9.1} ms",
            held.to_string(),
            copied.to_string()
        );
        wrong += served.wrong;
    }
    println!("\nratio: to the most bytes of tokens at once; {wrong} elements read back wrong");
    assert_eq!(wrong, 0, "every element reads back as it was written");
    Ok(())
}
