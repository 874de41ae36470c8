#!/usr/bin/env bash
# The lock-free parts under loom: every interleaving, and every order that the memory model allows.
# They are a stream's ticks (src/device/ticks.rs), a lane's latch (src/sync/latch.rs) and count of
# outstanding blocks (src/pool/outstanding.rs), and of the statistics the tallies and the board
# (src/pool/board.rs); everything else is under locks, and its protocol is explored by
# scripts/shuttle.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
export WARPOOL_CUDA=off
exec cargo test --no-default-features --target-dir target/loom --lib models "$@"
