"""Runs one of the programs under an allocator of choice and prints what it saw, as one JSON line.

    python3 run.py NAME native|expandable|cuda-async|warpool|empty [--trace FILE.csv.gz] [--profile N]

NAME is one of programs.py, more.py, other.py or further.py. `warpool` is the pool behind the library at
$PLUG, which build.sh makes; POOL_SLACK and POOL_REMAP=0 set those options. MEMORY_LIMIT caps any allocator's
bytes, as PyTorch's memory fraction does. MEMORY_LEFT bytes are left on the device, whose others are taken; `beside_bytes`
are those that the program takes there besides its allocator's. Times leave the set-up out. The sum of the losses must agree between allocators to a few digits. With --trace (`native` alone) it also
writes what the allocator was asked for, in the columns of RMM's log. `empty` is the plug without a
pool: what PyTorch's interface costs. --profile N says where the time of N losses goes, from the fifth
on: kernels on the GPU, and calls of the CUDA libraries by name. `later_...` counts from the second
loss on.
"""

import argparse
import ctypes
import gzip
import json
import os
import random
import sys
import time

PEERS = {
    "native": "",
    "expandable": "expandable_segments:True",
    "cuda-async": "backend:cudaMallocAsync",
    "warpool": "",
    "empty": "",
}
# What the plug's `wp_stat` numbers.
STATS = [
    "live_bytes",
    "reserved_bytes",
    "requested_bytes",
    "allocations",
    "alloc_ns",
    "timed_allocs",
    "free_ns",
    "timed_frees",
    "remapped",
    "created",
    "waits",
    "active_bytes",
    "driver_ns",
    "from_heap",
    "empty_pair_ns",
]
# Those that are also told from the second loss on.
LATER = (
    "alloc_ns",
    "timed_allocs",
    "free_ns",
    "timed_frees",
    "remapped",
    "created",
    "driver_ns",
    "from_heap",
)


def options(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("allocator", choices=PEERS)
    parser.add_argument("--trace")
    parser.add_argument("--profile", type=int, default=0)
    return parser.parse_args(arguments)


def plug(torch):
    """Puts the pool in place of PyTorch's allocator; gives its library."""
    path = os.path.abspath(os.environ["PLUG"])
    library = ctypes.CDLL(path)
    library.wp_stat.restype = ctypes.c_uint64
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "wp_alloc", "wp_free")
    record = ctypes.cast(library.wp_record, ctypes.c_void_p).value
    allocator._allocator.set_record_stream_fn(record)
    torch.cuda.memory.change_current_allocator(allocator)
    return library


class Profile:
    """Times of the calls and kernels between two losses."""

    def __init__(self, torch, losses):
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        self.seen, self.first, self.last, self.found = 0, 5, 5 + losses, None
        self.profiler = torch.profiler.profile(activities=kinds)

    def loss(self):
        self.seen += 1
        if self.seen == self.first:
            self.profiler.start()
            self.began = time.time()
        elif self.seen == self.last:
            seconds = time.time() - self.began
            self.profiler.stop()
            self.found = dict(seconds=round(seconds, 4)) | self.times()

    def times(self):
        kernels, calls = [0, 0.0], {}
        for event in self.profiler.profiler.kineto_results.events():
            ms = event.duration_ns() / 1e6
            if str(event.device_type()).endswith("CUDA"):
                kernels = [kernels[0] + 1, kernels[1] + ms]
            elif event.name().startswith("cu"):
                count, total = calls.get(event.name(), (0, 0.0))
                calls[event.name()] = (count + 1, total + ms)
        most = sorted(calls.items(), key=lambda call: -call[1][1])[:12]
        return dict(kernels=kernels, calls=dict(most))


def take_all_but(torch, left):
    """Leaves so many bytes of the device; returns how many are free."""
    torch.cuda.synchronize()
    excess = torch.cuda.mem_get_info()[0] - left
    taken = ctypes.c_uint64()
    if left and ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(taken), ctypes.c_size_t(excess)):
        raise MemoryError(f"{excess} bytes of the device cannot be taken")
    return torch.cuda.mem_get_info()[0]


