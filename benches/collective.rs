//! Collectives between all GPUs of the machine, a process each: bus bandwidth of f32 on pool memory and on
//! NCCL's own, of f16, and of f32 gradients reduced in f16, casts included; the casts alone, which are to run
//! beside the reduction; then 1,000 gradients of 404 MB. Buckets are named by the first, which is the smallest.
//!
//! `cargo bench --bench collective`. `WARPOOL_BENCH_POWERS=30` has that power of two of bytes alone, or several by
//! commas, and not the 1,000 gradients: benches/collective-ctas.sh compares NCCL's own settings so. A line a figure,
//! as JSON, from rank 0. Bus bandwidth of an all-reduce is
//! 2 (n - 1) / n of the bytes of its elements over its time, as nccl-tests count it.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use warpool::collective::{Comm, Op, Ranks, Reduce, Reducer, ReducerConfig, Wire};
use warpool::convert::{Rounding, convert};
use warpool::half::f16;
use warpool::{Device, Pool, PoolConfig, Result, Stream, ViewMut};

const PATIENCE: Duration = Duration::from_secs(60);

/// Says that a process is one of the ranks.
const RANK: &str = "--rank";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let outcome = match arguments.iter().position(|argument| argument == RANK) {
        Some(at) => rank(&arguments[at + 1..]),
        None => all(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts a process a GPU and waits for all.
fn all() -> Result<()> {
    let count = Device::cuda_count().unwrap_or(0);
    if count < 2 {
        println!("skipped: {count} GPUs, two or more are needed");
        return Ok(());
    }
    let place = std::env::temp_dir().join(format!("warpool-ranks-{}", std::process::id()));
    let place = format!("file://{}", place.display());
    let own = std::env::current_exe().unwrap_or_default();
    let start = |rank: u32| {
        let words = [
            RANK.to_owned(),
            rank.to_string(),
            count.to_string(),
            place.clone(),
        ];
        Command::new(&own).args(words).spawn()
    };
    let children: Vec<_> = (0..count).map(start).collect();
    for (rank, child) in children.into_iter().enumerate() {
        let ended = child.and_then(|mut child| child.wait());
        if !matches!(&ended, Ok(status) if status.success()) {
            eprintln!("rank {rank}: {ended:?}");
        }
    }
    Ok(())
}

/// What a timing asks of its work.
#[derive(PartialEq, Eq, Clone, Copy)]
enum Part {
    Queue,
    Wait,
}

/// A rank's device, its pool and its stream.
struct Bench {
    comm: Comm,
    pool: Pool,
    stream: Stream,
}

fn rank(words: &[String]) -> Result<()> {
    let number = |at: usize| {
        words
            .get(at)
            .and_then(|word| word.parse().ok())
            .unwrap_or(0)
    };
    let ranks = Ranks {
        rank: number(0),
        size: number(1),
        local_rank: number(0),
        meet: words.get(2).cloned().unwrap_or_default(),
    };
    let device = Device::cuda(ranks.local_rank)?;
    let comm = Comm::nccl(&device, &ranks, PATIENCE)?;
    let pool = Pool::new(&device, PoolConfig::default())?;
    let stream = device.stream()?;
    let bench = Bench { comm, pool, stream };
    let asked = std::env::var("WARPOOL_BENCH_POWERS").ok();
    let powers = asked.as_deref().unwrap_or("16,20,22,24,26,28,30,32");
    for power in powers
        .split(',')
        .filter_map(|power| power.parse::<u32>().ok())
    {
        bench.of_size(1 << power.min(40))?;
    }
    match asked {
        Some(_) => Ok(()),
        None => bench.of_many(),
    }
}

impl Bench {
    /// Milliseconds of one of `work`, over as many as take a fifth of a second, the ranks together.
    fn time(&self, bytes: u64, mut work: impl FnMut(&Self, Part) -> Result<()>) -> Result<f64> {
        let rounds = (20_000_000_000 / bytes.max(10_000_000)).clamp(5, 200) as u32;
        for _ in 0..3 {
            work(self, Part::Queue)?;
        }
        work(self, Part::Wait)?;
        self.together()?;
        let start = Instant::now();
        for _ in 0..rounds {
            work(self, Part::Queue)?;
        }
        work(self, Part::Wait)?;
        Ok(start.elapsed().as_secs_f64() * 1e3 / f64::from(rounds))
    }

    /// One all-reduce of the elements, or the wait for all.
    fn sum<T: Reduce>(&self, part: Part, data: ViewMut<'_, T>) -> Result<()> {
        match part {
            Part::Queue => self.comm.on(&self.stream).all_reduce(data, Op::Sum).run(),
            Part::Wait => self.stream.synchronize(),
        }
    }

    fn together(&self) -> Result<()> {
        let mut one = self.pool.alloc_zeroed::<u32>(&self.stream, 1)?;
        self.comm
            .on(&self.stream)
            .all_reduce(&mut one, Op::Sum)
            .run()?;
        self.stream.synchronize()
    }

    fn line(&self, what: &str, bytes: u64, ms: f64) {
        let ranks = f64::from(self.comm.size());
        let bus = 2.0 * (ranks - 1.0) / ranks * bytes as f64 / ms / 1e6;
        if self.comm.rank() == 0 {
            println!(
                "{{\"what\": \"{what}\", \"gpus\": {ranks}, \"bytes\": {bytes}, \"ms\": {ms:.4}, \"bus_gb_s\": {bus:.1}}}"
            );
        }
    }

    fn of_size(&self, bytes: u64) -> Result<()> {
        let len = (bytes / 4) as usize;
        let mut data = self.pool.alloc_zeroed::<f32>(&self.stream, len)?;
        let ms = self.time(bytes, |bench, part| bench.sum(part, data.view_mut()))?;
        self.line("f32, pool memory", bytes, ms);
        drop(data);
        if let Some(own) = NcclMemory::of(bytes) {
            let ms = self.time(bytes, |bench, part| {
                // SAFETY: as many bytes of the device, which nothing else uses, until `own` is dropped behind
                // the stream's end.
                let view = unsafe { ViewMut::<f32>::from_raw(own.0, len)? };
                bench.sum(part, view)
            })?;
            self.line("f32, ncclMemAlloc", bytes, ms);
            self.stream.synchronize()?;
        }
        let mut halves = self.pool.alloc_zeroed::<f16>(&self.stream, len)?;
        let ms = self.time(bytes, |bench, part| bench.sum(part, halves.view_mut()))?;
        // Of the gradients that the codes stand for, so that the lines compare.
        self.line("f16 alone, bytes of f32", bytes, ms);
        let mut data = self.pool.alloc_zeroed::<f32>(&self.stream, len)?;
        let ms = self.time(bytes, |bench, part| {
            if part == Part::Wait {
                return bench.stream.synchronize();
            }
            convert(&bench.stream, &data, &mut halves, Rounding::Nearest)?;
            convert(&bench.stream, &halves, &mut data, Rounding::Nearest)
        })?;
        self.line("casts alone, bytes of f32", bytes, ms);
        drop((data, halves));
        for (what, wire, feedback) in [
            ("f32 in f16, casts included", Wire::F16, false),
            ("with feedback", Wire::F16, true),
            ("f32 in e4m3, all included", Wire::E4m3, false),
            ("e4m3 with feedback", Wire::E4m3, true),
        ] {
            for bucket in [8u64 << 20, 32 << 20, 128 << 20] {
                if bucket != (32 << 20) && bucket > bytes {
                    continue;
                }
                let config = ReducerConfig::default()
                    .wire(wire)
                    .feedback(feedback)
                    .bucket_bytes(bucket);
                let ms = self.reduced(&[len], config)?;
                self.line(
                    &format!("{what}, buckets of {} MiB", bucket >> 20),
                    bytes,
                    ms,
                );
            }
        }
        Ok(())
    }

    /// Milliseconds of a step of gradients that are all ready.
    fn reduced(&self, lens: &[usize], config: ReducerConfig) -> Result<f64> {
        let mut reducer = Reducer::new(&self.pool, &self.stream, &self.comm, lens, config)?;
        let bytes = lens.iter().map(|&len| 4 * len as u64).sum();
        let mut last = [0f32];
        let ms = self.time(bytes, |bench, part| {
            if part == Part::Wait {
                // Behind all of the last step.
                last.copy_from_slice(&reducer.largest().download(&bench.stream)?);
                return Ok(());
            }
            (0..lens.len()).try_for_each(|tensor| reducer.ready(tensor))?;
            reducer.finish()
        })?;
        if !last[0].is_finite() {
            eprintln!("the gradients are not finite");
        }
        Ok(ms)
    }

    /// 1,000 gradients of 404 MB in all, of the sizes that networks have: many small, few large.
    fn of_many(&self) -> Result<()> {
        let lens: Vec<usize> = (0..1000)
            .map(|at| match at % 10 {
                0 => 900_000,
                1..=3 => 30_000,
                _ => 3_333,
            })
            .collect();
        let bytes = lens.iter().map(|&len| 4 * len as u64).sum();
        let wires = [
            ("f32", Wire::F32),
            ("f16", Wire::F16),
            ("bf16", Wire::Bf16),
            ("e4m3", Wire::E4m3),
        ];
        for (what, wire) in wires {
            for feedback in [false, true] {
                let config = ReducerConfig::default().wire(wire).feedback(feedback);
                let ms = self.reduced(&lens, config)?;
                let with = if feedback { " with feedback" } else { "" };
                self.line(&format!("1000 gradients in {what}{with}"), bytes, ms);
            }
        }
        Ok(())
    }
}

/// Device memory of NCCL's own, given back when dropped.
struct NcclMemory(u64);

/// A call of the library that is open.
fn symbol(name: &std::ffi::CStr) -> Option<*mut std::ffi::c_void> {
    // SAFETY: C strings; a library that is open is found by its name, and no other is opened.
    unsafe {
        let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
        let library = libc::dlopen(c"libnccl.so.2".as_ptr(), flags);
        let found = libc::dlsym(library, name.as_ptr());
        (!library.is_null() && !found.is_null()).then_some(found)
    }
}

impl NcclMemory {
    fn of(bytes: u64) -> Option<Self> {
        let found = symbol(c"ncclMemAlloc")?;
        let mut addr = 0u64;
        // SAFETY: the call has this signature, and writes one address.
        let code = unsafe {
            let alloc: extern "C" fn(*mut u64, usize) -> i32 = std::mem::transmute(found);
            alloc(&raw mut addr, bytes as usize)
        };
        (code == 0).then_some(Self(addr))
    }
}

impl Drop for NcclMemory {
    fn drop(&mut self) {
        if let Some(found) = symbol(c"ncclMemFree") {
            // SAFETY: the call has this signature; the memory is its own.
            unsafe {
                let free: extern "C" fn(u64) -> i32 = std::mem::transmute(found);
                free(self.0);
            }
        }
    }
}
