#!/usr/bin/env python3
"""Runs the GPU's suites under every tool of compute-sanitizer, and prints a table of its reports.

    run.sh sanitizers                       in a bundle, on a machine with a GPU (about ten minutes)
    run.sh sanitizers --tools memcheck --suites observe::replay,soak --seconds 60 --jobs 4

A report is one that scripts/sanitizers-allowed.txt does not give a reason for. Suites run side by
side; one that does not end well, or that found the card full, is run once more, alone, since tests
of one GPU may be in each other's way. Exits 1 if there is a report, a failure, or a run without an end. The logs are put
where $OUT says, else in ./out, as sanitizers.tar.xz; the table as sanitizers.md.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]

# Every suite with tests on a GPU: an executable, or `executable::module`, and what the names of its
# tests must match, which leaves the other devices out. Left out are convert::every_input and
# convert::from_f64: the kernels of convert::conversions, on more numbers than a tool can watch.
SUITES = {
    "pool::conformance": "cuda",
    "device::conformance": "cuda",
    "unit-lib-warpool": "every_call_of_a_gpus_driver",
    "errors::every_call": "gpu",
    "errors::pool_calls": "cuda",
    "compact::failing_calls": "cuda",
    "state_machine": "cuda",
    "soak": "gpu",
    "observe::replay": "",
    "compact::movable": "cuda",
    "compact::at_the_limit": "cuda",
    "compact::owners": "cuda",
    "compact::threads": "cuda",
    "compact::kernels": "",
    "compact::pointers": "",
    "device::pattern": "",
    "convert::conversions": "",
    "convert::loss_scale": "",
    "convert::stochastic": "",
    "quantize": "",
    "pool::known_order": "cuda",
    "pool::hot_path": "",
    "errors::malformed": "",
    "device::several": "",
    "device::driver_pool": "",
    "device::rustacuda": "",
}

# How a report begins. What follows it (addresses, frames) does not.
REPORT = re.compile(
    r"========= +("
    r"Program hit .*|Invalid .*|Uninitialized .*|Barrier error .*|Error: .*|Warning: .*|Leaked .*"
    r"|Unused .*|Missing .*|Divergent .*|Out-of-range .*|Misaligned .*|.*[Rr]ace reported .*"
    r"|Stack overflow.*|Device-side .*|Internal .*)"
)
# What a suite says that others have left no memory, and the tool when they have left it none.
FULL = re.compile(r"OUT_OF_MEMORY|Unable to allocate enough memory|failure to track a kernel launch")
SUMMARY = re.compile(r"========= (?:ERROR SUMMARY: (\d+)|RACECHECK SUMMARY: (\d+))")
FRAME = re.compile(r"========= +Device Frame: (.*)\(wp.*in \S+:\d+")
ADDRESS = re.compile(r"0x[0-9a-f]+")
TEST = re.compile(r"^test (\S+) \.\.\. ")
ENDED = re.compile(r"^test result: \S+ (\d+) passed; (\d+) failed", re.MULTILINE)


def allowed_reports(path):
    """Rules of the list: tool, suite, test and message as patterns, and the reason."""
    rules = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 5 or not all(parts):
            sys.exit(f"{path}:{number}: five parts, none of them empty, between bars")
        rules.append(([re.compile(part) for part in parts[:4]], parts[4]))
    return rules


def tests_of(folder, suite):
    """The executable of a suite, and the names of its tests."""
    executable, _, module = suite.partition("::")
    command = [str(folder / executable), "--list", "--format", "terse"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    names = re.findall(r"^(\S+): test$", listed, re.MULTILINE)
    inside = [name for name in names if not module or name.startswith(f"{module}::")]
    return command[0], [name for name in inside if re.search(SUITES[suite], name)]


def kernel_of(lines):
    """The kernel of a report, from the frames behind it: the last of the device's."""
    kernel = ""
    for line in lines:
        if REPORT.search(line):
            break
        if frame := FRAME.search(line):
            kernel = f" in {frame[1]}"
    return kernel


def read_log(tool, suite, text, rules, used):
    """Reports without a reason, how many have one, whether the tool and the tests ended."""
    test, told, allowed = "", [], 0
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if begins := TEST.match(line):
            test = begins[1]
        if not (report := REPORT.search(line)):
            continue
        said = (tool, suite, test, report[1] + kernel_of(lines[number + 1 : number + 16]))
        for at, (patterns, _) in enumerate(rules):
            if all(pattern.search(part) for pattern, part in zip(patterns, said)):
                used.add(at)
                allowed += 1
                break
        else:
            told.append(f"{test}: {ADDRESS.sub('(address)', said[3])}")
    summaries = [int(one or two) for one, two in SUMMARY.findall(text)]
    # Reports of a kind that this script does not know.
    unknown = sum(summaries) - len(told) - allowed
    told += ["(a report of another kind)"] * max(unknown, 0)
    ends = ENDED.findall(text)
    passed, failed = (sum(int(end[at]) for end in ends) for at in (0, 1))
    return told, allowed, passed, failed, bool(ends)


