#!/usr/bin/env bash
# Builds target/bench-peers/peers.so: what the bench `relocate` measures beside this crate (CUB's
# batched copy, and kernels for moves to run beside). The bench loads it when it is there.
#
#   scripts/bench-peers.sh
#
# Takes the toolkit of CUDA_HOME, or the one that scripts/cuda-toolkit.sh fetches; CUB comes with
# both. CUDA_COMPUTE_CAP says for which GPU, 90 when unset.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${CUDA_HOME:-}" ]; then eval "$(scripts/cuda-toolkit.sh)"; fi
cap=${CUDA_COMPUTE_CAP:-90}
mkdir -p target/bench-peers
"$CUDA_HOME/bin/nvcc" -std=c++17 -O3 -shared -Xcompiler -fPIC -cudart static \
    -gencode "arch=compute_$cap,code=sm_$cap" -L"$CUDA_HOME/lib" -L"$CUDA_HOME/lib64" \
    -o target/bench-peers/peers.so benches/peers/peers.cu
strip target/bench-peers/peers.so
echo "target/bench-peers/peers.so" >&2
