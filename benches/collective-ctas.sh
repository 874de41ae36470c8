#!/usr/bin/env bash
# From the bundle, on a machine with two GPUs or more: casts beside sums under NCCL's own limits of its blocks.
#
#   benches/collective-ctas.sh > collective-ctas.jsonl
#
# Sums alone take 1.70 ms for 1 GiB in f16 on two H200, casts alone 0.76, both 2.33. Launches, buckets and priorities
# did not change that (results/collective-tried-h200-x2.txt). Here: more of NCCL's blocks, whose loads wait longer
# while casts fill the memory's queues; fewer, that leave whole multiprocessors to the casts; and blocks of a
# cluster, which come to multiprocessors together (results/collective-small-h200-x2.txt). A GPU of 132 multiprocessors
# has room for two kernels of up to 44 blocks: with 48 the reducer has one communicator. Some 4 s each.
set -uo pipefail
cd "$(dirname "$0")/.."
for setting in NCCL_MIN_CTAS=1 NCCL_MIN_CTAS=32 NCCL_MIN_CTAS=48 NCCL_MAX_CTAS=16 NCCL_MAX_CTAS=8 \
    NCCL_CGA_CLUSTER_SIZE=0 NCCL_CGA_CLUSTER_SIZE=2; do
    echo "{\"setting\": \"$setting\"}"
    env "$setting" WARPOOL_BENCH_POWERS=30 timeout 60 target/release/benches/collective || echo "failed: $?" >&2
done
