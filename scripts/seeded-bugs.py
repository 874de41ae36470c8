"""Runs the tests under each known fault. See scripts/seeded-bugs.sh, which calls this."""

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FAULTS = Path("tests/seeded-bugs.diff")
TREE = Path("target/seeded/tree")
NAMED = re.compile(r'(?:seeded!|WP_SEEDED)\(\s*"([a-z0-9-]+)"')
# What the copy of the tree has beside the faults: which of them is in.
IS_IN_RUST = """
/// Whether WARPOOL_SEEDED names `fault`.
pub(crate) fn is_in(fault: &str) -> bool {
    static NAMED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let named = NAMED.get_or_init(|| std::env::var("WARPOOL_SEEDED").ok());
    named.as_deref() == Some(fault)
}
"""
IS_IN_CPP = """
#ifdef __CUDACC__
#define WP_SEEDED(fault) false
#else
#include <stdlib.h>
inline bool is_seeded(const char *fault) {
    const char *named = getenv("WARPOOL_SEEDED");
    return named != nullptr && strcmp(named, fault) == 0;
}
#define WP_SEEDED(fault) is_seeded(fault)
#endif
"""
# Test executables, and which of their tests, in the order they are tried.
TARGETS = [
    ("pool", "regressions::"),
    ("typed_order", ""),
    ("state_machine", "sim::the_pool"),
    ("state_machine", "sim::compaction"),
    ("lib", "--skip cuda::faults"),
    ("compact", "owners::"),
    ("soak", ""),
    ("state_machine", "sim::movable"),
    ("pool", "simulated::"),
    ("pool", "model::"),
    ("pool", "known_order::"),
    ("compact", "movable::"),
    ("compact", "order::"),
    ("compact", "spill::"),
    ("convert", "loss_scale::"),
    ("convert", "stochastic::"),
    ("convert", "pairs::"),
    ("device", "conformance::"),
    ("pool", "conformance::"),
    ("pool", "hot_path::"),
    ("pool", "simulated_graphs::"),
    ("compact", "cycles::"),
    ("compact", "failing_calls::whoever"),
    ("quantize", "mx::"),
    ("errors", "simulated"),
    ("bin", ""),
    ("observe", "command_line::several"),
    ("collective", ""),
]
SECONDS = 240
BEGIN, END = "<!-- seeded bugs: begin -->", "<!-- seeded bugs: end -->"
# Tried first, because it is known to see the fault: saves time, proves the same.
FIRST = {
    "handle-lost-when-its-map-fails": ("errors", "simulated"),
    "upward-slide-cut-from-below": ("lib", "compact::budget"),
    "first-hop-forgotten": ("lib", "compact::plan::ways"),
    "free-during-plan": ("soak", ""),
    "stale-plan-made-unchecked": ("lib", "--skip cuda::faults"),
    "patch-before-move": ("compact", "owners::"),
    "block-freed-under-a-pin": ("compact", "movable::"),
    "stale-handle-accepted": ("compact", "movable::"),
    "address-word-stored-under-its-readers": ("compact", "order::"),
    "pool-dropped-under-queued-work": ("pool", "model::"),
    "released-under-queued-work": ("pool", "model::"),
    "scale-backs-off-to-nothing": ("convert", "loss_scale::"),
    "inverse-scale-stays-after-growth": ("convert", "loss_scale::"),
    "tail-of-f16-does-not-saturate": ("convert", "pairs::"),
    "draws-repeat-with-the-strip": ("convert", "stochastic::"),
    "any-size-of-a-bin-will-do": ("pool", "simulated::"),
    "stolen-memory-is-anyones": ("pool", "simulated::"),
    "corrupt-bytes-not-reported": ("bin", ""),
    "remaps-not-reported": ("bin", ""),
    "verified-bytes-not-compared": ("bin", ""),
    "lost-output-is-no-error": ("bin", ""),
    "slow-frees-not-reported": ("lib", "--skip cuda::faults"),
    "peak-read-as-the-current-value": ("lib", "--skip cuda::faults"),
    "growing-beyond-the-limit": ("lib", "pool::grow_buf"),
    "idle-memory-kept-from-growing-buffers": ("lib", "pool::grow_buf"),
    "failed-growth-keeps-its-handles": ("lib", "pool::grow_buf"),
    "failed-growth-forgets-queued-work": ("lib", "pool::grow_buf"),
    "shrunk-bytes-stay-on-the-books": ("lib", "pool::grow_buf"),
    "shrunk-under-queued-work": ("lib", "pool::grow_buf"),
    "growing-buffer-forgets-its-uses": ("lib", "pool::grow_buf"),
    "soft-limit-without-growing-buffers": ("lib", "pool::grow_buf"),
    "pressure-forgets-growing-buffers": ("lib", "pool::grow_buf"),
    "growing-buffers-outlive-their-pool": ("lib", "pool::grow_buf"),
    "growing-buffer-shrinks-under-its-graph": ("lib", "pool::grow_buf"),
    "growing-buffer-dropped-under-its-graph": ("lib", "pool::grow_buf"),
    "shrunk-part-not-waited-for": ("lib", "pool::grow_buf"),
    "free-memory-of-the-device-asked-once": ("lib", "pool::grow"),
    "growth-under-way-not-counted": ("lib", "pool::grow"),
    "kept-mapping-of-another-handle": ("lib", "pool::release"),
    "kept-mapping-outlives-its-handle": ("lib", "pool::release"),
    "shrunk-under-its-uses": ("pool", "conformance::"),
    "grown-in-place-without-a-wait": ("pool", "conformance::"),
    "kept-plan-moves-pinned-blocks": ("pool", "conformance::"),
    "resize-copies-under-pending-uses": ("pool", "conformance::"),
    "closed-pool-frees-without-a-wait": ("pool", "conformance::"),
    "taken-over-with-what-was-freed-meanwhile": ("pool", "conformance::"),
    "event-waited-for-is-the-one-recorded-again": ("pool", "conformance::"),
    "stale-mappings-hold-nothing": ("pool", "conformance::"),
    "ended-lane-serves-a-request": ("lib", "pool::cache::stream_cache"),
    "nearest-block-may-be-smaller": ("lib", "pool::cache::crowd"),
    "nearest-block-has-the-size-asked-for": ("lib", "pool::cache::crowd"),
    "pressure-asks-again-and-again": ("pool", "conformance::"),
    "a-host-call-drops-without-a-wait": ("pool", "conformance::"),
    "runs-joined-under-their-uses": ("lib", "compact::join"),
    "record-begun-before-the-capture": ("pool", "conformance::"),
    "record-counted-after-it-is-made": ("lib", "device::timeline"),
    "two-threads-record-at-once": ("typed_order", "recording::"),
    "capture-begins-amid-a-call": ("typed_order", "recording::"),
    "graph-freed-beside-work-at-its-begin": ("typed_order", "recording::"),
    "edge-from-outside-the-capture": ("typed_order", "recording::"),
    "join-forgets-a-history": ("lib", "heap::extents"),
    "longest-tensor-forgotten": ("lib", "convert::table"),
    "sleeping-memory-is-used": ("pool", "conformance::"),
    "operations-under-way-not-waited-for": ("pool", "conformance::"),
    "put-to-sleep-under-queued-work": ("pool", "sleeping::"),
    "upward-parts-from-below": ("lib", "--skip cuda::faults"),
    "run-moves-if-its-last-does": ("lib", "--skip cuda::faults"),
    "failed-step-tells-nobody": ("compact", "failing_calls::whoever"),
    "slide-taken-back-the-same-way": ("compact", "cycles::"),
    "old-block-freed-ahead-of-its-copy": ("pool", "conformance::"),
    "retired-stream-keeps-its-cache": ("pool", "conformance::"),
    "free-slots-counted-as-live": ("pool", "conformance::"),
    "refused-wait-made-by-nobody": ("pool", "conformance::"),
    "freed-elsewhere-under-its-capture": ("pool", "conformance::"),
    "failed-capture-keeps-its-lanes": ("pool", "conformance::"),
    "private-part-reused-across-streams": ("pool", "conformance::"),
    "peaks-go-with-their-stream": ("lib", "pool::stats"),
    "graph-freed-behind-its-first-stream-only": ("pool", "simulated_graphs::"),
    "state-read-before-it-came": ("convert", "loss_scale::"),
    "found-is-that-of-the-last-tile": ("convert", "loss_scale::"),
    "rows-of-padding-not-zeroed": ("quantize", "mx::"),
    "growing-buffers-stay-awake": ("pool", "conformance::"),
    "shrunk-asleep-is-made": ("pool", "conformance::"),
    "streams-known-by-their-handles": ("pool", "conformance::"),
    "handles-go-while-they-are-saved": ("pool", "conformance::"),
    "what-stayed-awake-is-restored": ("errors", "sleeping_calls::host"),
    "fitted-scale-twice-too-large": ("collective", ""),
    "used-block-carries-the-tick-of-its-drop": ("lib", "pool::cache::used"),
    "launch-after-the-type-forgotten": ("pool", "conformance::"),
    "outcome-of-the-last-trace": ("observe", "command_line::several"),
    "largest-of-the-step-before-kept": ("collective", ""),
    "seed-not-passed-on": ("bin", ""),
    "event-waited-for-by-the-gate-alone": ("lib", "device::event"),
    "guard-runs-beside-later-launches": ("lib", "device::timeline"),
    "graphs-meet-without-their-last-launch": ("lib", "device::records"),
    "guard-runs-beside-launches-of-others": ("lib", "device::timeline"),
    "launch-of-a-graph-that-goes-forgotten": ("lib", "device::timeline"),
    "drop-amid-a-begin-waits-for-nothing": ("lib", "pool::cache::used"),
    "rest-free-ahead-of-a-launch": ("lib", "pool::tests"),
    "failed-copy-to-the-host-not-noted": ("lib", "movable::spill"),
    "capture-ends-ahead-of-its-guards": ("typed_order", "movables::"),
    "capture-ends-ahead-of-late-work": ("typed_order", "kernels::"),
    "capture-ends-ahead-of-waits-made-for-others": ("pool", "conformance::"),
    "late-wait-of-a-capture-is-its-gates": ("typed_order", "recording::"),
    "captured-work-launched-before-it-is-queued": ("typed_order", "kernels::"),
    "late-work-meets-no-graph": ("typed_order", "kernels::"),
    "call-queued-ahead-of-what-its-capture-waits-for": ("typed_order", "recording::"),
    "copy-of-a-resize-captured": ("compact", "threads::a_block_is"),
    "graphs-captured-under-a-hold-forgotten": ("compact", "owners::"),
    "stream-not-behind-itself": ("pool", "conformance::"),
    "block-left-to-a-capture-that-ends": ("pool", "regressions::"),
    "done-work-counts-for-a-steal": ("pool", "conformance::"),
    "wait-for-what-is-done-does-not-count": ("lib", "pool::cache::transfer"),
    "gives-up-before-a-last-look": ("lib", "pool::ladder"),
    "host-calls-flush-to-zero": ("lib", "device::host"),
    "incomplete-check-of-a-peer-passes": ("lib", "observe::report"),
}
# Likewise, of a file's faults, or a folder's.
USUAL = {
    "src/pool/sleep.rs": [("pool", "conformance::"), ("errors", "sleeping_calls::host")],
    "src/pool/sparing.rs": [("lib", "pool::sparing")],
    "src/movable/spill.rs": [("compact", "spill::"), ("state_machine", "sim::compaction")],
    "compact": [("state_machine", "sim::compaction")],
    "movable": [("state_machine", "sim::compaction")],
    "heap": [("state_machine", "sim::the_pool")],
    "arena": [("state_machine", "sim::the_pool")],
    "pool": [("state_machine", "sim::the_pool")],
    "device": [("state_machine", "sim::the_pool"), ("typed_order", "")],
    "collective": [("collective", "")],
    "host": [("lib", "host::"), ("pool", "conformance::")],
}
# A replay of the recorded traces sees these too, faults of memory that goes from stream to stream. Not so
# that of windows: there an earlier step puts together what holes of several streams lie side by side.
REPLAY = ("observe", "replay::the_recorded_traces_on_several_streams")
HANDED_OVER = [
    "any-free-slot-will-do",
    "cache-forgets-its-histories",
    "done-a-record-early",
    "event-recorded-again-too-early",
    "foreign-free-carries-the-home-tick",
    "free-carries-the-record-before",
    "large-blocks-forget-their-histories",
    "merge-of-holes-not-done",
    "one-query-answers-for-later-work",
    "slot-forgets-its-history",
    "taken-over-without-a-wait",
    "taken-without-a-wait",
    "wait-covers-the-next-record",
    "wait-learnt-and-not-made",
    "waited-for-the-record-before",
]
ENVIRONMENT = {
    **os.environ,
    "PROPTEST_RNG_SEED": "1",
    "PROPTEST_MAX_SHRINK_ITERS": "1",
    "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
    "RUST_BACKTRACE": "0",
    "RUST_TEST_THREADS": "2",
    "CARGO_MANIFEST_DIR": os.getcwd(),
}


