//! The command line: replays allocation traces, and says what this machine and this build have.
//!
//! Exit codes: 0, all is well; 1, a replay failed (corrupt bytes, a request that did not fit, a
//! driver error); 2, the input was at fault (arguments, a malformed trace, a device that is not
//! there).

#[path = "warpool/args.rs"]
mod args;
#[path = "warpool/cap.rs"]
mod cap;
#[path = "warpool/info.rs"]
mod info;
#[path = "warpool/outcome.rs"]
mod outcome;
#[path = "warpool/record.rs"]
mod record;
#[path = "warpool/replay.rs"]
mod replay;
#[path = "warpool/tables.rs"]
mod tables;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match args::Args::parse().command {
        args::Command::Replay(options) => replay::run(&options),
        args::Command::Info => info::run(),
        args::Command::ReadmeTables(options) => tables::run(&options),
    }
    .into()
}
