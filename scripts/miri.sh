#!/usr/bin/env bash
# The parts without a foreign call under Miri, which sees undefined behaviour that tests pass over.
#
#   scripts/miri.sh             all of them
#   scripts/miri.sh FILTER...   the library's tests with these in their names
#
# Miri cannot call C. The host device is there a simulated one without bytes, so what needs contents,
# kernels or the operating system does not run: these are the heap, what plans, counters, views, traces
# and reports, and of the pool what reaches each of its unsafe blocks. Needs a nightly compiler with Miri:
# rustup component add miri --toolchain nightly.
set -euo pipefail
cd "$(dirname "$0")/.."
parts=(
    heap:: pool::stats::counters pool::view
    compact::plan compact::budget compact::cycle
    observe::latency observe::report observe::trace sync::latch
    # Each unsafe block of the pool that needs no contents.
    lanes_of_a_closed_pool_are_there a_block_with_a_declared_use_is_freed a_pool_that_is_dropped_while_threads
    a_lane_of_an_open_pool_is_gone a_lane_does_not_end_under a_lane_ends_that_a_block_came_back_to
    # Opens a device.
    --skip a_download_of_more_than_the_host_can_hold
    # Minutes to hours each there: every bit of every word, a line of 64 KiB, many holes, very many moves.
    --skip the_first_bit_from_any_on_is_found --skip a_line_without_end --skip many_holes_of_a_bin_are_taken
    --skip a_plan_of_very_many_moves_is_cut
)
if [ $# -gt 0 ]; then parts=("$@"); fi
export WARPOOL_CUDA=off LIBCLANG_PATH=/nonexistent
# Random cases by the thousand are for the ordinary run: Miri is a hundred times slower.
export PROPTEST_CASES="${PROPTEST_CASES:-4}" PROPTEST_DISABLE_FAILURE_PERSISTENCE=1
export MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation"
exec cargo +nightly miri test --no-default-features --target-dir target/miri --lib -- "${parts[@]}"
