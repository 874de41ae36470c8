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
use crate::outcome::{Outcome, fail, note, say};

/// Replays every trace, each whatever became of those before it; the worst outcome counts.
pub fn run(options: &Replay) -> Outcome {
    let device = match open(options.device) {
        Ok(device) => device,
        Err(error) => return fail(&error),
    };
    let mut outcome = Outcome::Ok;
    for (at, path) in options.traces.iter().enumerate() {
        if at > 0 && !options.json {
            say("");
        }
        let one = match replay_one(path, &device, options) {
            Ok(report) => print(&report, options.json),
            Err(error) => fail(&error),
        };
        outcome = outcome.max(one);
    }
    outcome.max(nothing_left(device))
}

fn open(choice: DeviceChoice) -> Result<Device> {
    match choice {
        DeviceChoice::Host => Device::host(),
        DeviceChoice::Cuda(ordinal) => Device::cuda(ordinal),
        DeviceChoice::Auto => {
            let (device, reason) = Device::any()?;
            match reason {
                None => note(format_args!("device: {}", device_name(&device))),
                Some(reason) => note(format_args!(
                    "device: {}, as there is {reason}",
                    device_name(&device)
                )),
            }
            Ok(device)
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
    how = how
        .movable(options.movable.0, options.seed)
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

fn print(report: &Report, json: bool) -> Outcome {
    if json {
        say(report.to_json());
    } else {
        say(report);
    }
    if let Some(failure) = &report.failure {
        let (trace, played) = (&report.trace, Grouped(report.events));
        note(format_args!(
            "error: {trace}: stopped after {played} events: {failure}"
        ));
    }
    if report.corrupt_bytes > 0 {
        let (trace, corrupt) = (&report.trace, Bytes(report.corrupt_bytes));
        note(format_args!(
            "error: {trace}: {corrupt} corrupt: memory was handed out while in use"
        ));
    }
    if report.passed() {
        Outcome::Ok
    } else {
        Outcome::Failed
    }
}

/// Drops the device and checks that everything taken from it was given back.
fn nothing_left(device: Device) -> Outcome {
    let backend = Arc::clone(device.backend());
    drop(device);
    let left = backend.counts();
    if left == HandleCounts::default() {
        return Outcome::Ok;
    }
    note(format_args!(
        "error: leak, a defect of warpool: the device still holds {left:?}"
    ));
    Outcome::Failed
}
