#!/usr/bin/env bash
# Interleavings of threads: run this before a change to what it models lands.
#
#   scripts/interleavings.sh               both parts; every test of the second under 10,000 schedules
#   scripts/interleavings.sh 100000        under so many
#   scripts/interleavings.sh 1000 NAME     the first part, and the tests of the second with NAME in theirs
#
# First loom: the lock-free parts under every interleaving and every order that the memory model allows.
# They are a stream's ticks (src/device/ticks.rs), a lane's latch (src/sync/latch.rs), and its count of
# outstanding blocks with what is counted of them (src/pool/cache/lifetime.rs).
# Then shuttle: the pool's protocol, which is under locks, under drawn schedules
# (tests/schedules.rs). A failing schedule is printed and can be replayed.
set -euo pipefail
cd "$(dirname "$0")/.."
flags=${RUSTFLAGS:-}
export WARPOOL_CUDA=off

RUSTFLAGS="$flags --cfg loom" cargo test --no-default-features --target-dir target/loom --lib models

export WARPOOL_SCHEDULES="${1:-10000}"
# Optimised, with the assertions of a debug build.
RUSTFLAGS="$flags --cfg shuttle" CARGO_PROFILE_TEST_OPT_LEVEL=2 \
    cargo test --no-default-features --target-dir target/shuttle --test schedules "${@:2}"
