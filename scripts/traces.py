#!/usr/bin/env python3
"""Replays recorded traces on the host device and prints one line for each: what it may reserve over live
bytes and what it does, handles remapped and made, seconds.

    scripts/traces.py [--bin PATH] [--cap] [--movable] [--thinned N] [--jobs N] [trace or option of replay]...

Without a trace: every *.csv.gz of traces/ and of a folder shared/traces beside the repository.
--cap replays each again under a limit of what it reserved, but no more than it may reserve; --movable
too with all blocks movable. --thinned prints means of N traces in place of each: itself, and copies that lack a
fiftieth of the blocks, each others. A ratio moves by up to a hundredth with any change of what is placed where, means
of sixteen by a third of that. Other options go to `warpool replay`.
"""

import argparse
import gzip
import importlib
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
trace_bounds = importlib.import_module("trace-bounds")

# 2 MiB pages that hold a live byte under an exact best fit in one endless range, over live bytes. Those of other
# traces are made by trace-bounds.py.
BOUNDS = {"gpt2": 1.002, "resnet50": 1.002, "detect": 1.002, "moe": 1.004, "dino": 1.002,
          "llama": 1.002, "tables": 1.010, "rl": 1.048, "five_streams": 1.026}


def allowed(name, trace):
    """What the trace may reserve: 1.02, or 0.01 above its bound where that is more."""
    known = [bound for key, bound in BOUNDS.items() if name.startswith(key)]
    bound = known[0] if known else trace_bounds.bounds(trace)[1]
    return max(1.02, bound + 0.01)


def replay(binary, trace, *options):
    command = [binary, "replay", trace, "--device", "host", "--verify", "off", "--json", *options]
    run = subprocess.run(command, capture_output=True, text=True)
    lines = run.stdout.strip().splitlines()
    if not lines:
        return None, run.stderr.strip()
    return json.loads(lines[-1]), run.stderr.strip()


def cell(report, error):
    if report is None:
        return f"error: {error}"
    state = "" if report["failed_allocs"] == 0 else " FAILED"
    return (f"{report['reserved_ratio']:8.4f} {report['handles_remapped']:6d} {report['handles_made']:6d}"
            f" {report['wall_s']:6.2f}{state}")


def thin(trace, seed, path):
    """Writes the trace without a fiftieth of its blocks; with seed 0 as it is."""
    draw, gone = random.Random(seed), set()
    with gzip.open(trace, "rt") as file, gzip.open(path, "wt", compresslevel=1) as copy:
        copy.write(next(file))
        for row in file:
            _, _, action, name = row.split(",")[:4]
            if action.startswith("alloc") and seed > 0 and draw.random() < 0.02:
                gone.add(name)
            elif action.startswith("alloc") or name not in gone:
                copy.write(row)
            else:
                gone.remove(name)


def name_of(trace):
    return pathlib.Path(trace).name.removesuffix(".gz").removesuffix(".csv")


def thinned(args, trace, options):
    """Means over traces that each lack other blocks, and how many of them hold more than they may."""
    kept = ("reserved_ratio", "handles_remapped", "handles_made", "wall_s")
    rows, most, over = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/{pathlib.Path(trace).name}"
        for seed in range(args.thinned):
            thin(trace, seed, path)
            # The bound of the trace as it is is known, not that of a copy.
            most.append(allowed("" if seed else name_of(trace), path))
            report, error = replay(args.bin, path, *options)
            if report is None:
                return f"{name_of(trace)[:24]:24} error: {error}"
            rows.append([report[key] for key in kept])
            over += report["reserved_ratio"] > most[-1]
    ratio, remapped, made, wall = (statistics.mean(row) for row in zip(*rows))
    means = f"{ratio:8.4f} {remapped:6.0f} {made:6.0f} {wall:6.2f}"
    return f"{name_of(trace)[:24]:24} {statistics.mean(most):7.4f} | {means}, {over} of {len(rows)} over"


def line(args, trace, options):
    if args.thinned > 0:
        return thinned(args, trace, options)
    name = name_of(trace)
    free, error = replay(args.bin, trace, *options)
    may = allowed(name, trace)
    cells = [f"{may:7.4f}", cell(free, error)]
    if free and (args.cap or args.movable):
        own = free["reserved_ratio"] + 0.0005
        most = free["peak_live_bytes"] * may
        cap = int(min(max(free["peak_live_bytes"] * own, free["peak_reserved_bytes"]), most))
        for option in [[]] * args.cap + [["--movable", "all"]] * args.movable:
            cells.append(cell(*replay(args.bin, trace, "--cap", str(cap), *option, *options)))
    return f"{name[:24]:24} " + " | ".join(cells)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=str(ROOT / "target/release/warpool"))
    parser.add_argument("--cap", action="store_true")
    parser.add_argument("--movable", action="store_true")
    parser.add_argument("--thinned", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("rest", nargs="*")
    args, options = parser.parse_known_args()
    traces = args.rest
    if not traces:
        folders = [ROOT / "traces", ROOT / "../shared/traces", ROOT / "../../shared/traces"]
        found = {path.name: path for folder in folders for path in pathlib.Path(folder).glob("*.csv.gz")}
        traces = [str(found[name]) for name in sorted(found)]
    modes = ["free"] + ["cap"] * args.cap + ["cap, all movable"] * args.movable
    print(f"{'':24} allowed | " + " | ".join(f"{mode:>8}  remap   made   wall" for mode in modes))
    with ThreadPoolExecutor(args.jobs) as pool:
        for row in pool.map(lambda trace: line(args, trace, options), traces):
            print(row, flush=True)


if __name__ == "__main__":
    main()
