//! `warpool replay`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use warpool::device::{DeviceKind, HandleCounts};
use warpool::observe::{
    Bytes, EventKind, Peer, ReplayOptions, Report, Trace, TraceWriter, Verify, device_name, replay,
};
use warpool::{Device, Error, Result};

use crate::args::{DeviceChoice, Replay};
use crate::outcome::{Console, Outcome};
use crate::progress::{Progress, words};

/// Replays every trace, also after a failed one; the worst outcome counts.
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
        let one = match replay_one(path, &device, options, console) {
            Ok(report) => print(&report, options.json, console),
            Err(error) => console.fail(&error),
        };
        outcome = outcome.max(one);
    }
    outcome.max(nothing_left(device, console))
}

/// Opens the device; if none was named, also returns a note about the one chosen.
pub fn open(choice: DeviceChoice) -> Result<(Device, Option<String>)> {
    match choice {
        DeviceChoice::Host => Ok((Device::host()?, None)),
        DeviceChoice::Cuda(ordinal) => Ok((Device::cuda(ordinal)?, None)),
        DeviceChoice::Auto => {
            let device = Device::any()?;
            let reason = device.no_gpu();
            let reason = reason.map_or("", |_| " (no CUDA device: `warpool info` says why)");
            let taken = format!("device: {}{reason}", device_name(&device));
            Ok((device, Some(taken)))
        }
    }
}

fn replay_one(
    path: &Path,
    device: &Device,
    options: &Replay,
    console: &mut Console<'_>,
) -> Result<Report> {
    let info = device.info();
    let trace = match path.as_os_str() == "-" {
        true => Trace::read_from("standard input", std::io::stdin().lock(), info.total_bytes)?,
        false => Trace::read(path, info.total_bytes)?,
    };
    let default = if info.kind == DeviceKind::Cuda {
        Verify::Full
    } else {
        Verify::Edges
    };
    let mut how = ReplayOptions::default().verify(options.verify.map_or(default, Verify::from));
    if let Some(cap) = options.cap {
        let bytes = cap.bytes(trace.peak_live_bytes(), info.granule);
        how = how.cap(bytes.map_err(|why| Error::invalid("cap", why))?);
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
    if let Some(note) = how_long(&trace, device, how.verify)? {
        console.note(note);
    }
    let progress = Progress::new(&trace, how.verify, 1 + usize::from(how.versus.is_some()));
    let report = replay(&trace, device, &how, &mut |done| progress.events(done));
    progress.end();
    report
}

/// Replays that are expected to take longer are announced.
const LONG: Duration = Duration::from_secs(5);

/// A note on how long full verification on the host will take, if that is long: a GPU is 1,000
/// times as fast, so users do not expect it.
fn how_long(trace: &Trace, device: &Device, verify: Verify) -> Result<Option<String>> {
    let allocs = trace
        .events()
        .iter()
        .filter(|event| event.kind == EventKind::Alloc);
    let bytes = allocs.map(|event| event.bytes);
    let bytes = bytes.fold(0, u64::saturating_add);
    if verify != Verify::Full || device.info().kind == DeviceKind::Cuda || bytes < SAMPLE {
        return Ok(None);
    }
    let sample = sample(device)?;
    let takes = sample.mul_f64(bytes as f64 / SAMPLE as f64);
    Ok((takes > LONG).then(|| {
        let (bytes, takes) = (Bytes(bytes), words(takes));
        format!(
            "note: full verification writes and reads {bytes} on the host: about {takes}; \
             --verify edges takes seconds"
        )
    }))
}

/// Bytes of the block that is verified to measure the speed.
const SAMPLE: u64 = 32 << 20;

/// The time to stamp and verify a block of [`SAMPLE`] bytes.
fn sample(device: &Device) -> Result<Duration> {
    let mut writer = TraceWriter::new(Vec::new()).map_err(unwritten)?;
    writer.allocate(1, SAMPLE, 0).map_err(unwritten)?;
    writer.free(1, SAMPLE, 0).map_err(unwritten)?;
    let text = writer.finish().map_err(unwritten)?;
    let trace = Trace::read_from("sample", text.as_slice(), u64::MAX)?;
    Ok(replay(&trace, device, &ReplayOptions::default(), &mut |_| ())?.wall)
}

fn unwritten(error: std::io::Error) -> Error {
    Error::Os {
        call: "write",
        words: error.to_string(),
    }
}

/// Prints the results of a replay, and each reason why it failed.
fn print(report: &Report, json: bool, console: &mut Console<'_>) -> Outcome {
    let printed = match json {
        true => console.say(report.to_json()),
        false => console.say(report),
    };
    for reason in report.reasons() {
        console.note(format_args!("error: {}: {reason}", report.trace));
    }
    if report.passed() {
        printed
    } else {
        printed.max(Outcome::Failed)
    }
}

/// Drops the device and checks that everything allocated from it was released.
fn nothing_left(device: Device, console: &mut Console<'_>) -> Outcome {
    // SAFETY: only its counts are read.
    let backend = Arc::clone(unsafe { device.raw_backend() });
    drop(device);
    let left = backend.counts();
    if left == HandleCounts::default() {
        return Outcome::Ok;
    }
    let left = format!("error: leak, a defect of warpool: the device still holds {left:?}");
    console.note(left).max(Outcome::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_of_more_bytes_than_64_bits_count_is_said_to_take_long() {
        let block = format!("1,0,allocate,1,{0},0\n1,0,free,1,{0},0\n", 1u64 << 63);
        let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{block}{block}");
        let trace = Trace::read_from("t", text.as_bytes(), u64::MAX).expect("reads");
        let device = Device::host().expect("the host device");
        let note = how_long(&trace, &device, Verify::Full).expect("a sample");
        assert!(note.is_some_and(|note| note.contains("full verification")));
        assert!(matches!(how_long(&trace, &device, Verify::Off), Ok(None)));
    }
}
