"""Files that leave a host: masked as they are read, whatever pieces they are read in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"
READ = """
import io, json, sys
from secret_forms import MaskedFile, all_forms, masked

content, values, piece = json.load(sys.stdin)
class Held(io.BytesIO):
    def fileno(self):
        return -1
patterns = all_forms(values)
found = []
for size in range(1, piece + 1):
    with MaskedFile(Held(content.encode()), patterns) as file:
        file.read(5)  # somebody looked at its beginning
        file.seek(0)
        parts = []
        while True:
            data = file.read(size)
            if not data:
                break
            assert len(data) <= size
            parts.append(data)
        found.append(b"".join(parts).decode())
print(json.dumps([sorted(set(found)), masked(content.encode(), patterns).decode()]))
"""
SECRET = "correct-horse"
STARS = "*" * len(SECRET)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"a {SECRET} b {SECRET}", f"a {STARS} b {STARS}"),
        (SECRET * 3, STARS * 3),
        (SECRET[:-1], SECRET[:-1]),
        (f"{SECRET[:5]}{SECRET}", f"{SECRET[:5]}{STARS}"),
        ("nothing of it\n" * 5, "nothing of it\n" * 5),
        ("", ""),
    ],
    ids=["twice", "side-by-side", "a-part-of-it", "after-its-beginning", "none", "empty"],
)
def test_a_value_is_masked_whatever_pieces_are_read(content, expected):
    done = subprocess.run(
        [sys.executable, "-c", READ],
        input=json.dumps([content, [SECRET], 20]),
        env={"PYTHONPATH": str(AGENT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [[expected], expected]
