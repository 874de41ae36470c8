#!/usr/bin/env python3
"""Keeps the figures of a command as one file of benches/results/.

    scripts/record-results.py NAME --title TEXT [--columns A,B,...] \
        --gpu TEXT --driver TEXT [--commit HASH] [--command TEXT] < lines

Standard input has one JSON object a line, as `warpool replay --json` prints them; each becomes a
row. The commit is that of the working tree unless given (a bundle's is in its file `commit`).
`cargo run -- benchmarks` then makes the tables and plots of the documents.
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent


def head():
    git = ["git", "-C", str(root)]
    commit = subprocess.check_output([*git, "rev-parse", "--short=10", "HEAD"], text=True).strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src", "kernels"]).returncode
    return commit + (" with changes" if changed else "")


parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("--title", required=True)
parser.add_argument("--columns", help="which figures, in order; all of them when left out")
parser.add_argument("--gpu", required=True, help="the GPU, or what the figures were taken on")
parser.add_argument("--driver", required=True, help="the driver's version, or none")
parser.add_argument("--commit", default=None)
parser.add_argument("--command", required=True, help="what was run")
options = parser.parse_args()

rows = [json.loads(line) for line in sys.stdin if line.strip()]
if not rows:
    sys.exit("error: no figures on standard input")
columns = options.columns.split(",") if options.columns else list(dict.fromkeys(k for r in rows for k in r))
missing = [column for column in columns if not any(column in row for row in rows)]
if missing:
    sys.exit(f"error: no row has {', '.join(missing)}")

path = root / "benches" / "results" / f"{options.name}.json"
result = {
    "title": options.title,
    "gpu": options.gpu,
    "driver": options.driver,
    "commit": options.commit or head(),
    "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    "command": options.command,
    "columns": columns,
    "rows": rows,
}
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
print(f"{path.relative_to(root)}: {len(rows)} rows", file=sys.stderr)
