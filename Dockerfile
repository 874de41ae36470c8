# Rust, a C++ compiler and the CUDA toolkit; the driver comes from the machine that runs it.
#
#   docker build -t warpool .
#   docker run --rm warpool                                    every suite, without a GPU
#   docker run --rm --gpus all warpool cargo run --release -- info      with the machine's driver
#
# `--gpus all` wants NVIDIA's container toolkit on that machine.
ARG CUDA=13.0.1
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04

ARG RUST=1.88.0
ENV DEBIAN_FRONTEND=noninteractive \
    RUSTUP_HOME=/opt/rustup CARGO_HOME=/opt/cargo PATH=/opt/cargo/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# What the distribution has now: a pinned version is soon gone from its mirrors.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential ca-certificates curl libclang-dev python3 \
    && rm -rf /var/lib/apt/lists/* \
    && curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs \
        | sh -s -- -y --no-modify-path --profile minimal --default-toolchain "$RUST"

WORKDIR /warpool
COPY . .

# A comma-separated list such as 80,90, or `all`: fewer build faster.
ARG CUDA_COMPUTE_CAP=90
ENV CUDA_COMPUTE_CAP=$CUDA_COMPUTE_CAP WARPOOL_CUDA=required CARGO_INCREMENTAL=0
RUN cargo build --release --locked && cargo test --locked --no-run

CMD ["cargo", "test", "--locked"]
