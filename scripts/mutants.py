"""Tries the mutants that cargo-mutants lists, all of them in one build. See scripts/mutants.sh."""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

OUT = Path(os.environ.get("WARPOOL_MUTANTS_OUT", "target/mutants")).resolve()
TREE = OUT / "tree"
FEATURES = ["--no-default-features", "--features", "sanitize,tracing,cli,convert"]
# What notices most a second, and then all the rest that sees the pool: executable, arguments,
# variables. Left out is what reads the sources, where a function with a mutant stands twice: it looks
# for calls of the driver that no test makes, and the second is one.
LEAVE = (
    "--skip cuda::faults --skip a_process_ --skip a_watched_host_device "
    "--skip every_variable_that_is_read"
)
SLOW = {
    "compact": "planner::a_layout_beyond planner::made_instances any_layout "
    "threads:: cycles::a_circle_that failing_calls:: at_the_limit::",
    "pool": "capture::host::a_graph_replayed simulated hot_path::",
}


def without_slow(name):
    """The arguments that leave an executable's slow suites out."""
    return LEAVE + "".join(f" --skip {slow}" for slow in SLOW[name].split())


FEW = [
    ("lib", LEAVE, {}),
    ("state_machine", "the_pool", {"WARPOOL_CASES": "30"}),
    ("pool", without_slow("pool"), {}),
    ("compact", without_slow("compact"), {}),
    ("device", f"checker:: {LEAVE}", {}),
    ("errors", f"malformed:: {LEAVE}", {}),
    ("state_machine", "sim::", {"WARPOOL_CASES": "20"}),
]
MORE = [
    ("compact", SLOW["compact"], {}),
    ("pool", SLOW["pool"], {}),
    ("observe", "replay:: events::", {}),
    ("device", "several::", {}),
    ("soak", "", {}),
    ("waste", "", {}),
    ("fuzz", "", {}),
    ("state_machine", "", {"WARPOOL_CASES": "60"}),
    ("errors", "every_call:: growing_calls:: pool_calls:: sleeping_calls::", {}),
    ("typed_order", "host::a_buffer_of_a_graph", {}),
    ("lib", "cuda::faults --skip every_call_of_the_drivers_table", {}),
]
# A suite that takes so many times as long as without a mutant, and no less than so many seconds, is
# taken to have no end.
TIMES, LEAST_SECONDS = 12, 20
# The part that is to be caught.
ASKED = 0.95
ALLOWED = b"#![allow(arithmetic_overflow, unconditional_panic)]\n"
SWITCH = '''//! Which mutant is in: the one that `WARPOOL_MUTANT` numbers.

pub(crate) fn is(number: u32) -> bool {
    static GIVEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let read = || std::env::var("WARPOOL_MUTANT").ok()?.parse().ok();
    *GIVEN.get_or_init(|| read().unwrap_or(u32::MAX)) == number
}
'''


def asked():
    """How many mutants to draw from all (None: all), by what seed, which besides; and what is
    cargo-mutants' own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--also", default="(?!)", type=re.compile)
    parser.add_argument("--jobs", type=int, default=1)
    return parser.parse_known_args(sys.argv[1:])


def listed(given, arguments):
    """The mutants, numbered and in a drawn order, so that those tried first are a sample of all;
    the numbers of those besides; and how many there are to draw from."""
    command = ["cargo", "mutants", "--list", "--json", *FEATURES, *arguments]
    mutants = list(enumerate(json.loads(subprocess.check_output(command, text=True))))
    random.Random(given.seed).shuffle(mutants)
    rest = mutants[given.sample :] if given.sample else []
    besides = [mutant for mutant in rest if given.also.search(mutant[1]["name"])]
    return besides + mutants[: given.sample], {number for number, _ in besides}, len(mutants)


def place(text, at):
    """The offset of a line and column, both from 1."""
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: at["line"] - 1]) + at["column"] - 1


def body(text, mutant):
    """(begin, end) of what stands between the braces of the mutant's function, unless it is const."""
    if not mutant.get("function"):
        return None
    begin = place(text, mutant["function"]["span"]["start"])
    end = place(text, mutant["function"]["span"]["end"])
    head = re.compile(r"^(?!\s*//).*?\bfn\s", re.MULTILINE)
    found = head.search(text, text.rfind("\n", 0, begin) + 1, end)
    if not found or re.search(r"\bconst\b", found.group(0)):
        return None
    return text.index("{", found.end()) + 1, end - 1


def gives_iterator(text, begin):
    """Whether the function whose body begins there gives an iterator of a type without a name."""
    head = text[text.rfind("fn ", 0, begin) : begin]
    return re.search(r"-> impl Iterator<", head) is not None


