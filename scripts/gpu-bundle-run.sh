#!/usr/bin/env bash
# Runs what scripts/gpu-bundle.sh built, on a machine with a GPU and no Rust.
#
#   run.sh test [FILTER...]     every test, failing where there is no GPU; ends 'N passed, N failed'
#   run.sh ptx [FILTER...]      the kernels' suites from the PTX that the bundle was made with
#                               (WARPOOL_BUNDLE_PTX=75,80 scripts/gpu-bundle.sh), compiled by the driver
#   run.sh soak [SECONDS]       the soak alone, ten minutes unless told, and its line: operations, bytes
#                               verified and moved, corrupt
#   run.sh bench [NAME [ARG..]] all criterion benches, or one with criterion's arguments
#   run.sh replay TRACE [ARG..] warpool replay; a trace without a folder is taken from traces/
#   run.sh quickstart           the quickstart example (any example by its name: run.sh example NAME)
#   run.sh sanitize [FILTER...] the tests under compute-sanitizer (on PATH, or COMPUTE_SANITIZER=path):
#                               its memcheck, or TOOL=racecheck and so on
#   run.sh sanitizers [ARG..]   the GPU's suites under all of its tools, and a table of what they report
#                               (scripts/sanitizers.py)
#   run.sh warpool [ARG..]      the command line itself
#
# Results of benches go to $OUT/criterion, or ./out/criterion when OUT is unset.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
caller=$PWD
out=${OUT:-$caller/out}
bin=$here/target/release
if [ ! -d "$bin" ]; then tar -C "$here" -xJf "$here/executables.tar.xz"; fi
export CARGO_MANIFEST_DIR=$here
for program in "$bin"/*; do
    if [ -f "$program" ]; then export "CARGO_BIN_EXE_$(basename "$program")=$program"; fi
done

# Tests may hold the folder they were built in as a constant. Where this machine lacks it, a link
# of that name leads here for as long as this script runs.
stand_in() {
    local built_in made
    built_in=$(cat "$here/built-in")
    if [ -e "$built_in" ] || [ -L "$built_in" ]; then return; fi
    mkdir -p "$(dirname "$built_in")" 2>/dev/null || return 0
    ln -s "$here" "$built_in" 2>/dev/null || return 0
    made=$built_in
    # shellcheck disable=SC2064  # the name as it is now
    trap "rm -f '$made'" EXIT
}

# Runs every test executable of $tests behind the given command, and adds up what they say.
tests=$bin/tests
run_tests() {
    local filters=("$@") shown=() passed=0 failed=0 status counts log
    log=$(mktemp)
    for test in "$tests"/*; do
        echo "== $(basename "$test")"
        status=0
        shown=()
        # What the soak did is told by its own line.
        if [ "$(basename "$test")" = soak ]; then shown=(--show-output); fi
        "${prefix[@]}" "$test" "${filters[@]}" "${shown[@]}" 2>&1 | tee "$log" || status=$?
        counts=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' "$log")
        passed=$((passed + $(awk '{n += $1} END {print n + 0}' <<<"$counts")))
        failed=$((failed + $(awk '{n += $2} END {print n + 0}' <<<"$counts")))
        # A crash, or what the sanitizer found, is no count of the test runner's.
        if ((status != 0)) && ! grep -q '^test result: FAILED' "$log"; then
            echo "== $(basename "$test") ended with status $status"
            failed=$((failed + 1))
        fi
    done
    rm -f "$log"
    echo "$passed passed, $failed failed"
    ((failed == 0 && passed > 0))
}

cd "$here"
stand_in
command=${1:-}
shift || true
prefix=()
case $command in
    test)
        export WARPOOL_REQUIRE_GPU=1
        run_tests "$@"
        ;;
    ptx)
        export WARPOOL_REQUIRE_GPU=1 CUDA_FORCE_PTX_JIT=1
        compgen -G "$bin/ptx-*" >/dev/null || {
            echo "error: no PTX here: make the bundle with WARPOOL_BUNDLE_PTX=75,80" >&2
            exit 2
        }
        status=0
        for tests in "$bin"/ptx-*; do
            echo "=== $(basename "$tests")"
            run_tests "$@" || status=1
        done
        exit $status
        ;;
    soak)
        export WARPOOL_REQUIRE_GPU=1 WARPOOL_SOAK_SECONDS=${1:-600}
        "$bin/tests/soak" eight_threads_and_compaction_corrupt_nothing_on_the_gpu --nocapture
        ;;
    sanitize)
        sanitizer=${COMPUTE_SANITIZER:-compute-sanitizer}
        command -v "$sanitizer" >/dev/null || {
            echo "error: no $sanitizer here; it comes with the CUDA toolkit" >&2
            exit 1
        }
        export WARPOOL_REQUIRE_GPU=1
        # Tests with many rounds make fewer.
        export WARPOOL_SANITIZER=1
        # Some tests never touch the device; to the tool alone that would be an error.
        prefix=("$sanitizer" --tool "${TOOL:-memcheck}" --error-exitcode 99
            --require-cuda-init=no)
        run_tests "$@"
        ;;
    sanitizers)
        mkdir -p "$out"
        python3 scripts/sanitizers.py "$bin/tests" "$out" "$@"
        ;;
    bench)
        mkdir -p "$out/criterion"
        export CRITERION_HOME=$out/criterion
        name=${1:-}
        shift || true
        if [ -n "$name" ] && [ ! -x "$bin/benches/$name" ]; then
            echo "error: no bench $name; there are: $(ls "$bin/benches" | tr '\n' ' ')" >&2
            exit 2
        fi
        for bench in "$bin"/benches/${name:-*}; do
            "$bench" --bench "$@"
        done
        ;;
    replay)
        trace=${1:?a trace, such as traces/resnet50_train_varres.csv.gz}
        shift
        for place in "$caller/$trace" "$here/$trace" "$here/traces/$trace"; do
            if [ -f "$place" ]; then
                trace=$place
                break
            fi
        done
        "$bin/warpool" replay "$trace" "$@"
        ;;
    quickstart) "$bin/examples/quickstart" "$@" ;;
    example) "$bin/examples/${1:?an example}" "${@:2}" ;;
    warpool) "$bin/warpool" "$@" ;;
    *)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 2
        ;;
esac
