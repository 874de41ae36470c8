#!/usr/bin/env bash
# Mutants of the pool and of compaction, by cargo-mutants (cargo install cargo-mutants --locked):
# every change it knows is made to one function at a time, and the tests must notice.
#
#   scripts/mutants.sh                  all of them: half a day on one core
#   scripts/mutants.sh --shard 0/28     every 28th, from the first: half an hour
#   scripts/mutants.sh --file 'src/movable/**'      those of other files
#
# Further arguments go to cargo-mutants. Each mutant is tried with the suites that notice most, in one
# executable (tests/mutants.rs), and a short form of the state machines; what they do not notice
# within a minute is tried with more. Both are built with little optimisation. Printed at the end: what is neither caught nor unviable, and the part caught;
# tests/README.md says of each that is not why it may stay. WARPOOL_MUTANTS_OUT is the folder of the
# two runs' own reports; WARPOOL_MUTANTS_IN_PLACE=1 mutates this very tree, which may then be no tree
# that anybody works in, and builds faster from the second run on.
set -euo pipefail
cd "$(dirname "$0")/.."
export WARPOOL_CUDA=off LIBCLANG_PATH=/nonexistent
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=1
out=${WARPOOL_MUTANTS_OUT:-$PWD/target/mutants}
# The copies that cargo-mutants makes share one folder of builds, the dependencies with it.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/mutants/target}
export PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 PROPTEST_RNG_SEED=1
few="mutants state_machine"
more="convert convert_scaler faults pool_conformance pool_counts replay sim_capture sim_pool soak \
    state_machine"

# try FOLDER SUITES ARGUMENT...: cargo-mutants over the arguments, with the library's own tests too.
try() {
    local folder=$1 suites=() suite
    for suite in $2; do suites+=(--cargo-arg=--test="$suite"); done
    shift 2
    rm -rf "$folder"
    mkdir -p "$folder"
    local ended=0
    cargo mutants --output "$folder" --no-shuffle --no-default-features --features sanitize \
        ${WARPOOL_MUTANTS_IN_PLACE:+--in-place} --cargo-arg=--lib "${suites[@]}" "$@" || ended=$?
    # 2: some are missed; 3: some ran out of time. Anything else: nothing was tried.
    case $ended in 0 | 2 | 3) ;; *) exit "$ended" ;; esac
}

files=()
case " $* " in
    *" --file "* | *" -f "*) ;;
    *) files=(--file 'src/pool/**' --file 'src/compact/**') ;;
esac
case " $* " in *" --shard "*) files+=(--sharding round-robin) ;; esac
# Left to the second run: the driver's table, half a minute that hardly sees the pool. Left out: what
# starts its own executable again, and what measures time.
WARPOOL_CASES=60 try "$out/few" "$few" --timeout 60 "${files[@]}" "$@" \
    -- -- --skip cuda::faults --skip a_process_may_exit --skip a_watched_host_device
first=$out/few/mutants.out
left=$(cat "$first/missed.txt" "$first/timeout.txt" | sed 's/[][\.*^$+?(){}|/]/\\&/g' | paste -sd'|')
missed=/dev/null timeouts=/dev/null
if [ -n "$left" ]; then
    try "$out/all" "$more" --timeout "${WARPOOL_MUTANT_SECONDS:-240}" --baseline skip \
        --file 'src/**' --re "^($left)\$"
    missed=$out/all/mutants.out/missed.txt timeouts=$out/all/mutants.out/timeout.txt
fi
count() { cat "$@" | wc -l; }
tried=$(count "$first"/{caught,missed,timeout}.txt)
echo "$tried mutants that compile, $(count "$first/unviable.txt") that do not:" \
    "$(count "$missed") missed, $(count "$timeouts") out of time"
cat "$missed"
