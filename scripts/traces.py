#!/usr/bin/env python3
"""Replays recorded traces on the host device and prints one line for each: what it may reserve over live
bytes and what it does, handles remapped and made, seconds.

    scripts/traces.py [--bin PATH] [--cap] [--movable] [--jobs N] [trace or option of replay]...

Without a trace: every *.csv.gz of traces/ and of a folder shared/traces beside the repository.
--cap replays each again under a limit of what it reserved, but no more than it may reserve; --movable
too with all blocks movable. Other options go to `warpool replay`.
"""

import argparse
import importlib
import json
import pathlib
import subprocess
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


def line(args, trace, options):
    name = pathlib.Path(trace).name.removesuffix(".gz").removesuffix(".csv")
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
