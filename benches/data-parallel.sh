#!/usr/bin/env bash
# From the bundle (scripts/gpu-bundle.sh), on a machine with two GPUs or more and PyTorch, whose NCCL and cuBLAS are
# used:
#
#   benches/data-parallel.sh > data-parallel.txt
#
# What all GPUs train in a second beside one, with few samples a step and with many, with the sums beside the backward
# pass and behind it.
# Where the libraries are the loader's own, the example alone says the same:
#
#   cargo run --release --features cudarc --example data_parallel -- --large only=f32,f16 overlap=true,false
#
# On two H200 the first two take some 30 s.
set -uo pipefail
cd "$(dirname "$0")/.."
# The folder of a library of PyTorch's, or of the toolkit's.
folder_of() {
    python3 -c '
import importlib.util, pathlib, sys
torch = importlib.util.find_spec("nvidia")
places = [*(torch.submodule_search_locations if torch else []), "/usr/local/cuda/lib64", "/usr/local"]
found = (path for place in places for path in sorted(pathlib.Path(place).rglob(sys.argv[1] + ".so*")))
print(next((path.parent for path in found), ""))' "$1" 2>/dev/null
}
WARPOOL_NCCL=${WARPOOL_NCCL:-$(folder_of libnccl)}
export WARPOOL_NCCL
cublas=$(folder_of libcublas)
# cudarc looks for names without a version.
names=$(mktemp -d)
trap 'rm -rf "$names"' EXIT
for library in "$cublas"/libcublas{,Lt}.so.*; do
    name=${library##*/}
    if [ -e "$library" ]; then ln -sf "$library" "$names/${name%%.so*}.so"; fi
done
export LD_LIBRARY_PATH=$names:$cublas:${LD_LIBRARY_PATH:-}
echo "NCCL of ${WARPOOL_NCCL:-the loader}, cuBLAS of ${cublas:-the loader}" >&2
for batch in 4096 16384 32768; do
    timeout 120 target/release/examples/data_parallel --large "batch=$batch" only=f32,f16 overlap=true,false "$@" ||
        echo "failed: $?" >&2
done
