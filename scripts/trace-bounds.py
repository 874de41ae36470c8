#!/usr/bin/env python3
"""Prints what a trace needs at least, over its peak of live bytes: under an exact best fit in one endless
range, which ignores streams, by the end of that range, and by its pages of 2 MiB that hold a live byte.

    scripts/trace-bounds.py TRACE...
"""

import bisect
import csv
import gzip
import sys

PAGE = 2 << 20


class Range:
    """Addresses from 0 on. Holes are joined with their neighbours; `sizes` has them by size, then address."""

    def __init__(self):
        self.sizes, self.ends, self.starts = [], {}, {}
        self.top = 0

    def file(self, start, end):
        self.ends[start], self.starts[end] = end, start
        bisect.insort(self.sizes, (end - start, start))

    def unfile(self, start):
        end = self.ends.pop(start)
        del self.starts[end]
        del self.sizes[bisect.bisect_left(self.sizes, (end - start, start))]
        return end

    def take(self, size):
        at = bisect.bisect_left(self.sizes, (size, 0))
        if at < len(self.sizes):
            start = self.sizes[at][1]
            end = self.unfile(start)
            if end > start + size:
                self.file(start + size, end)
            return start
        start = self.starts.get(self.top, self.top)
        if start < self.top:
            self.unfile(start)
        self.top = start + size
        return start

    def give(self, start, end):
        if start in self.starts:
            start = self.starts[start]
            self.unfile(start)
        if end in self.ends:
            end = self.unfile(end)
        self.file(start, end)


def bounds(path):
    space, blocks, uses = Range(), {}, {}
    live = peak = most_pages = 0
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            size, name = int(row["Size"]), row["Pointer"]
            taken = row["Action"].startswith("alloc")
            if size == 0 or (not taken and name not in blocks):
                continue
            if taken:
                start = blocks[name] = space.take(size)
            else:
                start = blocks.pop(name)
                space.give(start, start + size)
            change = 1 if taken else -1
            live += change * size
            for page in range(start // PAGE, (start + size - 1) // PAGE + 1):
                uses[page] = uses.get(page, 0) + change
                if uses[page] == 0:
                    del uses[page]
            peak, most_pages = max(peak, live), max(most_pages, len(uses))
    return space.top / peak, most_pages * PAGE / peak


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        by_extent, by_page = bounds(path)
        print(f"{path}: {by_extent:.4f} by extent, {by_page:.4f} by page")


if __name__ == "__main__":
    main()
