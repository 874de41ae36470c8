#!/usr/bin/env bash
# Compiles the kernels for every architecture, as a release has them, and reads the machine code of each.
#
#   scripts/every-architecture.sh
#
# Fails on a warning of the compilers' and where scripts/check-sass.py does. Some twenty minutes of one core.
set -euo pipefail
cd "$(dirname "$0")/.."
unset CUDA_COMPUTE_CAP
eval "$(scripts/cuda-toolkit.sh)"
WARPOOL_CUDA=required cargo build --release
said=$(ls -t target/release/build/warpool-*/output | head -n 1)
if grep -E '^cargo::?warning=' "$said"; then
    echo "error: the kernels must compile without a warning" >&2
    exit 1
fi
scripts/check-sass.py target/release/warpool

# Code for Blackwell's families alone rounds to 4 and 6 bits by their own instructions.
CUDA_COMPUTE_CAP=100f,120f cargo build --release
scripts/check-sass.py target/release/warpool
