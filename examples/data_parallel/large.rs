//! `--large`: what one GPU and all of them train in a second, with each format of the gradients.

use std::thread;
use std::time::Instant;

use warpool::Device;
use warpool::collective::{Comm, ReducerConfig, Wire};

use super::math::{Math, Outcome};
use super::network::{Network, Shape, Task};

/// Steps whose losses are compared, and steps that are timed.
const STEPS: usize = 30;
const TIMED: usize = 20;

/// How a rank comes by its math.
type Open<M> = fn(&warpool::Stream) -> Outcome<M>;

/// What came of a training.
#[derive(Debug, Default, Clone)]
pub struct Outcomes {
    /// Of the whole batch, before each step.
    pub losses: Vec<f32>,
    /// Seconds of a step, and of its reductions with nothing beside them.
    pub step: f64,
    pub reduction: f64,
}

/// Trains on these ends, a thread each. Without a configuration each rank keeps its own gradients.
pub fn train<M: Math>(
    ends: &[Comm],
    (shape, task): (Shape, &Task),
    config: Option<ReducerConfig>,
    (steps, timed): (usize, usize),
    open: Open<M>,
) -> Outcome<Outcomes> {
    let devices: Vec<&Device> = ends.iter().map(Comm::device).collect();
    let rank = |comm: &Comm| -> Outcome<Outcomes> {
        let mut network = Network::new(
            (comm, ends.len()),
            &devices,
            (shape, task),
            config,
            steps + 1,
            open,
        )?;
        (0..steps).try_for_each(|_| network.step())?;
        let losses = network.losses(steps)?;
        let mut time = |reduces: bool| -> Outcome<f64> {
            network.together()?;
            let begun = Instant::now();
            for _ in 0..timed {
                match reduces {
                    true => network.reduce()?,
                    false => network.step()?,
                }
            }
            network.together()?;
            Ok(begun.elapsed().as_secs_f64() / timed.max(1) as f64)
        };
        Ok(Outcomes {
            losses,
            step: time(false)?,
            reduction: if config.is_some() { time(true)? } else { 0.0 },
        })
    };
    thread::scope(|scope| {
        let rank = &rank;
        let run = |end| scope.spawn(move || rank(end));
        let threads: Vec<_> = ends.iter().map(run).collect();
        let joined = threads.into_iter().map(|thread| {
            let lost = |_| Err("a rank panicked".into());
            thread.join().unwrap_or_else(lost)
        });
        let mut outcomes = joined.collect::<Outcome<Vec<_>>>()?;
        let slowest = |of: fn(&Outcomes) -> f64| outcomes.iter().map(of).fold(0.0, f64::max);
        let (step, reduction) = (slowest(|it| it.step), slowest(|it| it.reduction));
        let losses = std::mem::take(&mut outcomes[0].losses);
        Ok(Outcomes {
            losses,
            step,
            reduction,
        })
    })
}

/// What is compared: one GPU, all of them with gradients of their own, and with each format.
pub fn compare<M: Math>(ends: &[Comm], batch: usize, open: Open<M>) -> Outcome<()> {
    let ranks = ends.len();
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
        "{ranks} ranks, {batch} samples each; {} MB of gradients, {} MFLOP a sample",
        all.bytes() / 1_000_000,
        6 * all.bytes() / 4 / 1_000_000
    );
    // The same network with the whole batch on one GPU, as the curve to be followed; then with a rank's share,
    // which is what a GPU does in a second.
    let wanted = train(&ends[..1], (one_of(all, 1), &task), None, (STEPS, 0), open)?.losses;
    let alone = train(
        &ends[..1],
        (one_of(all, ranks), &task),
        None,
        (3, TIMED),
        open,
    )?;
    let beside = train(ends, (all, &task), None, (3, TIMED), open)?;
    let per_second = |samples: usize, step: f64| samples as f64 / step;
    println!("one GPU: {:.0} samples/s", per_second(batch, alone.step));
    println!(
        "all, without a sum: {:.0} samples/s; a step {:.2} ms",
        per_second(batch * ranks, beside.step),
        1e3 * beside.step
    );
    curve("one, the whole batch", &wanted);
    let plain = ReducerConfig::default();
    for (name, config) in [
        ("f32", plain.wire(Wire::F32)),
        ("f16", plain),
        ("f16 with feedback", plain.feedback(true)),
        ("bf16", plain.wire(Wire::Bf16)),
        ("e4m3 with feedback", plain.wire(Wire::E4m3).feedback(true)),
    ] {
        let found = match train(ends, (all, &task), Some(config), (STEPS, TIMED), open) {
            Ok(found) => found,
            Err(why) => {
                println!("{name}: {why}");
                return Ok(());
            }
        };
        let hidden = (beside.step + found.reduction - found.step) / found.reduction;
        println!(
            "{name}: {:.0} samples/s, {:.2} x one GPU's; a step {:.2} ms, the reduction alone {:.2} ms, of which \
             {:.0} % beside the backward pass; loss within {:.2} %",
            per_second(batch * ranks, found.step),
            per_second(batch * ranks, found.step) / per_second(batch, alone.step),
            1e3 * found.step,
            1e3 * found.reduction,
            100.0 * hidden.clamp(0.0, 1.0),
            100.0 * super::apart(&wanted, &found.losses),
        );
        curve(name, &found.losses);
    }
    Ok(())
}

/// The shape of one rank that trains alone, with so much of the batch.
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