def with_switches(path, mutants):
    """The file with the mutants in, each under its number, and those that cannot be put in so."""
    text = path.read_text()
    groups, left = {}, []
    for number, mutant in mutants:
        where = body(text, mutant)
        if where is None:
            left.append(number)
        else:
            groups.setdefault(where, []).append((number, mutant))
    inner = [a for a in groups for b in groups if a != b and b[0] <= a[0] and a[1] <= b[1]]
    for where in inner:
        left += [number for number, _ in groups.pop(where)]
    for (begin, end), inside in sorted(groups.items(), reverse=True):
        arms = []
        # Two bodies of a function have one type, and two iterators do not.
        iterator = gives_iterator(text, begin)
        opened, closed = ("Box::new({", "})") if iterator else ("", "")
        for number, mutant in inside:
            span = [place(text, mutant["span"][at]) for at in ("start", "end")]
            changed = text[begin : span[0]] + mutant["replacement"] + text[span[1] : end]
            arms.append(
                f"if crate::mutant::is({number}) {{{opened}\n/*<{number}>*/{changed}\n"
                f"/*</{number}>*/{closed}}} else "
            )
        numbers = ",".join(str(number) for number, _ in inside)
        whole = "".join(arms) + "{" + opened + text[begin:end] + closed + "}"
        if iterator:
            whole = f"let one: Box<dyn Iterator<Item = _> + '_> = {whole}; one"
        text = f"{text[:begin]}/*<of {numbers}>*/{whole}/*</of {numbers}>*/{text[end:]}"
    return text, left


def lay_out(mutants):
    """A copy of the tree with the mutants in; gives the numbers of those left out."""
    TREE.mkdir(parents=True, exist_ok=True)
    names = subprocess.check_output(["git", "ls-files"], text=True).splitlines()
    left = []
    by_file = {}
    for number, mutant in mutants:
        by_file.setdefault(mutant["file"], []).append((number, mutant))
    for name in names:
        if not Path(name).is_file():
            continue
        text = Path(name).read_bytes()
        if name in by_file:
            changed, out = with_switches(Path(name), by_file[name])
            left += out
            text = changed.encode()
        if name == "src/lib.rs":
            # What is wrong in a mutant only is to be seen when it runs.
            text = ALLOWED + text + b"\n#[doc(hidden)]\nmod mutant;\n"
        target = TREE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or target.read_bytes() != text:
            target.write_bytes(text)
            shutil.copymode(name, target)
    switch = TREE / "src/mutant.rs"
    if not switch.is_file() or switch.read_text() != SWITCH:
        switch.write_text(SWITCH)
    return left