def write_trace(torch, path):
    """The allocator's history as RMM's log. Pointers are numbers of blocks, used again when free."""
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    numbers, spare, sizes, streams, rows = {}, [], {}, {}, 0
    with gzip.open(path, "wt", 9) as out:
        out.write("Thread,Time,Action,Pointer,Size,Stream\n")

        def row(action, number, stream):
            pointer = 0x7F0000000000 + number * 256
            at = f"00:00:00:{rows % 1000000:06d}"
            out.write(f"1,{at},{action},0x{pointer:x},{sizes[number]},{stream}\n")

        for event in events:
            stream = streams.setdefault(event["stream"], len(streams))
            if event["action"] == "alloc":
                number = spare.pop() if spare else len(sizes)
                numbers[event["addr"]] = number
                sizes[number] = event["size"]
                row("allocate", number, stream)
            elif event["action"] == "free_requested" and event["addr"] in numbers:
                number = numbers.pop(event["addr"])
                row("free", number, stream)
                spare.append(number)
            else:
                continue
            rows += 1
    print(f"{rows} events, {len(streams)} streams: {path}", file=sys.stderr)


def main(arguments=None):
    asked = options(arguments)
    if PEERS[asked.allocator]:
        os.environ["PYTORCH_ALLOC_CONF"] = PEERS[asked.allocator]
    import torch

    from further import FURTHER
    from more import MORE
    from other import OTHER
    from programs import PROGRAMS

    torch.manual_seed(0)
    random.seed(0)
    if asked.allocator == "empty":
        os.environ["POOL_EMPTY"] = "1"
    limit = int(os.environ.get("MEMORY_LIMIT", 0))
    if limit and asked.allocator == "warpool":
        os.environ["POOL_LIMIT"] = str(limit)
    elif limit:
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / whole)
    library = plug(torch) if asked.allocator in ("warpool", "empty") else None
    profile = Profile(torch, asked.profile) if asked.profile else None
    torch.zeros(1, device="cuda")
    free = take_all_but(torch, int(os.environ.get("MEMORY_LEFT", 0)))
    losses, began, first = [], [time.time()], []

    def note(loss):
        losses.append(loss)
        if library and len(losses) == 2:
            first.extend(library.wp_stat(at) for at in range(len(STATS) - 1))
        if profile:
            profile.loss()

    if asked.trace:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=6000000)
    else:
        # A recorded program keeps no losses, which would be live in the trace.
        backward = torch.Tensor.backward

        def noting(self, *args, **kwargs):
            note(self.detach().float().reshape(()))
            return backward(self, *args, **kwargs)

        torch.Tensor.backward = noting
    setting_up = torch.device("cuda")  # models are made on the GPU, which is quick
    setting_up.__enter__()

    def ready():
        setting_up.__exit__(None, None, None)
        torch.cuda.synchronize()
        if library:
            library.wp_reset()
        began[0] = time.time()

    outcome = "ok"
    try:
        (PROGRAMS | MORE | OTHER | FURTHER)[asked.program]("cuda", ready, lambda x: note(float(x)))
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        outcome = "out of memory"
    seconds = time.time() - began[0]
    total = sum(float(loss) for loss in losses)
    seen = dict(
        program=asked.program,
        allocator=asked.allocator,
        outcome=outcome,
        seconds=round(seconds, 4),
        losses=len(losses),
        loss_sum=round(total, 4),
        gpu=torch.cuda.get_device_name(),
    )
    if library:
        seen |= {name: library.wp_stat(at) for at, name in enumerate(STATS)}
        # What came after the first iteration.
        seen |= {f"later_{name}": seen[name] - at for name, at in zip(STATS, first) if name in LATER}
        seen["books"] = "ok" if library.wp_check() == 0 else "wrong"
    else:
        seen["live_bytes"] = torch.cuda.max_memory_allocated()
        seen["reserved_bytes"] = torch.cuda.max_memory_reserved()
        seen["retries"] = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    seen["beside_bytes"] = free - torch.cuda.mem_get_info()[0] - seen["reserved_bytes"]
    if profile:
        seen["profile"] = profile.found
    print(json.dumps(seen), flush=True)
    if asked.trace:
        write_trace(torch, asked.trace)


if __name__ == "__main__":
    main()
