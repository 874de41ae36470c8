#!/usr/bin/env python3
"""What mapping handles elsewhere costs and saves, one JSON object a line.

    scripts/remap-lines.py > lines         in a bundle, on a machine with a GPU
    scripts/record-results.py remap-h200 ... < lines

Each trace of traces/ is played as the pool is, with a slack of 0.05, and in a pool that never maps a
handle elsewhere; every byte verified, and none; three times, in turns, and the play of the middle time
counts.
"""
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent.parent
ROUNDS = 3
PLAYS = {"": [], "slack ": ["--slack", "0.05"], "never ": ["--no-remap"]}


def run(*arguments):
    return subprocess.run([HERE / "run.sh", *arguments], capture_output=True, text=True, check=True).stdout


def line(name, peak, verified, plays):
    """`plays`: of each kind seconds, ratio reserved, handles mapped elsewhere."""
    row = {"program": name, "peak MiB": peak, "verified": verified}
    for kind, (wall, reserved, elsewhere) in plays.items():
        row |= {f"{kind}s": round(wall, 3), f"{kind}reserved": round(reserved, 4)}
        if kind != "never ":
            row[f"{kind}elsewhere"] = elsewhere
    row["times never"] = round(plays[""][0] / plays["never "][0], 2)
    print(json.dumps(row), flush=True)


def traces():
    for trace in sorted((HERE / "traces").glob("*.csv.gz")):
        for verify in ["full", "off"]:
            reports = {kind: [] for kind in PLAYS}
            for _ in range(ROUNDS):
                for kind, options in PLAYS.items():
                    said = run("replay", trace, "--device", "cuda:0", "--verify", verify, "--json", *options)
                    reports[kind].append(json.loads(said))
            for each in reports.values():
                each.sort(key=lambda report: report["wall_s"])
                if any(report["failed_allocs"] or report["corrupt_bytes"] for report in each):
                    sys.exit(f"{trace}: something failed or was corrupt")
            middle = {kind: each[ROUNDS // 2] for kind, each in reports.items()}
            plays = {
                kind: (report["wall_s"], report["reserved_ratio"], report["handles_remapped"])
                for kind, report in middle.items()
            }
            peak = middle[""]["peak_live_bytes"] >> 20
            line(trace.name.split(".")[0], peak, verify, plays)


traces()
