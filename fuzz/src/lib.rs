//! The fuzz targets, which `cargo test` runs too, for libFuzzer.
#![allow(dead_code, reason = "each target uses its own part")]

#[path = "../../build/arch.rs"]
mod arch;
#[path = "../../src/bin/warpool/cap.rs"]
mod cap;
#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/state_machine/model.rs"]
mod model;
#[path = "../../src/bin/warpool/record.rs"]
mod record;
#[path = "../../tests/fuzz/targets.rs"]
pub mod targets;
#[path = "../../tests/state_machine/world.rs"]
mod world;

/// Physical bytes of the devices made here.
const CAPACITY: u64 = 48 << 20;
