#!/usr/bin/env bash
# Fetches what compiles and binds the kernels, for a machine without CUDA: nvcc 13.0 with its
# runtime, and libclang, as Python wheels, into target/cuda-toolkit/. No GPU and no root needed.
#
#   scripts/cuda-toolkit.sh                   fetch, unless it is there already
#   eval "$(scripts/cuda-toolkit.sh)"         and set CUDA_HOME and LIBCLANG_PATH for other tools
#
# warpool's own build looks there by itself (build/discovery.rs), so `cargo build` needs neither
# variable. The versions are pinned: kernels of 13.0 run on driver 580 and later.
#
# Needs python3 with pip, which takes the wheels from wherever it is set up to; prints the two
# exports on standard output and everything else on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
toolkit=$root/target/cuda-toolkit
wheels=(
    'nvidia-cuda-nvcc==13.0.*'
    'nvidia-cuda-crt==13.0.*'
    'nvidia-nvvm==13.0.*'
    'nvidia-cuda-runtime==13.0.*'
    'nvidia-cuda-cccl==13.0.*'
    'libclang==18.1.1'
)

fetch() {
    local new=$toolkit.new
    rm -rf "$new"
    mkdir -p "$new"
    python3 -m pip install --quiet --no-deps --only-binary=:all: --target "$new" "${wheels[@]}" >&2
    # A wheel's files need not be executable once unpacked.
    chmod +x "$new"/nvidia/cu13/bin/* "$new"/nvidia/cu13/nvvm/bin/*
    "$new/nvidia/cu13/bin/nvcc" --version | tail -n 2 >&2
    printf '%s\n' "${wheels[@]}" >"$new/wheels"
    rm -rf "$toolkit"
    mv "$new" "$toolkit"
    # Cargo cannot know that a place it searched in vain has been filled.
    touch build.rs
}

if [ "$(cat "$toolkit/wheels" 2>/dev/null)" != "$(printf '%s\n' "${wheels[@]}")" ]; then
    python3 -m pip --version >/dev/null 2>&1 || {
        echo "error: python3 with pip is needed to fetch the wheels" >&2
        exit 1
    }
    echo "fetching ${wheels[*]} into target/cuda-toolkit" >&2
    fetch
fi
echo "export CUDA_HOME='$toolkit/nvidia/cu13'"
echo "export LIBCLANG_PATH='$toolkit/clang/native'"
