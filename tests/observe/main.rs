//! Traces, replays, the command line, and `tracing` events.

#[cfg(feature = "cli")]
mod command_line;
#[path = "../common/mod.rs"]
mod common;
#[cfg(feature = "tracing")]
mod events;
mod recording;
mod replay;
mod trace_reader;