def cargo(*arguments):
    """(messages, whether it succeeded) of cargo in the copy."""
    command = ["cargo", *arguments, *FEATURES, "--message-format=json"]
    done = subprocess.run(command, cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    return messages, done.returncode == 0


def blamed(messages):
    """Numbers of the mutants in which the compiler finds errors; and where it finds them beside one,
    in its function, which has a type that no two bodies can share."""
    unviable, apart = set(), set()
    for message in messages:
        if message["reason"] != "compiler-message" or message["message"]["level"] != "error":
            continue
        for span in message["message"]["spans"]:
            if not span["is_primary"] or not (TREE / span["file_name"]).is_file():
                continue
            text = (TREE / span["file_name"]).read_text()
            at = place(text, {"line": span["line_start"], "column": span["column_start"]})
            inside = []
            for opened in re.finditer(r"/\*<((?:of )?[0-9,]+)>\*/", text):
                closed = text.find(f"/*</{opened.group(1)}>*/")
                if opened.end() <= at <= closed:
                    inside.append((closed - opened.start(), opened.group(1)))
            if inside:
                of = min(inside)[1]
                numbers = {int(number) for number in of.removeprefix("of ").split(",")}
                (apart if of.startswith("of ") else unviable).update(numbers)
    return unviable, apart


def build(mutants):
    """The test executables with every mutant in that compiles; (executables, left out, unviable)."""
    wanted = dict.fromkeys(name for name, _, _ in FEW + MORE)
    targets = [arg for name in wanted for arg in (["--lib"] if name == "lib" else ["--test", name])]
    unviable, apart = set(), set()
    print("# the mutants are put in and compiled, until all that are left do", flush=True)
    while True:
        left = lay_out([mutant for mutant in mutants if mutant[0] not in unviable | apart])
        messages, well = cargo("check", "--lib")
        if well:
            break
        bad = blamed(messages)
        if not any(bad):
            errors = [m["message"]["rendered"] for m in messages if m["reason"] == "compiler-message"]
            sys.exit("the copy does not compile:\n" + "\n".join(errors[-3:]))
        unviable |= bad[0]
        apart |= bad[1]
    print("# the suites are built", flush=True)
    messages, well = cargo("test", "--no-run", *targets)
    if not well:
        sys.exit("the tests of the copy do not compile")
    found = {}
    for message in messages:
        if message["reason"] != "compiler-artifact" or not message["executable"]:
            continue
        # The command line has the library's name, and is built for the suites that run it.
        if message["profile"]["test"]:
            name = message["target"]["name"]
            found["lib" if name == "warpool" else name] = message["executable"]
    return found, apart.union(left), unviable


def run(executable, arguments, variables, number, limit):
    """How a test executable ends under a mutant, and the test that failed: at once when one does."""
    environment = {**os.environ, **variables, "CARGO_MANIFEST_DIR": str(TREE), "RUST_BACKTRACE": "0"}
    if number is not None:
        environment["WARPOOL_MUTANT"] = str(number)
    begin = time.monotonic()
    child = subprocess.Popen(
        ["timeout", "-k", "1", str(limit), executable, *arguments.split()],
        cwd=TREE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    for line in child.stdout:
        if found := re.match(r"test (\S+) .*\bFAILED$", line):
            child.terminate()
            child.communicate()
            return "fails", found.group(1)
    code = child.wait()
    if code == 0:
        return "passes", ""
    out = time.monotonic() - begin >= limit - 1
    return ("out of time" if out else f"ends with {code}"), ""


def limits_of(executables):
    """Seconds that each suite may take, from what it takes without a mutant."""
    limits = []
    print("# each suite is run without a mutant", flush=True)
    for name, arguments, variables in FEW + MORE:
        begin = time.monotonic()
        outcome, test = run(executables[name], arguments, variables, None, 1800)
        if outcome != "passes":
            sys.exit(f"without a mutant {name}: {test or outcome}")
        took = time.monotonic() - begin
        print(f"{took:6.1f} s {name} {arguments[:50]}", flush=True)
        limits.append(max(LEAST_SECONDS, TIMES * took))
    return limits[: len(FEW)], limits[len(FEW) :]


def tried(executables, suites, limits, number):
    for (name, arguments, variables), limit in zip(suites, limits):
        outcome, test = run(executables[name], arguments, variables, number, limit)
        if outcome != "passes":
            return f"{name}: {test or outcome}", outcome == "out of time"
    return None, False


def known_of(path):
    """What a run that was stopped has seen: (mutant, whether it came to the second suites) -> outcome."""
    known = {}
    second = False
    for line in path.read_text().splitlines() if path.is_file() else []:
        what, name, by = re.fullmatch(r"(\S+)\s+(.*?)(?: \| (.*))?", line).groups()
        second |= what == "MISSED"
        if what in ("caught", "left", "MISSED"):
            known[name, second] = (by, bool(by) and by.endswith("out of time"))
    return known


def progress(done, of, left, seconds):
    rest = seconds / done * (of - done)
    print(f"# {done} of {of} tried, {left} not noticed, ", end="")
    print(f"{seconds / 60:.0f} min, {rest / 60:.0f} to go", flush=True)


def main():
    given, arguments = asked()
    mutants, besides, of = listed(given, arguments)
    names = {number: mutant["name"] for number, mutant in mutants}
    executables, left, unviable = build(mutants)
    known = known_of(OUT / "log.txt") if "WARPOOL_MUTANTS_RESUME" in os.environ else {}
    few, more = limits_of(executables)
    log = (OUT / "log.txt").open("w")

    def say(line):
        print(line, flush=True)
        print(line, file=log, flush=True)

    numbers = [n for n in names if n not in unviable and n not in left]
    drawn = len(names) - len(besides)
    say(f"{drawn} mutants of {of}, seed {given.seed}, and {len(besides)} besides")
    say(f"{len(unviable)} do not compile; {len(left)} cannot be switched")
    for number in sorted(left):
        say(f"apart    {names[number]}")
    for number in sorted(unviable):
        say(f"unviable {names[number]}")
    late, missed = 0, numbers
    for suites, limits, outcome in ((FEW, few, "left    "), (MORE, more, "MISSED  ")):

        def outcome_of(number):
            before = known.get((names[number], suites is MORE))
            return number, before or tried(executables, suites, limits, number)

        still, begin = [], time.monotonic()
        with ThreadPoolExecutor(given.jobs) as pool:
            for done, (number, (by, slow)) in enumerate(pool.map(outcome_of, missed), 1):
                if by:
                    late += slow and number not in besides
                    say(f"caught   {names[number]} | {by}")
                else:
                    still.append(number)
                    say(f"{outcome} {names[number]}")
                if done % 20 == 0 or done == len(missed):
                    progress(done, len(missed), len(still), time.monotonic() - begin)
        missed = still
    sample = [number for number in numbers if number not in besides]
    caught = len(sample) - sum(number not in besides for number in missed)
    part = 100 * caught / max(1, len(sample))
    say(f"{caught} of {len(sample)} caught ({part:.1f} %), {late} of them by running out of time")
    sys.exit(caught < ASKED * len(sample))


if __name__ == "__main__":
    main()
