//! Trains a network of residual blocks on images of digits, and shows the cost of each way to save memory:
//! f16 with f32 masters and a loss scale, gradients summed over micro-batches, recomputing activations
//! instead of keeping them, and keeping activations on the host.
//!
//! ```text
//! cargo run --release --manifest-path examples/training/Cargo.toml [-- --device host --steps 100]
//! ```
//!
//! Every way starts from the same weights and sees the same images, so their losses must agree: to the bit if
//! only the memory differs, otherwise the means of ten steps up to rounding, which grows with every step. The
//! example fails if they do not agree, or if the peak differs from the plan's prediction.

mod data;
mod memory;
mod network;
mod real;
mod train;

use data::Digits;
use network::Shape;
use train::{Outcome, Way, train};
use warpool::half::f16;
use warpool::{Device, recompute};

/// Functions generated from `kernels.cu`.
mod kernels {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

const SHAPE: Shape = Shape {
    width: 32,
    blocks: 24,
    rows: 512,
};
const IMAGE_ROWS: usize = 1536;

/// The value after `--name`.
fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = match option("--device").as_deref() {
        Some("host") => Device::host()?,
        _ => Device::any()?,
    };
    let steps = option("--steps").map_or(Ok(100), |steps| steps.parse())?;
    let (learnt, rest) = Digits::load(IMAGE_ROWS)?;
    println!(
        "{}, {} blocks of {} columns, batches of {} images, {steps} steps",
        device.info().name,
        SHAPE.blocks,
        SHAPE.width,
        SHAPE.rows
    );
    println!(
        "{:<34} {:>10} {:>8} {:>8} {:>9} {:>8} {:>8} {:>6}",
        "", "peak, KiB", "of plan", "spilled", "forwards", "ms/step", "loss", "right"
    );

    let image_bytes = (SHAPE.rows * data::PIXELS * 4) as u64;
    let stages = SHAPE.stages(4);
    let kept = recompute::keep_every(&stages, image_bytes, 1)?;
    let third = recompute::plan(&stages, image_bytes, kept.peak_bytes / 3)?;
    let fifth = recompute::keep_every(&stages, image_bytes, 5)?;
    let parts = Shape {
        rows: SHAPE.rows / 4,
        ..SHAPE
    };
    let few = recompute::keep_every(&parts.stages(4), image_bytes / 4, 1)?;
    let halves = recompute::keep_every(&SHAPE.stages(2), image_bytes / 2, 1)?;
    let all = recompute::plan(
        &parts.stages(2),
        image_bytes / 8,
        recompute::least_budget(&parts.stages(2), image_bytes / 8)? * 2,
    )?;

    let way = |name, shape, plan| Way {
        name,
        shape,
        plan,
        parts: SHAPE.rows / shape.rows,
        steps,
        limit: None,
    };
    let mut shown = Vec::new();
    let mut run = |outcome: warpool::Result<Outcome>| -> warpool::Result<Outcome> {
        let outcome = outcome?;
        println!("{outcome}");
        shown.push(outcome.clone());
        Ok(outcome)
    };
    let plain = run(train::<f32>(
        &device,
        &way("f32, everything kept", SHAPE, kept.clone()),
        &learnt,
        &rest,
    ))?;
    let spilled = Way {
        limit: Some(device.info().granule),
        ..way("  what has no room on the host", SHAPE, kept)
    };
    let spilled = run(train::<f32>(&device, &spilled, &learnt, &rest))?;
    let planned = run(train::<f32>(
        &device,
        &way("  a third of the memory", SHAPE, third),
        &learnt,
        &rest,
    ))?;
    let every = run(train::<f32>(
        &device,
        &way("  every fifth activation", SHAPE, fifth),
        &learnt,
        &rest,
    ))?;
    let added = run(train::<f32>(
        &device,
        &way("  four micro-batches", parts, few),
        &learnt,
        &rest,
    ))?;
    let half = run(train::<f16>(
        &device,
        &way("f16, f32 masters, a loss scale", SHAPE, halves),
        &learnt,
        &rest,
    ))?;
    let least = run(train::<f16>(
        &device,
        &way("  four micro-batches, made again", parts, all),
        &learnt,
        &rest,
    ))?;

    assert_eq!(
        plain.losses, planned.losses,
        "made again, activations are the same bits"
    );
    assert_eq!(
        plain.losses, every.losses,
        "made again, activations are the same bits"
    );
    assert_eq!(plain.losses, spilled.losses, "on the host they were kept");
    for (other, within) in [(&added, 0.01), (&half, 0.05), (&least, 0.05)] {
        for (at, (a, b)) in plain.smooth().zip(other.smooth()).enumerate() {
            assert!(
                (a - b).abs() <= within * a,
                "{}: steps from {}: {b}, not {a}",
                other.name,
                10 * at
            );
        }
    }
    for outcome in &shown {
        assert!(
            outcome.peak_bytes <= outcome.planned_bytes + outcome.planned_bytes / 20,
            "{}: more than the plan said",
            outcome.name
        );
    }
    // In less memory than they need, some must have gone.
    assert_eq!(
        spilled.spilled > 0,
        plain.peak_bytes > device.info().granule
    );
    assert!(spilled.peak_bytes <= device.info().granule);
    assert!(planned.peak_bytes * 2 < plain.peak_bytes && least.peak_bytes * 4 < plain.peak_bytes);
    println!("the losses of all agree");
    Ok(())
}
