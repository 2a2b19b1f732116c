#!/usr/bin/env python3
"""The C++ of a page: each ```cpp block as a file of its own.

usage: code_blocks.py PAGE OUT...      (as many files as the page has blocks)
"""
import pathlib
import re
import sys

page = pathlib.Path(sys.argv[1])
blocks = re.findall(r"^```cpp\n(.*?)^```$", page.read_text(), re.M | re.S)
if len(blocks) != len(sys.argv) - 2:
    sys.exit(f"{page}: {len(blocks)} blocks, not {len(sys.argv) - 2}")
for path, block in zip(sys.argv[2:], blocks):
    pathlib.Path(path).write_text(block)
