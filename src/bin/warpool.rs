//! The command line: replays allocation traces, and describes this machine and this build.
//!
//! Exit codes: 0: success. 1: a replay failed (corrupt bytes, a request that did not fit, a driver
//! error). 2: the input was invalid (arguments, a malformed trace, a missing device), or the output
//! could not be written.

#[path = "warpool/args.rs"]
mod args;
#[cfg(feature = "convert")]
#[path = "warpool/bench.rs"]
mod bench;
#[path = "warpool/benchmarks.rs"]
mod benchmarks;
#[path = "warpool/cap.rs"]
mod cap;
#[cfg(test)]
#[path = "warpool/figures.rs"]
mod figures;
#[path = "warpool/info.rs"]
mod info;
#[path = "warpool/outcome.rs"]
mod outcome;
#[path = "warpool/plot.rs"]
mod plot;
#[path = "warpool/progress.rs"]
mod progress;
#[path = "warpool/record.rs"]
mod record;
#[path = "warpool/replay.rs"]
mod replay;
#[cfg(test)]
#[path = "../../tests/common/watched.rs"]
#[allow(dead_code, reason = "shared with the suites")]
mod watched;

use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use clap::Parser;

use crate::outcome::Console;

fn main() -> ExitCode {
    let (mut results, mut notes) = (stdout(), stderr());
    let console = &mut Console::new(&mut results, &mut notes);
    let command = match args::Args::try_parse() {
        Ok(args) => args.command,
        Err(error) if error.use_stderr() => error.exit(),
        // `--help` or `--version`.
        Err(asked) => {
            return console
                .seen(asked.print().and_then(|()| stdout().flush()))
                .into();
        }
    };
    match command {
        args::Command::Replay(options) => replay::run(&options, console),
        args::Command::Info(options) => info::run(&options, console),
        #[cfg(feature = "convert")]
        args::Command::Bench(options) => bench::run(&options, console),
        args::Command::Benchmarks(options) => benchmarks::run(&options, console),
    }
    .into()
}
