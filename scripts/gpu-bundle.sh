#!/usr/bin/env bash
# Builds everything that needs a GPU to run, and lays it out for a machine that has one but no Rust.
#
#   scripts/gpu-bundle.sh            target/gpu-bundle/ with run.sh; copy the folder there, run it
#
# Every executable carries the kernels, so the bundle is made for one kind of GPU: CUDA_COMPUTE_CAP
# says which (as build.rs reads it), 90 when unset. Newer GPUs run its PTX, older ones need their own.
# WARPOOL_BUNDLE_PTX=75,80 adds the kernels' own suites once more for each, with nothing but PTX of that
# architecture, which the driver then compiles: `run.sh ptx` runs them.
# Without a toolkit on this machine it takes the one that scripts/cuda-toolkit.sh fetched.
#
# The bundle mirrors the repository (sources, traces, proptest seeds), so that a test finds a file
# where it found it here; executables are under target/release/ in it. It has to stay below
# WARPOOL_BUNDLE_MAX_MIB (60).
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
bundle=$root/target/gpu-bundle
stage=$root/target/gpu-bundle.new
export WARPOOL_CUDA=required
export CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-90}
WARPOOL_BUNDLE_PTX=${WARPOOL_BUNDLE_PTX:-}
# Beside the default ones, for their tests, benches and examples.
features=files,cudarc

# Names of the package's targets of a kind, from cargo's own list.
targets() {
    cargo metadata --format-version 1 --no-deps | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    for target in package["targets"]:
        if sys.argv[1] in target["kind"]:
            print(target["name"])' "$1"
}

# Runs a cargo build and prints "KIND NAME PATH" for every executable that it made.
executables() {
    "$@" --message-format=json-render-diagnostics | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["reason"] == "compiler-artifact" and message["executable"]:
        target = message["target"]
        print(target["kind"][0], target["name"], message["executable"])'
}

# Strips an executable into the stage.
place() {
    mkdir -p "$(dirname "$stage/$2")"
    strip -o "$stage/$2" "$1"
}

rm -rf "$stage"
mkdir -p "$stage"

echo "building the binary and the examples" >&2
built=$(executables cargo build --release --features $features --bins --examples)
while read -r kind name path; do
    case $kind in
        bin) place "$path" "target/release/$name" ;;
        example) place "$path" "target/release/examples/$name" ;;
    esac
done <<<"$built"

echo "building the tests" >&2
built=$(executables cargo test --release --features $features --no-run --lib --bins --tests)
while read -r kind name path; do
    case $kind in
        test) place "$path" "target/release/tests/$name" ;;
        # Unit tests; cargo names the binary itself too, for tests that run it.
        ?*) if [[ $path == */deps/* ]]; then
            place "$path" "target/release/tests/unit-$kind-$name"
        fi ;;
    esac
done <<<"$built"

benches=$(targets bench)
if [ -n "$benches" ]; then
    echo "building the benches" >&2
    built=$(executables cargo bench --features $features --no-run $(printf -- '--bench %s ' $benches))
    while read -r kind name path; do
        if [ "$kind" = bench ]; then place "$path" "target/release/benches/$name"; fi
    done <<<"$built"
fi

# Suites of the kernels, for PTX alone.
kernel_suites=(compact convert device quantize state_machine)
for number in ${WARPOOL_BUNDLE_PTX//,/ }; do
    echo "building the kernels' suites for PTX of $number" >&2
    built=$(CUDA_COMPUTE_CAP=compute_$number executables \
        cargo test --release --features $features --no-run "${kernel_suites[@]/#/--test=}")
    while read -r kind name path; do
        if [ "$kind" = test ]; then place "$path" "target/release/ptx-$number/$name"; fi
    done <<<"$built"
done

echo "building what the benches compare with" >&2
mkdir -p "$stage/target/bench-peers"
if scripts/bench-peers.sh; then
    cp target/bench-peers/peers.so "$stage/target/bench-peers/"
fi

# What tests and benches read: the repository's own files, proptest seeds not yet committed too.
git ls-files -z --cached --others --exclude-standard |
    tar --null --files-from=- --ignore-failed-read -cf - 2>/dev/null | tar -C "$stage" -xf -
cp scripts/gpu-bundle-run.sh "$stage/run.sh"
chmod +x "$stage/run.sh"
printf '%s\n' "$root" >"$stage/built-in"
{
    git rev-parse HEAD
    git diff --quiet HEAD -- || echo "with uncommitted changes"
} >"$stage/commit"

# Every executable holds the same kernels: one archive with a window over all of them stores those
# once. run.sh unpacks it.
count=$(find "$stage/target/release" -type f | wc -l)
tar -C "$stage" -cf - target/release target/bench-peers |
    xz --threads=1 --lzma2=preset=2,dict=64MiB >"$stage/executables.tar.xz"
rm -rf "$stage/target"

kib=$(du -sk "$stage" | cut -f1)
echo "target/gpu-bundle for $CUDA_COMPUTE_CAP: $(((kib + 1023) / 1024)) MiB," \
    "$count executables"
if ((kib > ${WARPOOL_BUNDLE_MAX_MIB:-60} * 1024)); then
    echo "error: the bundle is over ${WARPOOL_BUNDLE_MAX_MIB:-60} MiB; the largest files:" >&2
    du -ak "$stage" | sort -rn | sed -n '2,12p' >&2
    exit 1
fi
rm -rf "$bundle"
mv "$stage" "$bundle"