# Beside the executables: the command line itself, which tests run.
PROGRAM = "warpool"
BUNDLE = "executables.tar.xz"


def hunks():
    """(file, lines before, lines with the fault) of every change of the sources."""
    found = []
    for line in FAULTS.read_text().splitlines(keepends=True):
        if line.startswith("+++ "):
            path = line.split("/", 1)[1].strip()
        elif line.startswith("@@"):
            found.append((path, [], []))
        elif not line.startswith("--- "):
            _, before, after = found[-1]
            if line[0] in " -":
                before.append(line[1:])
            if line[0] in " +":
                after.append(line[1:])
    return [(path, "".join(before), "".join(after)) for path, before, after in found]


def planted():
    """The texts of the files that the copy of the tree has otherwise."""
    texts, places = {}, {}
    for path, before, after in hunks():
        text = texts.setdefault(path, Path(path).read_text())
        if text.count(before) != 1:
            sys.exit(f"{FAULTS}: {path} has these lines {text.count(before)} times, not once:\n{before}")
        places.setdefault(path, []).append((text.index(before), before, after))
    for path, changes in places.items():
        for at, before, after in sorted(changes, reverse=True):
            texts[path] = texts[path][:at] + after + texts[path][at + len(before) :]
        texts[path] = texts[path].replace("seeded!(", "crate::seeded::is_in(")
    for path, module in [("src/lib.rs", "mod seeded;"), ("src/bin/warpool.rs", '#[path = "../seeded.rs"]\nmod seeded;')]:
        texts[path] = texts.get(path, Path(path).read_text()) + f"\n{module}\n"
    texts["src/seeded.rs"] = IS_IN_RUST
    shim = "kernels/host/shim.h"
    texts[shim] = Path(shim).read_text().replace('#include "warpool.h"\n', f'#include "warpool.h"\n{IS_IN_CPP}', 1)
    return texts


