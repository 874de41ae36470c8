#!/usr/bin/env python3
"""What PyTorch does of benches/collective.rs: all-reduces, and DDP with and without fp16_compress_hook.

    torchrun --nproc-per-node 2 benches/collective.py

A line a figure, as JSON, from rank 0.
"""

import json
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def timed(rounds, work):
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(rounds):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 / rounds


def line(what, size, ms):
    ranks = dist.get_world_size()
    bus = 2 * (ranks - 1) / ranks * size / ms / 1e6
    if dist.get_rank() == 0:
        figures = {"what": what, "gpus": ranks, "bytes": size, "ms": round(ms, 4), "bus_gb_s": round(bus, 1)}
        print(json.dumps(figures), flush=True)


class Many(torch.nn.Module):
    """1,000 parameters of 404 MB, of the sizes of the bench; a gradient of each for next to no work."""

    def __init__(self):
        super().__init__()
        lens = [900_000 if at % 10 == 0 else 30_000 if at % 10 < 4 else 3_333 for at in range(1000)]
        self.all = torch.nn.ParameterList(torch.zeros(n, device="cuda") for n in lens)

    def forward(self, x):
        return sum((parameter[:1] * x).sum() for parameter in self.all)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    for power in (16, 20, 22, 24, 26, 28, 30, 32):
        size = 1 << power
        rounds = max(5, min(200, 20_000_000_000 // max(size, 10_000_000)))
        for what, dtype in (("PyTorch f32", torch.float32), ("PyTorch f16 alone, bytes of f32", torch.float16)):
            data = torch.zeros(size // 4, dtype=dtype, device="cuda")
            line(what, size, timed(rounds, lambda: dist.all_reduce(data)))
            del data
    for what, hook in (("DDP", None), ("DDP fp16_compress_hook", default_hooks.fp16_compress_hook)):
        model = Many()
        size = sum(4 * parameter.numel() for parameter in model.parameters())
        alone = timed(10, lambda: model(torch.ones(1, device="cuda")).backward())
        together = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if hook is not None:
            together.register_comm_hook(dist.group.WORLD, hook)
        ms = timed(10, lambda: together(torch.ones(1, device="cuda")).backward())
        line(f"{what}, step", size, ms)
        line(f"{what}, step less the model's own", size, max(ms - alone, 1e-3))
        del together, model
    dist.destroy_process_group()


main()
