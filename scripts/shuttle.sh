#!/usr/bin/env bash
# The pool's protocol under shuttle: each test of tests/schedules.rs under 100,000 schedules, or as
# many as the first argument says. A failing schedule is printed and can be replayed.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="${RUSTFLAGS:-} --cfg shuttle"
export WARPOOL_SCHEDULES="${1:-100000}"
export WARPOOL_CUDA=off
# Optimised, with the assertions of a debug build.
export CARGO_PROFILE_TEST_OPT_LEVEL=2
exec cargo test --no-default-features --target-dir target/shuttle --test schedules "${@:2}"
