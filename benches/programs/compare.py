"""Runs programs under several allocators in alternation, and makes the table of it.

    python3 compare.py run RUNS.jsonl --programs moe,rl --rounds 7 [--allocators warpool,expandable]
    python3 compare.py table RUNS.jsonl --commit C --command '...' > benches/results/programs-h200.json
    python3 compare.py pooled benches/results/programs*h200.jsonl > benches/results/programs-pooled-h200.json

`run` adds a line a run to RUNS.jsonl and passes over what is there already, so a call that was cut
short is made again. A run of each program that is not counted comes first. Every round runs each
allocator once, each time another one first, since a machine drifts. `empty` is the plug with no pool
behind it. `table` prints, per program, medians over the rounds: of the pool's speed over that of the
allocator that is fastest by its median, in the same round; of time inside the pool; of what was
reserved. From the second loss on: of handles made or mapped; of the part of the time, in per cent, that
threads that ask for memory spend in the driver; and of the nanoseconds of a pair of calls beside that,
the plug's own and, if `empty` ran, an empty pair's in the same program; and the same of other pools.
Several pools are compared by naming them: --plugs new=a.so,old=b.so. --limits 1000,2000 gives each allocator no more
than so many MiB, one after another; --left 1.1,1.05 has a device on which no more is free than this many times what the
program's blocks have at their peak, and what it takes besides. `pooled` prints, per program and peer, in
how many rounds of all files both ran, and the median, the tenth and the ninetieth percentile of the pool's speed
over the peer's: rounds of all hosts and of all versions of the pool that were recorded. `sittings` prints the medians
of each file that has --least rounds of a program. `limited` prints what each
allocator did under --limits or --left: seconds, or where it ran out of memory.
"""

import argparse
import itertools
import json
import os
import re
import statistics
import sys
import traceback
from pathlib import Path

import run as run_py


