#!/usr/bin/env python3
"""Prints every public name of the library, a line each, as documentation shows them.

    scripts/public-api.py            print
    scripts/public-api.py --check    compare with docs/public-api.txt: exit code 1 and the difference
    scripts/public-api.py --write    write docs/public-api.txt

Names are modules, types, fields, variants, traits and what they ask for, functions, methods and
constants, of all features. What is `#[doc(hidden)]` is not public. A type that has two paths stands
under both, its methods under the shorter.

Of modules, types, traits, functions, methods and constants, each counted once, there are to be fewer
than MOST; fields, variants and what a trait asks for are their types' own.

With --check, each type, trait and function must have an example, or be named by one, that is compiled
and run: a block of Rust in the documentation or the guide that is not `ignore`d. Where a GPU is wanted
(`interop`) compiling is enough. What only a device's writer names (`backend`) is shown by the devices of
the crate. No example unwraps or panics.

The compiler says what they are: rustdoc's JSON, which wants RUSTC_BOOTSTRAP outside nightly, set for
rustdoc alone. Build variables as for `cargo doc`.
"""

import difflib
import json
import os
import pathlib
import re
import stat
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "docs" / "public-api.txt"
MOST = 450
PANICS = re.compile(r"\.unwrap\(|\.expect\(|panic!|unreachable!|todo!")


def described():
    """rustdoc's JSON of the library."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    target.mkdir(parents=True, exist_ok=True)
    rustdoc = target / "rustdoc-json.sh"
    rustdoc.write_text('#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc "$@"\n')
    rustdoc.chmod(rustdoc.stat().st_mode | stat.S_IXUSR)
    command = ["cargo", "rustdoc", "--quiet", "--lib", "--all-features"]
    command += ["--", "-Zunstable-options", "--output-format", "json"]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "RUSTDOC": str(rustdoc)})
    return json.loads((target / "doc" / "warpool.json").read_text())


class Walk:
    """Lines of the public names from the crate's root on."""

    def __init__(self, told):
        self.index = {str(number): item for number, item in told["index"].items()}
        self.paths, self.lines, self.count = {}, set(), 0
        self.module(self.index[str(told["root"])], "warpool")
        for number, paths in self.paths.items():
            item = self.index[number]
            paths = sorted(paths, key=lambda path: (path.count("::"), path))
            for path in paths:
                self.lines.add(f"{path} ({self.kind(item)})")
            self.members(item, paths[0])
            self.count += 1

    @staticmethod
    def kind(item):
        return next(iter(item["inner"]))

    def module(self, module, path):
        for number in map(str, module["inner"]["module"]["items"]):
            item = self.index.get(number)
            if item is None or item["visibility"] != "public":
                continue
            kind = self.kind(item)
            if kind == "use":
                self.reexport(item["inner"]["use"], path)
            elif kind != "impl":
                self.add(number, f"{path}::{item['name']}")

    def reexport(self, use, path):
        item = self.index.get(str(use["id"]))
        if use["is_glob"]:
            self.module(item, path)
        elif item is None or self.kind(item) in ("use", "extern_crate"):
            self.lines.add(f"{path}::{use['name']} (another crate's)")
        else:
            self.add(str(use["id"]), f"{path}::{use['name']}")

    def add(self, number, path):
        known = self.paths.setdefault(number, set())
        if path in known:
            return
        known.add(path)
        item = self.index[number]
        if self.kind(item) == "module":
            self.module(item, path)

    def members(self, item, path):
        kind, inner = self.kind(item), next(iter(item["inner"].values()))
        if kind == "struct":
            shape = inner["kind"] if isinstance(inner["kind"], dict) else {}
            fields = shape.get("plain", {}).get("fields", []) + shape.get("tuple", [])
            self.each([field for field in fields if field is not None], path, "field")
        elif kind == "enum":
            self.each(inner["variants"], path, "variant", public=False)
        elif kind == "trait":
            self.each(inner["items"], path, "required", public=False)
        for number in inner.get("impls", []) if isinstance(inner, dict) else []:
            made = self.index[str(number)]["inner"]["impl"]
            if made["trait"] is None:
                self.each(made["items"], path, "method")

    def each(self, numbers, path, word, public=True):
        for number in map(str, numbers):
            item = self.index.get(number)
            if item is None or (public and item["visibility"] != "public"):
                continue
            self.lines.add(f"{path}::{item['name']} ({word})")
            self.count += word == "method"


def examples(text, tags=frozenset()):
    """The blocks of Rust in a text that have these tags beside `rust`."""
    found, block, runs = [], None, False
    for line in (text or "").splitlines():
        fence = line.strip()
        if not fence.startswith("```"):
            if block is not None:
                block.append(line)
        elif block is None:
            block, runs = [], set(fence[3:].split(",")) - {"", "rust"} == tags
        else:
            if runs:
                found.append("\n".join(block))
            block = None
    return found


def unshown(walk):
    """What is wrong with the examples, a line each."""
    guide = [path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/guide/*.md")]]
    docs = [item.get("docs") for item in walk.index.values() if item["crate_id"] == 0] + guide
    run = [block for text in docs for block in examples(text)]
    only_compiled = [block for text in docs for block in examples(text, {"no_run"})]
    words = lambda blocks: set(re.findall(r"\w+", "\n".join(blocks)))
    shown, compiled = words(run), words(only_compiled)
    wrong = []
    for number, paths in walk.paths.items():
        item, path = walk.index[number], min(paths, key=len)
        is_of_a_device = any("::backend::" in path for path in paths)
        if walk.kind(item) not in ("struct", "enum", "trait", "function") or is_of_a_device:
            continue
        known = shown | compiled if "::interop::" in path else shown
        if item["name"] not in known and not examples(item.get("docs")):
            wrong.append(f"no example shows {path}")
    for block in run + only_compiled:
        wrong += [f"an example may panic: {line}" for line in block.splitlines() if PANICS.search(line)]
    return sorted(wrong)


def main():
    walk = Walk(described())
    lines = sorted(walk.lines)
    text = "".join(f"{line}\n" for line in lines)
    if walk.count >= MOST:
        print(f"error: {walk.count} public names, where fewer than {MOST} do", file=sys.stderr)
    if "--write" in sys.argv:
        LIST.write_text(text)
        return
    if "--check" not in sys.argv:
        print(text, end="")
        return
    before = LIST.read_text().splitlines()
    difference = list(difflib.unified_diff(before, lines, "docs/public-api.txt", "the library", n=0, lineterm=""))
    if difference:
        print("\n".join(difference))
        sys.exit("error: other public names than those listed: scripts/public-api.py --write")
    wrong = unshown(walk)
    if wrong:
        print("\n".join(wrong))
        sys.exit(f"error: {len(wrong)} faults of examples")
    if walk.count >= MOST:
        sys.exit(1)
    print(f"{walk.count} public names, {len(lines)} lines with their fields and variants, as listed")


if __name__ == "__main__":
    main()
