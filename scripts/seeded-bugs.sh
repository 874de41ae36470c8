#!/usr/bin/env bash
# Puts known faults back, one at a time, and runs the tests until one of them fails.
#
#   scripts/seeded-bugs.sh               every fault; exits 1 if one is not caught
#   scripts/seeded-bugs.sh NAME...       these faults
#   scripts/seeded-bugs.sh --record ...  also writes the table into tests/README.md
#   scripts/seeded-bugs.sh --jobs N ...  N faults at once, each on two cores
#   scripts/seeded-bugs.sh --lay FOLDER  builds alone; python3 scripts/seeded-bugs.py --at FOLDER runs
#                                        that where there is no Rust
#
# The faults are the places in tests/seeded-bugs.diff that say `seeded!("NAME")`, in the kernels
# `WP_SEEDED("NAME")`. One build of a copy of the tree, target/seeded/tree, has them all, and
# WARPOOL_SEEDED says which is in. First everything must pass with none in.
# Programs are drawn from a fixed seed (PROPTEST_RNG_SEED), so a figure is the same each time.
set -euo pipefail
cd "$(dirname "$0")/.."
export WARPOOL_CUDA="${WARPOOL_CUDA:-off}"
export CARGO_PROFILE_DEV_DEBUG=0
exec python3 scripts/seeded-bugs.py "$@"
