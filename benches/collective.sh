#!/usr/bin/env bash
# From the bundle (scripts/gpu-bundle.sh), on a machine with two GPUs or more and PyTorch, whose NCCL is used:
#
#   benches/collective.sh > collective.jsonl
#
# The tests of collectives and peers, the example, the bench, and PyTorch beside it. On two H200: tests 15 s, example
# 10 s, bench 60 s, PyTorch 50 s.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=target/release
gpus=$(nvidia-smi -L | wc -l)
if [ -z "${WARPOOL_NCCL:-}" ]; then
    WARPOOL_NCCL=$(python3 -c '
import importlib.util, pathlib
found = importlib.util.find_spec("nvidia.nccl")
print(pathlib.Path(list(found.submodule_search_locations)[0]) / "lib" if found else "")' 2>/dev/null)
    export WARPOOL_NCCL
fi
echo "NCCL of ${WARPOOL_NCCL:-the loader}, $gpus GPUs" >&2
timeout 60 "$bin/tests/collective" gpus 1>&2
timeout 30 "$bin/tests/device" several 1>&2
timeout 60 "$bin/examples/data_parallel" 1>&2
timeout 120 "$bin/benches/collective" || echo "the bench failed: $?" >&2
timeout 120 torchrun --standalone --nproc-per-node "$gpus" benches/collective.py || echo "PyTorch failed: $?" >&2
