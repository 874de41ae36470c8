//! `warpool bench`: measures the kernels of this build on the user's GPU, in comparison with a
//! copy.

use std::fmt::Display;

use warpool::Device;
use warpool::device::DeviceKind;
use warpool::driver::build_info;

use crate::args::Bench;
use crate::outcome::{Console, Outcome};
use crate::replay::open;

#[path = "bench/kernels.rs"]
mod kernels;

/// Measures, prints one line per kernel, and lists slow ones; these do not make the command fail.
pub fn run(options: &Bench, console: &mut Console<'_>) -> Outcome {
    let measured = open(options.device).and_then(|(device, _)| {
        let lines = kernels::measured(&device, options.quick)?;
        Ok((device, lines))
    });
    match measured {
        Ok((device, lines)) => print(&device, &lines, console),
        Err(error) => console.fail(&error),
    }
}

/// The measurement of one kernel.
struct Line {
    name: String,
    bytes: f64,
    ns: f64,
    wanted: f64,
}

impl Line {
    /// Bytes per nanosecond, which is GB/s.
    fn speed(&self) -> f64 {
        self.bytes / self.ns
    }
}

fn print(device: &Device, lines: &[Line], console: &mut Console<'_>) -> Outcome {
    let info = device.info();
    let (major, minor) = info.capability;
    let mut outcome = console.say(format_args!(
        "{}, compute capability {major}.{minor}, {} multiprocessors",
        info.name, info.processors
    ));
    let mut say = |line: &dyn Display| outcome = outcome.max(console.say(line));
    say(&format_args!(
        "{:<32} {:>9} {:>8} {:>8} {:>7}",
        "", "us", "GB/s", "of copy", "wanted"
    ));
    let copy = lines[0].speed();
    for line in lines {
        let Line {
            name, ns, wanted, ..
        } = line;
        let (us, speed) = (ns / 1000.0, line.speed());
        say(&format_args!(
            "{name:<32} {us:>9.2} {speed:>8.1} {:>8.3} {wanted:>7.2}",
            speed / copy
        ));
    }
    if info.kind != DeviceKind::Cuda {
        if let Some(reason) = device.no_gpu() {
            say(&reason);
        }
        say(&"the host device is for correctness: its times say nothing about a GPU");
        return outcome;
    }
    let off = off(lines, info.capability, build_info::kernels().architectures);
    for line in &off {
        say(&format_args!("off: {line}"));
    }
    if off.is_empty() {
        say(&"nothing is off");
    }
    outcome
}

/// GPUs beside a processor, which run no other's machine code, nor another theirs.
const OWN: [u32; 2] = [87, 88];

/// Whether a GPU of this compute capability, times 10, runs machine code of this architecture: `90`, `90a`.
fn runs(gpu: u32, code: &str) -> bool {
    let number = code.trim_end_matches(char::is_alphabetic).parse::<u32>();
    let is_own = code.ends_with('a') || OWN.contains(&gpu);
    number.is_ok_and(|number| match is_own || OWN.contains(&number) {
        true => number == gpu,
        false => number / 10 == gpu / 10 && number <= gpu,
    })
}

/// The problems on a GPU of this compute capability; the first of `lines` is the copy.
fn off(lines: &[Line], (major, minor): (u32, u32), architectures: &str) -> Vec<String> {
    let names = architectures.split(',');
    let mut code = names.filter_map(|name| name.strip_prefix("sm_"));
    let mut off = Vec::new();
    if !code.any(|code| runs(10 * major + minor, code)) {
        off.push(format!(
            "this build has no machine code for compute capability {major}.{minor}: the driver compiled \
             its PTX ({architectures})"
        ));
    }
    let copy = lines.first().map_or(f64::NAN, Line::speed);
    for line in lines {
        let part = line.speed() / copy;
        if part < line.wanted {
            off.push(format!(
                "{}: {part:.3} of a copy, wanted {:.2}",
                line.name, line.wanted
            ));
        }
    }
    off
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, part: f64, wanted: f64) -> Line {
        let (name, bytes, ns) = (name.to_owned(), 4000.0 * part, 1.0);
        Line {
            name,
            bytes,
            ns,
            wanted,
        }
    }

    #[test]
    fn what_is_slower_than_wanted_is_off_and_nothing_else() {
        let lines = [
            line("copy", 1.0, 0.0),
            line("good", 0.951, 0.95),
            line("slow", 0.94, 0.95),
        ];
        let said = off(&lines, (9, 0), "sm_75,sm_90,compute_90");
        assert_eq!(said, ["slow: 0.940 of a copy, wanted 0.95"]);
    }

    #[test]
    fn a_gpu_whose_code_the_driver_had_to_make_is_off() {
        let runs =
            |capability| off(&[], capability, "sm_80,sm_89,sm_90a,sm_120,compute_80").is_empty();
        for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0), (12, 1)] {
            assert!(runs(capability), "{capability:?}");
        }
        for capability in [(7, 5), (10, 0), (11, 0), (13, 0)] {
            assert!(!runs(capability), "{capability:?}");
        }
    }

    #[test]
    fn code_that_runs_on_one_architecture_alone_is_taken_for_no_others() {
        let runs = |capability, code| off(&[], capability, code).is_empty();
        // Orin has machine code of its own, as 8.8 has; with `a`, an architecture's own instructions.
        for (major, minor, code) in [
            (8, 7, "sm_80,sm_86"),
            (8, 8, "sm_80,sm_87"),
            (8, 9, "sm_87,sm_88"),
            (10, 3, "sm_100a"),
        ] {
            assert!(!runs((major, minor), code), "{major}.{minor} and {code}");
        }
        for (major, minor, code) in [
            (8, 7, "sm_87"),
            (8, 8, "sm_80,sm_88"),
            (10, 3, "sm_103a"),
            (10, 3, "sm_100f"),
        ] {
            assert!(runs((major, minor), code), "{major}.{minor} and {code}");
        }
    }
}
