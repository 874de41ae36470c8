//! `warpool replay`.

use std::path::Path;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use warpool::device::{DeviceKind, HandleCounts};
use warpool::observe::{
    Bytes, Grouped, Peer, ReplayOptions, Report, Trace, Verify, device_name, replay,
};
use warpool::{Device, Result};

use crate::args::{DeviceChoice, Replay};
use crate::outcome::{Console, Outcome};
use crate::seeded::seeded;

/// Replays every trace, each whatever became of those before it; the worst outcome counts.
pub fn run(options: &Replay, console: &mut Console<'_>) -> Outcome {
    match open(options.device) {
        Ok((device, None)) => run_on(device, options, console),
        Ok((device, Some(taken))) => {
            let noted = console.note(taken);
            noted.max(run_on(device, options, console))
        }
        Err(error) => console.fail(&error),
    }
}

/// Replays every trace on this device.
pub fn run_on(device: Device, options: &Replay, console: &mut Console<'_>) -> Outcome {
    let mut outcome = Outcome::Ok;
    for (at, path) in options.traces.iter().enumerate() {
        if at > 0 && !options.json {
            outcome = outcome.max(console.say(""));
        }
        let one = match replay_one(path, &device, options) {
            Ok(report) => print(&report, options.json, console),
            Err(error) => console.fail(&error),
        };
        outcome = match seeded!("outcome-of-the-last-trace") {
            true => one,
            false => outcome.max(one),
        };
    }
    outcome.max(nothing_left(device, console))
}

/// The device asked for, and where none was named what is to be said of the one taken.
fn open(choice: DeviceChoice) -> Result<(Device, Option<String>)> {
    match choice {
        DeviceChoice::Host => Ok((Device::host()?, None)),
        DeviceChoice::Cuda(ordinal) => Ok((Device::cuda(ordinal)?, None)),
        DeviceChoice::Auto => {
            let device = Device::any()?;
            let reason = device.no_gpu();
            let reason = reason.map_or_else(String::new, |why| format!(", as there is {why}"));
            let taken = format!("device: {}{reason}", device_name(&device));
            Ok((device, Some(taken)))
        }
    }
}

fn replay_one(path: &Path, device: &Device, options: &Replay) -> Result<Report> {
    let info = device.info();
    let trace = Trace::read(path, info.total_bytes)?;
    let default = if info.kind == DeviceKind::Cuda {
        Verify::Full
    } else {
        Verify::Edges
    };
    let mut how = ReplayOptions::default().verify(options.verify.map_or(default, Verify::from));
    if let Some(cap) = options.cap {
        how = how.cap(cap.bytes(trace.peak_live_bytes, info.granule));
    }
    let seed = match seeded!("seed-not-passed-on") {
        true => 1,
        false => options.seed,
    };
    how = how
        .movable(options.movable.0, seed)
        .remap(!options.no_remap);
    if let Some(part) = options.slack {
        how = how.slack(part.0);
    }
    if let Some(peer) = options.versus {
        how = how.versus(Peer::from(peer));
    }
    let plays = 1 + u64::from(how.versus.is_some());
    let bar = progress_bar(plays * trace.events.len() as u64, &trace.name);
    let report = replay(&trace, device, &how, &mut |played| bar.set_position(played));
    bar.finish_and_clear();
    report
}

/// A bar on standard error, drawn only where that is a terminal.
fn progress_bar(events: u64, name: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(events), ProgressDrawTarget::stderr());
    if let Ok(style) =
        ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} events, {eta} left")
    {
        bar.set_style(style);
    }
    bar.set_message(name.to_owned());
    bar
}

/// Prints what a replay found, and each reason why it failed.
fn print(report: &Report, json: bool, console: &mut Console<'_>) -> Outcome {
    let printed = match json {
        true => console.say(report.to_json()),
        false => console.say(report),
    };
    let trace = &report.trace;
    if let Some(failure) = &report.failure {
        let played = Grouped(report.events);
        console.note(format_args!(
            "error: {trace}: stopped after {played} events: {failure}"
        ));
    }
    if report.corrupt_bytes > 0 {
        let corrupt = Bytes(report.corrupt_bytes);
        console.note(format_args!(
            "error: {trace}: {corrupt} corrupt: memory was handed out while in use"
        ));
    }
    if !report.verified_what_it_owes() {
        let (verified, owed) = (Bytes(report.verified_bytes), Bytes(report.owed_bytes));
        console.note(format_args!(
            "error: {trace}: {verified} verified of the {owed} owed: the check is incomplete"
        ));
    }
    if report.passed() {
        printed
    } else {
        printed.max(Outcome::Failed)
    }
}

/// Drops the device and checks that everything taken from it was given back.
fn nothing_left(device: Device, console: &mut Console<'_>) -> Outcome {
    // SAFETY: it is asked for its counts alone.
    let backend = Arc::clone(unsafe { device.raw_backend() });
    drop(device);
    let left = backend.counts();
    if left == HandleCounts::default() {
        return Outcome::Ok;
    }
    let left = format!("error: leak, a defect of warpool: the device still holds {left:?}");
    console.note(left).max(Outcome::Failed)
}
