//! `--large`: the samples per second of one GPU and of all, and the time of the parts of a step.

use std::thread;
use std::time::Instant;

use warpool::Device;
use warpool::collective::Comm;

#[cfg(feature = "cudarc")]
#[allow(dead_code, reason = "tests have the host's part alone")]
pub mod gpu;
pub mod math;
pub mod network;
pub mod options;

use math::{Math, Outcome};
use network::{Network, PARTS, Shape, Sums, Task};
use options::Options;

/// Number of steps whose losses are compared, and of steps that are timed.
const STEPS: usize = 30;
const TIMED: usize = 50;

/// Makes a rank's math.
type Open<M> = fn(&warpool::Stream) -> Outcome<M>;

/// The results of a training.
#[derive(Debug, Default, Clone)]
pub struct Outcomes {
    /// Losses of the whole batch, before each step.
    pub losses: Vec<f32>,
    /// Seconds per step, and per step's sums with nothing overlapping: of the slowest rank.
    pub step: f64,
    pub sums: f64,
    /// Seconds of the parts of a step, of rank 0.
    pub parts: [f64; PARTS],
}

/// Trains on these ends, one thread each: first steps whose losses are returned, then timed steps. Without
/// sums each rank keeps its own gradients.
pub fn train<M: Math>(
    ends: &[Comm],
    (shape, task): (Shape, &Task),
    sums: Option<Sums>,
    (steps, timed): (usize, usize),
    open: Open<M>,
) -> Outcome<Outcomes> {
    let devices: Vec<&Device> = ends.iter().map(Comm::device).collect();
    let rank = |comm: &Comm| -> Outcome<Outcomes> {
        let of = (comm, ends.len());
        let mut network = Network::new(of, &devices, (shape, task), sums, steps + 1, open)?;
        (0..steps).try_for_each(|_| network.step())?;
        Ok(Outcomes {
            losses: network.losses(steps)?,
            step: time(&mut network, timed, Network::step)?,
            parts: network.parts(timed)?,
            sums: time(&mut network, timed, Network::reduce)?,
        })
    };
    let outcomes = thread::scope(|scope| {
        let rank = &rank;
        let run = |end| scope.spawn(move || rank(end));
        let threads: Vec<_> = ends.iter().map(run).collect();
        let joined = threads.into_iter().map(|thread| {
            let lost = |_| Err("a rank panicked".into());
            thread.join().unwrap_or_else(lost)
        });
        joined.collect::<Outcome<Vec<_>>>()
    })?;
    let slowest = |of: fn(&Outcomes) -> f64| outcomes.iter().map(of).fold(0.0, f64::max);
    Ok(Outcomes {
        step: slowest(|it| it.step),
        sums: slowest(|it| it.sums),
        ..outcomes[0].clone()
    })
}

/// Seconds per repetition of the work.
fn time<M: Math>(
    network: &mut Network<M>,
    times: usize,
    queue: fn(&mut Network<M>) -> Outcome<()>,
) -> Outcome<f64> {
    network.together()?;
    let begun = Instant::now();
    (0..times).try_for_each(|_| queue(network))?;
    network.together()?;
    Ok(begun.elapsed().as_secs_f64() / times.max(1) as f64)
}

/// Trains on one GPU, on all of them with separate gradients, and with each setting.
pub fn compare<M: Math>(ends: &[Comm], options: &Options, open: Open<M>) -> Outcome<()> {
    let (ranks, batch) = (ends.len(), options.batch);
    let all = Shape {
        inputs: 64,
        width: 4096,
        hidden: 6,
        outputs: 16,
        batch: batch * ranks,
        batches: 4,
    };
    let task = all.task();
    println!(
        "{ranks} GPUs, {batch} samples each a step; {} MB of gradients, {} MFLOP a sample",
        all.bytes() / 1_000_000,
        6 * all.bytes() / 4 / 1_000_000
    );
    // The same network with the whole batch on one GPU, whose losses are the reference; then with one rank's
    // share, for the samples per second of one GPU.
    let whole = (one_of(all, 1), &task);
    let wanted = train(&ends[..1], whole, None, (STEPS, 0), open)?.losses;
    let share = (one_of(all, ranks), &task);
    let alone = train(&ends[..1], share, None, (3, TIMED), open)?;
    let apart = train(ends, (all, &task), None, (3, TIMED), open)?;
    line("one GPU", batch, &alone);
    line("all, without sums", batch * ranks, &apart);
    curve("one, the whole batch", &wanted);
    for (name, sums) in &options.settings() {
        let found = match train(ends, (all, &task), Some(*sums), (STEPS, TIMED), open) {
            Ok(found) => found,
            Err(why) => {
                println!("{name}: {why}");
                continue;
            }
        };
        line(name, batch * ranks, &found);
        println!(
            "  {:.3} x one GPU's; the step is {:.2} ms longer than without sums, which take {:.2} ms alone; loss \
             within {:.2} %",
            ranks as f64 * alone.step / found.step,
            1e3 * (found.step - apart.step),
            1e3 * found.sums,
            100.0 * super::apart(&wanted, &found.losses),
        );
        curve(name, &found.losses);
    }
    Ok(())
}

/// Prints the samples per second and the time of the parts of a step.
fn line(name: &str, samples: usize, found: &Outcomes) {
    let [forward, backward, sums, update] = found.parts.map(|part| 1e3 * part);
    println!(
        "{name}: {:.0} samples/s; a step {:.2} ms: forward {forward:.2}, backward {backward:.2}, sums \
         behind it {sums:.2}, update {update:.2}",
        samples as f64 / found.step,
        1e3 * found.step,
    );
}

/// The shape of a single rank that trains alone, with 1/`parts` of the batch.
fn one_of(all: Shape, parts: usize) -> Shape {
    Shape {
        batch: all.batch / parts,
        batches: all.batches * parts,
        ..all
    }
}

fn curve(name: &str, losses: &[f32]) {
    let every = losses.iter().step_by((losses.len() / 6).max(1));
    let words: Vec<String> = every.map(|loss| format!("{loss:.5}")).collect();
    println!("  loss, {name}: {}", words.join(" "));
}
