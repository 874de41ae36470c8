#!/usr/bin/env bash
# Mutants of the heap, the pool and compaction: every change to one function that cargo-mutants knows
# (cargo install cargo-mutants --locked) is made by itself, and the tests must notice.
#
#   scripts/mutants.sh                            all of them, in a drawn order
#   scripts/mutants.sh --sample 400 --seed 6      as many drawn from all: an estimate for all
#   scripts/mutants.sh --sample 1 --also 'mapping.rs|Core::fill'    those named so too, counted apart
#   scripts/mutants.sh --shard 0/28               every 28th, from the first
#   scripts/mutants.sh --file 'src/movable/**'    those of other files
#
# Further arguments go to `cargo mutants --list`. A build for each would take half a minute, so
# scripts/mutants.py puts all of them into one copy of the sources, each behind its number, which
# WARPOOL_MUTANT gives. Those in constants and constant functions cannot be put there; they are named
# (*apart*), and `cargo mutants --re` tries them. Each mutant is tried with the suites that notice
# most, until one test fails; what those do not notice is tried with the rest. A suite that takes twelve times as long as without a mutant fails.
#
#   --jobs 2                      two mutants at a time
#   WARPOOL_MUTANTS_RESUME=1      goes on where a run was stopped
#
# On two cores a build takes six minutes, a mutant that is noticed two seconds, one that is not eight
# and with the rest two minutes more. Printed, and kept in target/mutants/log.txt: each mutant with what
# noticed it, and the rate; the script fails below 95 %. tests/README.md says of each that is missed why
# it may stay.
set -euo pipefail
cd "$(dirname "$0")/.."
export WARPOOL_CUDA=off LIBCLANG_PATH=/nonexistent
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=1
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/mutants/target}
export PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 PROPTEST_RNG_SEED=1
files=(--file 'src/heap/**' --file 'src/pool/**' --file 'src/compact/**')
case " $* " in *" --file "* | *" -f "*) files=() ;; esac
case " $* " in *" --shard "*) files+=(--sharding round-robin) ;; esac
exec python3 scripts/mutants.py "${files[@]}" "$@"
