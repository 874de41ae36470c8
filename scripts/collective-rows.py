#!/usr/bin/env python3
"""Makes a row a size of what benches/collective.sh prints, for scripts/record-results.py.

    scripts/collective-rows.py < collective.jsonl | scripts/record-results.py collective-h200-x2 ...

Times are milliseconds; those of a reducer are of buckets from 32 MiB on.
"""
import json
import sys

NAMES = {
    "f32": "f32, pool memory",
    "PyTorch f32": "PyTorch f32",
    "f32 ncclMemAlloc": "f32, ncclMemAlloc",
    "f16 alone": "f16 alone, bytes of f32",
    "in f16": "f32 in f16, casts included, buckets of 32 MiB",
    "f16 with feedback": "with feedback, buckets of 32 MiB",
    "in e4m3": "f32 in e4m3, all included, buckets of 32 MiB",
    "e4m3 with feedback": "e4m3 with feedback, buckets of 32 MiB",
}

by_size = {}
for line in filter(str.strip, sys.stdin):
    row = json.loads(line)
    by_size.setdefault(row["bytes"], {})[row["what"]] = row["ms"]
for size, seen in sorted(by_size.items()):
    if NAMES["f32"] not in seen:
        continue
    unit = next(unit for unit in (30, 20, 10) if size >> unit)
    row = {"size": f"{size >> unit} {dict([(30, 'GiB'), (20, 'MiB'), (10, 'KiB')])[unit]}"}
    row |= {name: seen[what] for name, what in NAMES.items() if what in seen}
    row["f16 times"] = round(row["f32"] / row["in f16"], 3)
    row["e4m3 times"] = round(row["f32"] / row["in e4m3"], 3)
    print(json.dumps(row))
