#!/usr/bin/env python3
"""Puts PyTorch's rate beside lines of the bench `quantize`, measured on the same GPU.

    scripts/bench-pytorch-quantize.py < lines > lines-with-pytorch

Lines are those that the bench writes to WARPOOL_BENCH_JSON; those of the forms below gain
`pytorch_gb_per_s`. Each form is written as PyTorch's users write it and compiled by torch.compile; MX
and NVFP4 are torchao's own functions, where it is installed. Shape, values and the way of timing are the
bench's: 1 GiB of rows of 8,192, device time between two events around a burst, the best of several
bursts; bytes are the bench's own, those a form must read and write.
"""
import json
import sys

import torch

from pytorch_timing import best_ns

COLS = 8192
WIDE = {"f32": torch.float32, "bf16": torch.bfloat16}
E4M3 = torch.float8_e4m3fn
LARGEST = 448.0


def to_e4m3(x):
    return x.clamp(-LARGEST, LARGEST).to(E4M3)


def tensor(x):
    one = torch.ones((), device=x.device)
    return lambda: (lambda x: (to_e4m3(x.float() * one), x.abs().amax()), (x,))


def groups(x, shape):
    """Codes by the largest magnitude of the last dimension of `shape`."""

    def form(x):
        parts = x.float().view(*shape)
        scale = parts.abs().amax(-1, keepdim=True) / LARGEST
        return to_e4m3(parts / scale).view(x.shape), scale

    return lambda: (form, (x,))


def squares(x):
    def form(x):
        parts = x.float().view(x.shape[0] // 128, 128, x.shape[1] // 128, 128)
        scale = parts.abs().amax((1, 3), keepdim=True) / LARGEST
        return to_e4m3(parts / scale).view(x.shape), scale

    return lambda: (form, (x,))


def integers(x, bits, group):
    """Codes of so many bits, symmetric, two to a byte where they are of 4."""

    def form(x):
        most = (1 << (bits - 1)) - 1
        parts = x.float().view(x.shape[0], -1, group)
        scale = parts.abs().amax(-1, keepdim=True) / most
        codes = (parts / scale).round().clamp(-most, most).to(torch.int8).view(x.shape)
        if bits == 4:
            codes = (codes[:, ::2] & 15) | (codes[:, 1::2] << 4)
        return codes, scale

    return lambda: (form, (x,))


def back(x, group):
    """From codes with a scale to so many of them."""
    codes = torch.zeros(x.shape, dtype=torch.uint8, device=x.device).view(E4M3)
    scale = torch.ones(x.shape[0], x.shape[1] // group, 1, device=x.device)

    def form(codes, scale):
        parts = codes.to(torch.float32).view(codes.shape[0], -1, group)
        return (parts * scale).to(x.dtype).view(codes.shape)

    return lambda: (form, (codes, scale))


def turned(x):
    def form(x):
        codes = to_e4m3(x.float())
        return codes, codes.t().contiguous(), x.abs().amax()

    return lambda: (form, (x,))


def mx(x, element):
    def build():
        from torchao.prototype.mx_formats.mx_tensor import to_mx

        return lambda x: to_mx(x, element, 32), (x,)

    return build


def nvfp4(x):
    def build():
        from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

        one = torch.ones((), device=x.device)
        return lambda x: nvfp4_quantize(x, 16, one), (x,)

    return build


def form_of(name, x):
    """What makes the function of a line, and its arguments; None for forms that are not compared."""
    source = next(wide for wide, dtype in WIDE.items() if dtype == x.dtype)
    return {
        f"{source}_to_e4m3_tensor": lambda: tensor(x),
        f"{source}_to_e4m3_rows": lambda: groups(x, (x.shape[0], 1, COLS)),
        f"{source}_to_e4m3_1x128": lambda: groups(x, (x.shape[0], COLS // 128, 128)),
        f"{source}_to_e4m3_128x128": lambda: squares(x),
        f"e4m3_to_{source}_rows": lambda: back(x, COLS),
        f"e4m3_to_{source}_1x128": lambda: back(x, 128),
        f"{source}_to_e4m3_mx": lambda: mx(x, E4M3),
        f"{source}_to_e2m1_mx": lambda: mx(x, torch.float4_e2m1fn_x2),
        f"{source}_to_e2m1_nvfp4": lambda: nvfp4(x),
        f"{source}_to_i8_rows": lambda: integers(x, 8, COLS),
        f"{source}_to_i8_128": lambda: integers(x, 8, 128),
        f"{source}_to_i4_32": lambda: integers(x, 4, 32),
        f"{source}_to_e4m3_and_turned": lambda: turned(x),
    }.get(name, lambda: None)()


def main():
    """Reads lines, and prints them with PyTorch's rate."""
    values = {}
    for line in sys.stdin:
        row = json.loads(line)
        name = row["conversion"]
        source = next((wide for wide in WIDE if wide in name.split("_")), None)
        if source is not None:
            if source not in values:
                values.clear()
                count = (1 << 30) // WIDE[source].itemsize
                values[source] = torch.randn(count, device="cuda").to(WIDE[source]).view(-1, COLS)
            build = form_of(name, values[source])
            try:
                if build is not None:
                    function, arguments = build()
                    compiled = torch.compile(function)
                    ns = best_ns(lambda: compiled(*arguments), 8)
                    row["pytorch_gb_per_s"] = round(row["gb_per_s"] * row["us"] * 1000 / ns, 1)
            except Exception as failed:  # What this PyTorch has not is left out.
                print(f"{name}: {type(failed).__name__}: {failed}"[:300], file=sys.stderr)
            torch._dynamo.reset()
        print(json.dumps(row), flush=True)
    print(f"PyTorch {torch.__version__}", file=sys.stderr)


main()