def plant():
    """Makes the copy of the tree; a file that is as before stays, so that little is built again."""
    texts = planted()
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], check=True, stdout=subprocess.PIPE, text=True)
    wanted = {path: Path(path).read_bytes() for path in listed.stdout.splitlines() if Path(path).is_file()}
    wanted |= {path: text.encode() for path, text in texts.items()}
    for path, content in wanted.items():
        copy = TREE / path
        if not copy.is_file() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
    for copy in [copy for copy in TREE.rglob("*") if copy.is_file() and "target" not in copy.relative_to(TREE).parts]:
        if str(copy.relative_to(TREE)) not in wanted:
            copy.unlink()


def build():
    """The test executables by name, and the program that tests run."""
    plant()
    wanted = []
    for target in dict([*TARGETS, REPLAY]):
        wanted += {"lib": ["--lib"], "bin": ["--bin", "warpool"]}.get(target, ["--test", target])
    command = ["cargo", "test", "--manifest-path", TREE / "Cargo.toml"]
    command += ["-j2", "--no-run", "--no-default-features", "--features"]
    command += ["sanitize,cli,convert,nccl", "--target-dir", "target/seeded", *wanted]
    command += ["--message-format=json-render-diagnostics"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for line in lines.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["executable"]:
            continue
        kind, name = message["target"]["kind"][0], message["target"]["name"]
        if message["profile"]["test"]:
            found[name if kind == "test" else kind] = message["executable"]
        elif name == PROGRAM:
            found[PROGRAM] = message["executable"]
    return found


def lay(executables, folder):
    """Packs the executables into one archive of the folder, stripped."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / BUNDLE, "w:xz", preset=2) as archive:
        for name, path in executables.items():
            subprocess.run(["strip", "-o", folder / name, path], check=True)
            archive.add(folder / name, name)
            (folder / name).unlink()
    print(f"{folder / BUNDLE}: {(folder / BUNDLE).stat().st_size >> 20} MiB")


def laid(folder):
    """The executables of an archive that was laid there."""
    with tarfile.open(folder / BUNDLE) as archive:
        archive.extractall(folder, filter="data")
        return {name: str((folder / name).resolve()) for name in archive.getnames()}


def faults():
    """(name, file) of every fault."""
    return [(name, path) for path, _, after in hunks() for name in NAMED.findall(after)]


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
    folder = path.split("/")[1]
    first = [FIRST[fault]] if fault in FIRST else USUAL.get(path, USUAL.get(folder, []))
    for target, only in [*first, *(its for its in TARGETS if its not in first)]:
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
            f"| {fault.replace('-', ' ')} | `{path.removeprefix('src/')}` | {by} | {count} | {seconds:.1f} |"
        )
    return "\n".join(lines)


def record(rows):
    path = Path("tests/README.md")
    text = path.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    caught = sum(row[2] is not None for row in rows)
    summary = f"{caught} of {len(rows)} caught."
    path.write_text(f"{text[:begin]}\n{summary}\n\n{table(rows)}\n{text[end:]}")


def arguments():
    parser = argparse.ArgumentParser(description="runs the tests under each known fault")
    parser.add_argument("faults", nargs="*", help="these alone")
    parser.add_argument("--record", action="store_true", help="write the table into tests/README.md")
    parser.add_argument("--no-clean-run", action="store_true", help="take it that all passes without a fault")
    parser.add_argument("--jobs", type=int, default=1, help="faults at once; each takes two cores")
    parser.add_argument("--lay", type=Path, help="build alone, into this folder")
    parser.add_argument("--at", type=Path, help="take what was laid in this folder, on a machine without Rust")
    return parser.parse_args()


def main():
    args = arguments()
    known = faults()
    twice = {name for name, _ in known if sum(name == other for other, _ in known) > 1}
    unknown = set(args.faults) - {name for name, _ in known}
    if twice or unknown:
        sys.exit(f"named twice: {sorted(twice)}; no fault: {sorted(unknown)}")
    executables = laid(args.at) if args.at else build()
    if args.lay:
        return lay(executables, args.lay)
    ENVIRONMENT["CARGO_BIN_EXE_warpool"] = executables[PROGRAM]
    with ThreadPoolExecutor(args.jobs) as pool:
        if not args.faults and not args.no_clean_run:
            outcomes = pool.map(lambda it: run(executables[it[0]], it[1]), TARGETS)
            for (target, _), (outcome, test, _) in zip(TARGETS, outcomes):
                if outcome != "passes":
                    sys.exit(f"without a fault {target} {outcome} {test}")
            print(f"without a fault all {len(executables) - 1} executables pass", flush=True)

        def tried(known):
            fault, path = known
            row = (fault, path, *try_fault(executables, fault, path))
            sees = fault in HANDED_OVER
            overlooked = sees and run(executables[REPLAY[0]], REPLAY[1], fault)[0] == "passes"
            print(table([row]).splitlines()[-1], flush=True)
            return row, overlooked

        chosen = [it for it in known if not args.faults or it[0] in args.faults]
        outcomes = list(pool.map(tried, chosen))
    rows = [row for row, _ in outcomes]
    overlooked = [row[0] for row, passed in outcomes if passed]
    missed = [row[0] for row in rows if row[2] is None]
    if args.record:
        record(rows)
    print(f"{len(rows) - len(missed)} of {len(rows)} caught; missed: {missed}")
    print(f"of those that a replay sees too it overlooked: {overlooked}")
    sys.exit(bool(missed or overlooked))


main()
