#!/usr/bin/env python3
"""Checks the machine code of the conversions: no local memory, and accesses of 16 bytes.

    scripts/check-sass.py FILE [--arch sm_90]   one architecture, or every one that is in the file

FILE holds the kernels: an executable, or the archive `libwarpool_cuda.a` in the build's OUT_DIR.
Every kernel must keep everything in registers (no stack, no spill), and those of FULL leave room for as many
threads as a multiprocessor holds. From 9.0 on every kernel must wait for the one before it (kernels/device/in_order.cuh)
ahead of its first access to memory. Every conversion of neighbours
must load or store the wider of its two formats by 16 bytes, and the other by as many elements. Every
architecture must have the same kernels, and each of them be in the list of those that opening a
device loads (where the file has its symbols: an archive).
Needs c++filt, and cuobjdump and nvdisasm of a CUDA toolkit, on PATH or in CUDA_HOME/bin; their
wheels are fetched into target/cuda-disassembler where there are none.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
# In the order of wp_type: name and bytes.
FORMATS = [("f32", 4), ("f16", 2), ("bf16", 2), ("e4m3", 1), ("e5m2", 1), ("f64", 8)]
# Those that only quantising has: codes of 6 and of 4 bits are parts of a byte.
FORMATS += [("e2m3", 0.75), ("e3m2", 0.75), ("e2m1", 0.5), ("i8", 1), ("i4", 0.5)]
# Kernels that load, or store, values of a width of their own: 16 bytes at once.
WIDE = {"group_kernel": "LDG", "span_kernel": "LDG", "row_kernel": "LDG", "square_kernel": "LDG", "transpose_kernel": "LDG", "dequant_kernel": "STG"}
# Kernels of which a multiprocessor is to hold as many threads as it can, and the registers that this leaves each,
# where a launch bound may not say so (BOUND_THREADS of convert_kernel.cuh): 65,536 for 2048 threads.
FULL = (r"wp::flat_kernel<.*wp::Nearest>", r"wp::dequant_kernel<")
FULL_REGISTERS = {"sm_90": 32, "sm_100": 32, "sm_103": 32}
PAIRED = ("flat_kernel", "rows_kernel", "convert_kernel", "block_kernel", "inplace_kernel")


def disassembler():
    """The folder of cuobjdump and nvdisasm."""
    fetched = root / "target" / "cuda-disassembler"
    home = pathlib.Path(os.environ.get("CUDA_HOME", "/nonexistent")) / "bin"
    on_path = shutil.which("cuobjdump")
    places = [pathlib.Path(on_path).parent] if on_path else []
    for place in [*places, home, fetched / "nvidia" / "cu13" / "bin"]:
        if (place / "cuobjdump").is_file() and (place / "nvdisasm").is_file():
            return place
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
    wheels = ["nvidia-cuda-cuobjdump==13.5.37", "nvidia-cuda-nvdisasm==13.5.37"]
    subprocess.run([*pip, "--target", str(fetched), *wheels], check=True, stdout=sys.stderr)
    for tool in (fetched / "nvidia" / "cu13" / "bin").iterdir():
        tool.chmod(0o755)
    return fetched / "nvidia" / "cu13" / "bin"


def dump(folder, *arguments):
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [str(folder / "cuobjdump"), *arguments]
    return subprocess.run(command, check=True, env=environment, text=True, stdout=subprocess.PIPE).stdout


# What reaches memory that other kernels use, by any way.
MEMORY = r"\b(LDG|STG|LD|ST|ATOMG?|RED|UBLKCP|UBLKPF|CCTL|LDGSTS|UTMA\w*)\b"


def functions(sass):
    """Each function's name and the widths of its global and local accesses, in bits."""
    found, name, waits = {}, None, False
    for line in sass.splitlines():
        start = re.match(r"\s*Function : (\S+)", line)
        if start:
            name, waits = start[1], False
            found[name] = collections.Counter()
        waits = waits or re.search(r"\bACQBULK\b", line) is not None
        if name and not waits and re.search(MEMORY, line):
            found[name]["early", 0] += 1
        access = re.search(r"\b(LDG|STG|LDL|STL)\.?(\S*)", line)
        if name and access:
            width = re.search(r"\b(128|64|U16|U8|S16|S8|16|8)\b", access[2])
            bits = int(width[1].lstrip("US")) if width else 32
            found[name][access[1], bits] += 1
    return found


def demangled(names):
    """What each name stands for."""
    said = subprocess.run(["c++filt"], input="\n".join(names), check=True, text=True, stdout=subprocess.PIPE)
    return dict(zip(names, said.stdout.splitlines(), strict=True))


