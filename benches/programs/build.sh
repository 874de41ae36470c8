#!/usr/bin/env bash
# Builds the plug with the kernels in and lays it and the programs under target/programs, a folder to
# carry to a machine with a GPU and PyTorch 2.11:
#
#   benches/programs/build.sh
#   cd target/programs && PLUG=libplug.so python3 compare.py run runs.jsonl --programs moe --rounds 7
set -euo pipefail
cd "$(dirname "$0")/../.."
to=$PWD/target/programs
mkdir -p "$to"
cp benches/programs/*.py "$to/"
eval "$(scripts/cuda-toolkit.sh)"
export WARPOOL_CUDA=required CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-90}
cargo build --release --manifest-path benches/programs/plug/Cargo.toml --target-dir target/plug
strip -o "$to/libplug.so" target/plug/release/libwarpool_plug.so
ls -l "$to"
