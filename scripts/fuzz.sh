#!/usr/bin/env bash
# Fuzzes with libFuzzer: each target of fuzz/ for so many seconds, 600 unless the first argument
# says otherwise; further arguments name the targets. Needs a nightly toolchain; no cargo-fuzz.
#
#   scripts/fuzz.sh [SECONDS [TARGET...]]
#
# What it finds on the way stays in target/fuzz-corpus; an input that fails is kept in
# fuzz/artifacts and ends the script. `cargo fuzz run TARGET` works too where cargo-fuzz is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
shift || true
if [ $# = 0 ]; then set -- trace sizes records plan pool; fi
export WARPOOL_CUDA=off LIBCLANG_PATH=/nonexistent
# As cargo-fuzz has it: coverage by edges and comparisons, and the address sanitizer.
RUSTFLAGS="--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Ccodegen-units=1"
for argument in level=4 inline-8bit-counters pc-table trace-compares; do
    RUSTFLAGS+=" -Cllvm-args=-sanitizer-coverage-$argument"
done
export RUSTFLAGS
triple=$(rustc +nightly -vV | sed -n 's/^host: //p')
cargo +nightly build --release --manifest-path fuzz/Cargo.toml --target "$triple" \
    --target-dir target/fuzz
for target in "$@"; do
    mkdir -p "target/fuzz-corpus/$target" "fuzz/artifacts/$target"
    ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 "target/fuzz/$triple/release/$target" \
        "target/fuzz-corpus/$target" "tests/fuzz/corpus/$target" \
        -artifact_prefix="fuzz/artifacts/$target/" -max_total_time="$seconds" -max_len=4096 \
        -timeout=60 -rss_limit_mb=4096 -print_final_stats=1 2>&1 |
        grep -E '^==|SUMMARY|panicked|stat::number_of_executed_units|stat::average|DONE|ERROR' |
        sed "s/^/$target: /"
done