def template_arguments(kernel):
    """Those of a kernel's demangled name, one after another."""
    arguments, depth = [], 0
    for letter in kernel:
        if letter == ">":
            depth -= 1
            if depth == 0:
                break
        if depth == 1 and letter == ",":
            arguments.append("")
        elif depth > 0:
            arguments[-1] += letter
        if letter == "<":
            depth += 1
            if depth == 1:
                arguments.append("")
    return [argument.strip() for argument in arguments]


def pair(kernel):
    """The source and the destination of a demangled name, the first two of its template's arguments."""
    formats = [re.match(r"wp::Format<[^,]*, \(wp_type\)(\d+),", a) for a in template_arguments(kernel)[:2]]
    return [FORMATS[int(format[1])] for format in formats if format]


def check(arch, name, kernel, accesses, usage):
    """What is wrong with one kernel, `kernel` its demangled name."""
    most = {"STACK": 0, "LOCAL": 0}
    if any(re.search(full, kernel) for full in FULL):
        most["REG"] = FULL_REGISTERS.get(arch, 255)
    wrong = [f"{what} {used}" for what, used in usage.items() if used > most.get(what, used)]
    wrong += [f"{count} {op}" for (op, _), count in accesses.items() if op in ("LDL", "STL")]
    if accesses["early", 0] and int(re.match(r"sm_(\d+)", arch)[1]) >= 90:
        wrong.append(f"{accesses['early', 0]} accesses before it waits for the kernel before it")
    kind = next((kind for kind in PAIRED if kind in name), None)
    if kind:
        (_, source), (_, target) = pair(kernel)
        wider = max(source, target)
        # Eight elements are a group where the rounding is worked out; that may be more than one access.
        worked_out = "Stochastic" in name or "Directed" in name
        group = 8 if worked_out and kind == "flat_kernel" else 16 // wider
        for op, size in (("LDG", source), ("STG", target)):
            bits = min(8 * size * group, 128)
            if accesses[op, bits] == 0:
                wrong.append(f"no {op} of {bits // 8} bytes")
    for kernel, op in WIDE.items():
        if kernel in name and accesses[op, 128] == 0:
            wrong.append(f"no {op} of 16 bytes")
    return wrong


def architectures(folder, file):
    """The architectures with machine code, in order."""
    found = set(re.findall(r"\.sm_(\d+[af]?)\.cubin", dump(folder, "--list-elf", file)))
    return [f"sm_{number}" for number in sorted(found, key=lambda a: (int(a.rstrip("af")), a))]


def listed(file):
    """How many kernels the list of launch.cuh holds; None if the file has no symbols."""
    said = subprocess.run(["nm", file], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    entries = set(re.findall(r"_ZN2wp6InList\S+5entryE$", said.stdout, re.MULTILINE))
    return len(entries) if said.stdout else None


def check_architecture(folder, file, arch):
    """How many kernels are wrong, how many there are, and what is to be said of them."""
    resources = dump(folder, "-arch", arch, "-res-usage", file)
    usage = {}
    for name, line in re.findall(r"Function (\S+?):\s*\n\s*(REG:.*)", resources):
        usage[name] = {k: int(v) for k, v in re.findall(r"(REG|STACK|LOCAL):(\d+)", line)}
    kernels = functions(dump(folder, "-arch", arch, "-sass", file))
    kernels = {name: accesses for name, accesses in kernels.items() if name in usage}
    full = demangled(list(kernels))
    said = []
    kinds = collections.Counter()
    for name, accesses in sorted(kernels.items()):
        kind = next((kind for kind in PAIRED if kind in name), "others")
        kinds[kind] += 1
        wrong = check(arch, name, full[name], accesses, usage[name])
        if wrong:
            between = " to ".join(format for format, _ in pair(full[name]))
            said.append(f"{kind} {between}: {', '.join(wrong)}: {full[name]}")
    bad = len(said)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    said.append(f"{arch}: {len(kernels)} kernels ({counts}), {bad} with local memory, narrow or early accesses or too many registers")
    return bad, len(kernels), said


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--arch")
    options = parser.parse_args()
    folder = disassembler()
    archs = [options.arch] if options.arch else architectures(folder, options.file)
    # One beside another: most of it is disassembling, and reading what that prints.
    with concurrent.futures.ProcessPoolExecutor() as beside:
        begun = [beside.submit(check_architecture, folder, options.file, arch) for arch in archs]
        seen = []
        for one in begun:
            bad, count, said = one.result()
            print("\n".join(said), flush=True)
            seen.append((bad, count))
    counts = {count for _, count in seen}
    in_list = listed(options.file)
    if in_list is not None and in_list != 0:
        print(f"{in_list} kernels are in the list that opening a device loads")
        counts.add(in_list)
    if len(counts) != 1 or 0 in counts:
        sys.exit(f"the numbers of kernels differ, or are none: {sorted(counts)}")
    if any(bad for bad, _ in seen):
        sys.exit(1)


main()
