#!/usr/bin/env bash
# Test suites on the host device under the thread sanitizer, which reports uses of the same memory, by kernels too, that
# no lock, no atomic and no stream's order keeps apart.
#
#   scripts/thread-sanitizer.sh                the soak, and the suites of the pool and of compaction
#   scripts/thread-sanitizer.sh SUITE...       these test binaries
#
# A report ends the binary with status 66. Needs a nightly compiler and the sources of its library, which is built with
# the sanitizer too: rustup component add rust-src --toolchain nightly.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# = 0 ]; then set -- soak compact pool; fi
triple=$(rustc +nightly -vV | sed -n 's/^host: //p')
export WARPOOL_CUDA=off LIBCLANG_PATH=/nonexistent TSAN_OPTIONS="${TSAN_OPTIONS:-history_size=7}"
export RUSTFLAGS=-Zsanitizer=thread "CXXFLAGS_${triple//-/_}=-fsanitize=thread -g"
exec cargo +nightly test -Zbuild-std --target "$triple" --target-dir target/thread-sanitizer --no-fail-fast \
    "${@/#/--test=}"