def rows(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def one(program, allocator, plugs):
    """The row of one run, in a process of its own that starts with PyTorch loaded."""
    receiving, sending = os.pipe()
    process = os.fork()
    if process == 0:
        os.dup2(sending, 1)
        # PyTorch reads which backend it has while it is loaded.
        if run_py.PEERS.get(allocator, "").startswith("backend:"):
            os.execv(sys.executable, [sys.executable, run_py.__file__, program, allocator])
        if allocator in plugs:
            os.environ["PLUG"] = plugs[allocator]
        code = 1
        try:
            run_py.main([program, "warpool" if allocator in plugs else allocator])
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    os.close(sending)
    with os.fdopen(receiving) as said:
        lines = [line for line in said if line.startswith("{")]
    _, status = os.waitpid(process, 0)
    if not lines:
        return dict(program=program, allocator=allocator, outcome=f"exit {status}")
    return json.loads(lines[-1]) | dict(allocator=allocator)


def settings(asked, program, plugs):
    """What the program is run under: what its name says of it, and variables."""
    if not asked.left:
        for mib in map(int, asked.limits.split(",")):
            yield f" in {mib} MiB" if mib else "", dict(MEMORY_LIMIT=mib << 20)
        return
    needs = one(program, "warpool", plugs)
    for part in asked.left.split(","):
        left = int(needs["beside_bytes"] + float(part) * needs["live_bytes"])
        yield f" with {part} left", dict(MEMORY_LEFT=left)


def run(asked):
    import torch  # noqa: F401 (not in each run: it takes seconds)

    plugs = dict(pair.split("=") for pair in asked.plugs.split(",") if pair)
    allocators = asked.allocators.split(",")
    there = {(row["program"], row["allocator"], row["round"]) for row in rows(asked.runs)}
    for program in asked.programs.split(","):
        # What is read from disk for the first time would count against the first allocator.
        one(program, allocators[-1], plugs)
    under = [(p, *it) for p in asked.programs.split(",") for it in settings(asked, p, plugs)]
    for number, (program, said, variables) in itertools.product(range(asked.rounds), under):
        for variable in ("MEMORY_LIMIT", "MEMORY_LEFT"):
            os.environ[variable] = str(variables.get(variable, 0))
        name = program + said
        turn = number % len(allocators)
        for allocator in allocators[turn:] + allocators[:turn]:
            if (name, allocator, number) not in there:
                row = one(program, allocator, plugs) | dict(program=name, round=number)
                with asked.runs.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


def pair_ns(row):
    """A pair of calls from the second loss on, beside the driver."""
    spent = row["later_alloc_ns"] + row["later_free_ns"] - row["later_driver_ns"]
    return spent / row["later_timed_allocs"]


def of_program(program, seen, pool):
    """The row of one program."""
    by_round = {}
    for row in seen:
        by_round.setdefault(row["round"], {})[row["allocator"]] = row
    whole = [its for its in by_round.values() if pool in its and len(its) > 1]
    # A pool of ours says how many handles it made.
    peers = sorted({name for its in whole for name, row in its.items() if "created" not in row})
    median = lambda values: statistics.median(list(values))
    ours = [its[pool] for its in whole]
    # Least of several that all vary would be less than any of them takes: one peer, the fastest.
    whole_of = {name: [its for its in whole if name in its] for name in peers}
    taken = {n: median(its[n]["seconds"] for its in rounds) for n, rounds in whole_of.items()}
    fastest = min(peers, key=taken.get)
    ratios = [its[fastest]["seconds"] / its[pool]["seconds"] for its in whole_of[fastest]]
    inside = [100e-9 * (row["alloc_ns"] + row["free_ns"]) / row["seconds"] for row in ours]
    line = dict(
        program=program,
        rounds=len(whole),
        seconds=round(median(row["seconds"] for row in ours), 2),
        fastest=fastest,
        speed=round(median(ratios), 3),
        inside=round(median(inside), 2),
        created=int(median(row["created"] for row in ours)),
        remapped=int(median(row["remapped"] for row in ours)),
        reserved=round(median(row["reserved_bytes"] / row["live_bytes"] for row in ours), 4),
    )
    if all("later_created" in row for row in ours):
        line["later"] = int(median(row["later_created"] + row["later_remapped"] for row in ours))
    # A program that notes its losses at its end has nothing later.
    if all(row.get("later_timed_allocs") for row in ours):
        line["driver"] = round(median(100e-9 * r["later_driver_ns"] / r["seconds"] for r in ours), 2)
        line["pair ns"] = round(median(map(pair_ns, ours)))
        empty = [its["empty"] for its in whole if "empty" in its]
        if empty:
            line["empty pair ns"] = round(median(map(pair_ns, empty)))
    for peer in peers:
        its = [rows[peer] for rows in whole_of[peer]]
        line[f"{peer} s"] = round(taken[peer], 2)
        line[f"{peer} reserved"] = round(
            median(row["reserved_bytes"] / row["live_bytes"] for row in its), 4
        )
    pools = {name for its in whole for name, row in its.items() if "created" in row}
    for other in sorted(pools - {pool, "empty"}):
        its = [its[other] for its in whole if other in its]
        line[f"{other} s"] = round(median(row["seconds"] for row in its), 2)
        line[f"{other} reserved"] = round(
            median(row["reserved_bytes"] / row["live_bytes"] for row in its), 4
        )
        line[f"{other} pair ns"] = round(median(map(pair_ns, its)))
    alone = [its["empty"]["seconds"] for its in whole if "empty" in its]
    if alone:
        line["empty s"] = round(median(alone), 2)
    sums = [row["loss_sum"] for its in whole for row in its.values()]
    far = max(sums) - min(sums) > 1e-4 * max(1.0, abs(sums[0]))
    line["losses"] = f"{min(sums)} to {max(sums)}" if far else "equal"
    return line


def rounds_of(path):
    """The rounds of one file, each its runs by allocator; a file may hold several calls of `run`."""
    by_round, seen = {}, set()
    for row in rows(path):
        same = tuple(row.get(key) for key in ("program", "allocator", "seconds", "alloc_ns"))
        if row["outcome"] != "ok" or same in seen:
            continue
        seen.add(same)
        call = 0
        while row["allocator"] in by_round.setdefault((row["program"], row.get("round"), call), {}):
            call += 1
        by_round[row["program"], row.get("round"), call][row["allocator"]] = row
    return by_round


def speeds(paths):
    """Of every round that is there: its file, its program, a peer, and the pool's speed over the peer's."""
    seen = set()
    for path in paths:
        for (program, *_), its in rounds_of(path).items():
            pool = its.get("warpool")
            for peer in ("native", "expandable", "cuda-async"):
                pair = (program, peer, pool and pool["seconds"], its.get(peer, {}).get("seconds"))
                # Some files hold rounds of others.
                if None not in pair and pair not in seen:
                    seen.add(pair)
                    yield path, program, peer, pair[3] / pair[2]


def pooled(asked):
    of_all = {}
    for _, program, peer, speed in speeds(asked.runs):
        of_all.setdefault(program, {}).setdefault(peer, []).append(speed)
    lines = []
    for program, by_peer in sorted(of_all.items()):
        line = dict(program=program)
        for peer, its in by_peer.items():
            its.sort()
            line[f"{peer} rounds"] = len(its)
            line[f"{peer} speed"] = round(statistics.median(its), 3)
            line[f"{peer} p10"] = round(its[len(its) // 10], 3)
            line[f"{peer} p90"] = round(its[-1 - len(its) // 10], 3)
        lines.append(line)
    write(asked, "The pool's speed over that of its peers, all recorded rounds", "NVIDIA H200", lines)


def sittings(asked):
    of_file = {}
    for path, program, peer, speed in speeds(asked.runs):
        of_file.setdefault((program, path.name), {}).setdefault(peer, []).append(speed)
    lines = []
    for (program, name), by_peer in sorted(of_file.items()):
        rounds = max(map(len, by_peer.values()))
        if rounds >= asked.least:
            medians = {peer: round(statistics.median(its), 3) for peer, its in by_peer.items()}
            lines.append(dict(program=program, record=name, rounds=rounds) | medians)
    write(asked, "The pool's speed over that of its peers, by record", "NVIDIA H200", lines)


def table(asked):
    seen = [row for row in rows(asked.runs) if row["outcome"] == "ok"]
    programs = sorted({row["program"] for row in seen})
    lines = [of_program(p, [row for row in seen if row["program"] == p], asked.pool) for p in programs]
    if asked.speeds:
        of_all = {row["program"]: row for row in json.loads(asked.speeds.read_text())["rows"]}
        lines = [line | of_all.get(line["program"], {}) for line in lines]
    write(asked, "Real PyTorch programs", seen[0]["gpu"], lines)


def limited(asked):
    """What each allocator did with as much memory; of several runs the last."""
    by_name, lines = {}, []
    for row in itertools.chain(*map(rows, asked.runs)):
        by_name.setdefault(row["program"], {})[row["allocator"]] = row
    for name, its in by_name.items():
        if not (found := re.fullmatch(r"(.*) (?:in (\d+) MiB|with (.*) left)", name)):
            continue
        program, mib, part = found.groups()
        ours, peers = its["warpool"], [peer for peer in its if peer != "warpool"]
        line = dict(program=program) | (dict(limit=int(mib) << 20) if mib else dict(left=float(part)))
        for peer in ["warpool", *peers]:
            row = its[peer]
            fits = row["outcome"] == "ok"
            # The plug ends its process, and says no number.
            fails = f"fails at loss {row['losses']}" if "losses" in row else "fails"
            line[peer] = round(row["seconds"], 2) if fits else fails
        if ours["outcome"] == "ok":
            if mib:
                line["of peak"] = round(line["limit"] / ours["live_bytes"], 3)
            line["driver"] = round(100e-9 * ours["later_driver_ns"] / ours["seconds"], 2)
            line["handles"] = ours["later_created"] + ours["later_remapped"]
        lines.append(line)
    write(asked, "Programs in little more memory than their blocks have", "NVIDIA H200", lines)


def write(asked, title, gpu, lines):
    columns = list(dict.fromkeys(name for line in lines for name in line))
    told = {name: getattr(asked, name) for name in ("driver", "commit", "date", "command")}
    print(json.dumps(dict(title=title, gpu=gpu, **told, columns=columns, rows=lines), indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    runs = verbs.add_parser("run")
    runs.add_argument("runs", type=Path)
    runs.add_argument("--programs", default="moe,rl,gpt,tables,resnet,detect,llama,dino")
    runs.add_argument("--allocators", default="warpool,native,expandable,cuda-async")
    runs.add_argument("--rounds", type=int, default=7)
    runs.add_argument("--limits", default="0")
    runs.add_argument("--left", default="")
    runs.add_argument("--plugs", default=f"warpool={os.environ.get('PLUG', '')}")
    runs.set_defaults(do=run)
    tables = verbs.add_parser("table")
    tables.add_argument("runs", type=Path)
    tables.add_argument("--pool", default="warpool")
    tables.add_argument("--speeds", type=Path)
    tables.set_defaults(do=table)
    pools = verbs.add_parser("pooled")
    pools.add_argument("runs", type=Path, nargs="+")
    pools.set_defaults(do=pooled)
    sits = verbs.add_parser("sittings")
    sits.add_argument("runs", type=Path, nargs="+")
    sits.add_argument("--least", type=int, default=5)
    sits.set_defaults(do=sittings)
    limits = verbs.add_parser("limited")
    limits.add_argument("runs", type=Path, nargs="+")
    limits.set_defaults(do=limited)
    for verb in (tables, pools, sits, limits):
        for name in ("driver", "commit", "date", "command"):
            verb.add_argument(f"--{name}", default="")
    asked = parser.parse_args()
    asked.do(asked)


main()
