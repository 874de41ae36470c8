#!/usr/bin/env bash
# Mutants of the pool and of compaction, by cargo-mutants (cargo install cargo-mutants --locked):
# every change it knows is made to one function at a time, and the tests must notice.
#
#   scripts/mutants.sh                  all of them: half a day on one core
#   scripts/mutants.sh --shard 0/28     every 28th, from the first: half an hour
#   scripts/mutants.sh --file 'src/movable/**'      those of other files
#
# Further arguments go to cargo-mutants. Each mutant is tried with the suites that are quickest to
# notice, built with little optimisation: a build and a whole run take half a minute. What is
# neither caught nor unviable is in target/mutants/mutants.out/missed.txt; tests/README.md says of
# each why it may stay.
set -euo pipefail
cd "$(dirname "$0")/.."
export WARPOOL_CUDA=off LIBCLANG_PATH=/nonexistent
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=1
# The copies that cargo-mutants makes share one folder of builds, the dependencies with it.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/mutants/target}
export PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 PROPTEST_RNG_SEED=1
files=()
case " $* " in
    *" --file "* | *" -f "*) ;;
    *) files=(--file 'src/pool/**' --file 'src/compact/**') ;;
esac
suites=()
for suite in found learnt_order movable movable_ladder movable_owners movable_sanitize \
    movable_threads pass_faults plan pool_conformance pool_counts pool_model sanitize sim_capture \
    soft_limit state_machine; do
    suites+=(--cargo-arg=--test="$suite")
done
case " $* " in *" --shard "*) files+=(--sharding round-robin) ;; esac
mkdir -p target/mutants
exec cargo mutants --output target/mutants --no-shuffle \
    --timeout "${WARPOOL_MUTANT_SECONDS:-120}" "${files[@]}" \
    --no-default-features --features sanitize --cargo-arg=--lib "${suites[@]}" "$@"