class Runner:
    def __init__(self, options, tests, logs):
        self.options, self.tests, self.logs = options, tests, logs
        here = Path(__file__).resolve().parent
        self.rules = allowed_reports(here / "sanitizers-allowed.txt")
        self.used = set()
        self.stop = time.monotonic() + options.total

    def run(self, tool, suite):
        executable, names = tests_of(self.tests, suite)
        log = self.logs / f"{tool}-{suite.replace('::', '-')}.log"
        command = [self.options.sanitizer, "--tool", tool, "--error-exitcode", "99"]
        # As many as there are: those with a reason must not hide the others.
        command += ["--print-limit", "100000"]
        command += ["--require-cuda-init=no", executable, "--test-threads", "1", "--exact", *names]
        environment = dict(os.environ, WARPOOL_REQUIRE_GPU="1", WARPOOL_SANITIZER="1")
        environment.setdefault("WARPOOL_SOAK_SECONDS", "15")
        # These two keep their own books of each launch, and lose them where launches overlap
        # (tests/README.md): one at a time, which changes nothing of what they look for.
        if tool in ("initcheck", "racecheck"):
            environment["CUDA_LAUNCH_BLOCKING"] = "1"
        began, ended = time.monotonic(), True
        with log.open("w") as to:
            # In a group of its own: the tool's end is not the end of the tests that it runs.
            process = subprocess.Popen(
                command, stdout=to, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,
            )
            try:
                process.wait(self.options.seconds)
            except subprocess.TimeoutExpired:
                ended = False
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        text = log.read_text(errors="replace")
        told, allowed, passed, failed, counted = read_log(tool, suite, text, self.rules, self.used)
        # A racecheck or synccheck of no launches says nothing at its end; the tests always do.
        return {
            "tool": tool, "suite": suite, "told": told, "allowed": allowed, "passed": passed,
            "failed": failed, "ended": ended and counted, "seconds": time.monotonic() - began,
        }

    def run_all(self, pairs):
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as lanes:
            results = list(lanes.map(lambda pair: self.run(*pair), pairs))
        for at, result in enumerate(results):
            full = any(FULL.search(line) for line in result["told"])
            late = time.monotonic() > self.stop
            if (result["failed"] or not result["ended"] or full) and not late:
                alone = self.run(result["tool"], result["suite"])
                results[at] = alone
        return results


def cell(result):
    if result is None:
        return ""
    if not result["ended"]:
        return "no end"
    text = str(len(result["told"]))
    if result["allowed"]:
        text += f" (+{result['allowed']})"
    if result["failed"]:
        text += f", {result['failed']} failed"
    elif not result["passed"]:
        text += ", no test"
    return text


def table(results, tools, suites):
    by = {(result["tool"], result["suite"]): result for result in results}
    lines = ["| suite | " + " | ".join(tools) + " |", "|---|" + "---|" * len(tools)]
    for suite in suites:
        cells = [cell(by.get((tool, suite))) for tool in tools]
        lines.append(f"| `{suite}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", type=Path, help="the folder of the tests' executables")
    parser.add_argument("out", type=Path, help="where the logs go")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("--seconds", type=float, default=120, help="limit of one run")
    parser.add_argument("--total", type=float, default=3600, help="after so long none is run again")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--sanitizer", default=os.environ.get("COMPUTE_SANITIZER", "compute-sanitizer"))
    options = parser.parse_args()
    if shutil.which(options.sanitizer) is None:
        sys.exit(f"error: no {options.sanitizer} here; it comes with the CUDA toolkit")
    tools, suites = options.tools.split(","), options.suites.split(",")
    there = {path.name for path in options.tests.iterdir()}
    absent = [s for s in suites if s not in SUITES or s.partition("::")[0] not in there]
    absent += [s for s in suites if s not in absent and not tests_of(options.tests, s)[1]]
    if absent:
        sys.exit(f"error: no suite {', '.join(absent)} in {options.tests}")
    logs = options.out / "sanitizers"
    logs.mkdir(parents=True, exist_ok=True)
    runner = Runner(options, options.tests, logs)
    results = runner.run_all([(tool, suite) for tool in tools for suite in suites])
    text = table(results, tools, suites)
    print(text)
    for result in results:
        for line in sorted(set(result["told"])):
            print(f"{result['tool']} {result['suite']}: {result['told'].count(line)} x {line}")
        if not result["ended"]:
            print(f"{result['tool']} {result['suite']}: no end within {result['seconds']:.0f} s")
    print("\nreports with a reason (in brackets above):")
    for at in sorted(runner.used):
        print(f"- {runner.rules[at][1]}")
    slowest = max(results, key=lambda result: result["seconds"])
    print(f"slowest: {slowest['tool']} {slowest['suite']}, {slowest['seconds']:.0f} s")
    (options.out / "sanitizers.md").write_text(text)
    with tarfile.open(options.out / "sanitizers.tar.xz", "w:xz") as archive:
        archive.add(logs, "sanitizers")
    shutil.rmtree(logs)
    good = all(r["ended"] and r["passed"] and not r["failed"] and not r["told"] for r in results)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
