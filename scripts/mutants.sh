#!/usr/bin/env bash
# Mutants of the pool and of compaction, by cargo-mutants (cargo install cargo-mutants): every
# change it knows is made to one function at a time, and the tests must notice.
#
#   scripts/mutants.sh                  all of them: hours
#   scripts/mutants.sh --shard 0/40     every 40th, from the first
#
# Each is tried with the suites that are quickest to notice. What is neither caught nor unviable is
# in target/mutants/mutants.out/missed.txt; tests/README.md says of each why it may stay.
set -euo pipefail
cd "$(dirname "$0")/.."
export WARPOOL_CUDA=off LIBCLANG_PATH=/nonexistent CARGO_PROFILE_DEV_DEBUG=0
export PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 PROPTEST_RNG_SEED=1
mkdir -p target/mutants
exec cargo mutants --output target/mutants --no-shuffle --sharding round-robin --timeout "${WARPOOL_MUTANT_SECONDS:-300}" \
    --file 'src/pool/**' --file 'src/compact/**' --file 'src/movable/**' \
    --no-default-features --features sanitize --cargo-arg=--lib --cargo-arg=--test=found \
    --cargo-arg=--test=state_machine --cargo-arg=--test=plan --cargo-arg=--test=pool_model \
    --cargo-arg=--test=movable --cargo-arg=--test=pool_counts --cargo-arg=--test=soft_limit "$@"
