#!/usr/bin/env python3
"""Puts PyTorch's rate beside each line of the bench `convert`, measured on the same GPU.

    scripts/bench-pytorch.py < lines > lines-with-pytorch

Lines are those that the bench writes to WARPOOL_BENCH_JSON; those that PyTorch has an operation for
gain `pytorch_gb_per_s`. Sizes and the way of timing are the bench's: 1 GiB on the wider side, device
time between two events around a burst, the best of several bursts, bytes read plus bytes written.
"""
import json
import sys

import torch

from pytorch_timing import best_ns

FORMATS = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
GIB = 1 << 30


def noise(i):
    x = (i * 0x9E3779B9 & 0xFFFFFFFF) ^ (i >> 7)
    return ((x ^ (x >> 15)) * 0x85EBCA6B) & 0xFFFFFFFF


def tensors(count, total, dtype):
    """Tensors of the lengths that the bench gives them, and their elements in all."""
    raw = [1 + (noise(i) >> 20) ** 2 for i in range(count)]
    lengths = [max(1, n * total // sum(raw)) for n in raw]
    return [torch.ones(n, dtype=dtype, device="cuda") for n in lengths], sum(lengths)


def plain(name):
    """Rate of a conversion of 1 GiB, for a name such as f32_to_f16."""
    source, target = name.split("_to_")
    source, target = FORMATS[source], FORMATS[target]
    count = GIB // max(source.itemsize, target.itemsize)
    words = torch.randint(-(1 << 31), (1 << 31) - 1, (GIB // 4,), dtype=torch.int32, device="cuda")
    src = words.view(torch.uint8)[: count * source.itemsize].view(source)
    dst = torch.empty(count, dtype=target, device="cuda")
    return count * (source.itemsize + target.itemsize) / best_ns(lambda: dst.copy_(src), 10)


def listed(name):
    """Rate of a list of tensors, for f32_to_f16_1000_tensors or unscale_f32_1000_tensors."""
    count = int(name.split("_")[-2])
    total = {1000: 404_000_000 // 6}.get(count, count * 1024)
    sources, elements = tensors(count, total, torch.float32)
    if name.startswith("unscale"):
        found, inverse = (torch.zeros(1, device="cuda") for _ in range(2))
        inverse.fill_(1.0)
        unscale = torch._amp_foreach_non_finite_check_and_unscale_
        return elements * 8 / best_ns(lambda: unscale(sources, found, inverse), 10)
    targets, _ = tensors(count, total, torch.float16)
    return elements * 6 / best_ns(lambda: torch._foreach_copy_(targets, sources), 10)


def rate(name):
    """PyTorch's rate, or None for what it has no operation for."""
    parts = name.split("_to_")
    if len(parts) == 2 and all(part in FORMATS for part in parts):
        return plain(name)
    # Of 100,000 tensors it takes minutes: a launch each, and as many allocations.
    return listed(name) if name.endswith("_tensors") and "_100000_" not in name else None


for line in sys.stdin:
    row = json.loads(line)
    figure = rate(row["conversion"])
    if figure is not None:
        row["pytorch_gb_per_s"] = round(figure, 1)
    print(json.dumps(row))
print(f"PyTorch {torch.__version__}", file=sys.stderr)
