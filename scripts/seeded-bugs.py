"""Runs the tests under each known fault. See scripts/seeded-bugs.sh, which calls this."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

# Test executables, and which of their tests, in the order they are tried.
TARGETS = [
    ("found", ""),
    ("state_machine", "sim::the_pool"),
    ("state_machine", "sim::compaction"),
    ("lib", "--skip cuda::faults"),
    ("movable_owners", ""),
    ("soak", ""),
    ("state_machine", "sim::movable"),
    ("sim_pool", ""),
    ("pool_model", ""),
    ("learnt_order", ""),
    ("movable", ""),
    ("movable_sanitize", ""),
    ("device_conformance", ""),
    ("pool_conformance", ""),
    ("pool_counts", ""),
    ("faults", "simulated"),
]
SECONDS = 240
BEGIN, END = "<!-- seeded bugs: begin -->", "<!-- seeded bugs: end -->"
# Tried first, because it is known to see the fault: saves time, proves the same.
FIRST = {
    "handle-lost-when-its-map-fails": ("faults", "simulated"),
    "upward-slide-cut-from-below": ("lib", "--skip cuda::faults"),
    "first-hop-forgotten": ("lib", "--skip cuda::faults"),
    "free-during-plan": ("soak", ""),
    "stale-plan-made-unchecked": ("lib", "--skip cuda::faults"),
    "patch-before-move": ("movable_owners", ""),
    "block-freed-under-a-pin": ("movable", ""),
    "stale-handle-accepted": ("movable", ""),
    "address-word-stored-under-its-readers": ("movable_sanitize", ""),
    "pool-dropped-under-queued-work": ("pool_model", ""),
    "released-under-queued-work": ("pool_model", ""),
    "any-size-of-a-bin-will-do": ("sim_pool", ""),
    "stolen-memory-is-anyones": ("sim_pool", ""),
}
ENVIRONMENT = {
    **os.environ,
    "PROPTEST_RNG_SEED": "1",
    "PROPTEST_MAX_SHRINK_ITERS": "1",
    "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
    "RUST_BACKTRACE": "0",
    "RUST_TEST_THREADS": "2",
    "CARGO_MANIFEST_DIR": os.getcwd(),
}


def build():
    """The test executables by name."""
    wanted = []
    for target in dict(TARGETS):
        wanted += ["--lib"] if target == "lib" else ["--test", target]
    command = ["cargo", "test", "-j2", "--no-run", "--no-default-features", "--features"]
    command += ["sanitize", "--target-dir", "target/seeded", *wanted]
    command += ["--message-format=json-render-diagnostics"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for line in lines.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["executable"]:
            name = message["target"]["name"]
            found["lib" if name == "warpool" else name] = message["executable"]
    return found


def faults():
    """(name, file) of every fault in src."""
    named = []
    for path in sorted(Path("src").rglob("*.rs")):
        for name in re.findall(r'seeded!\(\s*"([a-z0-9-]+)"', path.read_text()):
            named.append((name, str(path)))
    return named


def cases(log):
    """Programs run up to the failing one, as far as the failing test counts them."""
    if counted := re.search(r"^\s*successes: (\d+)", log, re.MULTILINE):
        return int(counted.group(1)) + 1
    if counted := re.search(r"\bseed (\d+): ", log):
        return int(counted.group(1)) + 1
    return 1


def run(executable, only, fault=None):
    """(outcome, failing test, cases) of one test executable, or those of its tests named `only`."""
    environment = {**ENVIRONMENT, **({"WARPOOL_SEEDED": fault} if fault else {})}
    try:
        done = subprocess.run(
            [executable, *only.split()],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "hangs", "", 1
    log = done.stdout.decode(errors="replace")
    if done.returncode == 0:
        return "passes", "", 0
    failed = re.search(r"^failures:\n+((?:    .*\n)+)", log[log.rfind("\nfailures:\n") + 1 :])
    test = failed.group(1).split()[0] if failed else ""
    said = log
    if test and (at := log.find(f"---- {test} stdout ----")) >= 0:
        said = log[at:]
    return ("fails" if test else f"ends with {done.returncode}"), test, cases(said)


def try_fault(executables, fault, path):
    """(target, outcome, test, cases, seconds) of the first test that sees the fault."""
    begin = time.monotonic()
    first = FIRST.get(fault)
    if first is None and "compact" in path or "movable" in path:
        first = ("state_machine", "sim::compaction")
    for target, only in sorted(TARGETS, key=lambda its: its != first):
        outcome, test, count = run(executables[target], only, fault)
        if outcome != "passes":
            return target, outcome, test, count, time.monotonic() - begin
    return None, "passes", "", 0, time.monotonic() - begin


def table(rows):
    lines = [
        "| fault | in | caught by | programs | s |",
        "|---|---|---|---|---|",
    ]
    for fault, path, target, outcome, test, count, seconds in rows:
        by = f"`{target}`: {test.split('::', 1)[-1].replace('_', ' ') or outcome}"
        if target is None:
            by = "**nothing**"
        lines.append(
            f"| {fault.replace('-', ' ')} | `{path[4:]}` | {by} | {count} | {seconds:.1f} |"
        )
    return "\n".join(lines)


def record(rows):
    path = Path("tests/README.md")
    text = path.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    caught = sum(row[2] is not None for row in rows)
    summary = f"{caught} of {len(rows)} caught."
    path.write_text(f"{text[:begin]}\n{summary}\n\n{table(rows)}\n{text[end:]}")


def main():
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    known = faults()
    twice = {name for name, _ in known if sum(name == other for other, _ in known) > 1}
    unknown = set(names) - {name for name, _ in known}
    if twice or unknown:
        sys.exit(f"named twice in src: {sorted(twice)}; not in src: {sorted(unknown)}")
    executables = build()
    if not names and "--no-clean-run" not in sys.argv:
        for target, only in TARGETS:
            outcome, test, _ = run(executables[target], only)
            if outcome != "passes":
                sys.exit(f"without a fault {target} {outcome} {test}")
        print(f"without a fault all {len(executables)} executables pass", flush=True)
    rows = []
    for fault, path in known:
        if names and fault not in names:
            continue
        row = (fault, path, *try_fault(executables, fault, path))
        rows.append(row)
        print(table([row]).splitlines()[-1], flush=True)
    missed = [row[0] for row in rows if row[2] is None]
    if "--record" in sys.argv:
        record(rows)
    print(f"{len(rows) - len(missed)} of {len(rows)} caught; missed: {missed}")
    sys.exit(bool(missed))


main()
