"""What the numbers of a program cost its host: a million steps, beside searching for them alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.bench.harness import Budget, Contender, Plan, Report, compare, lines, scratch

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"
STEPS = 1_000_000
PATTERN = r"step=(?P<step>\d+) loss=(?P<loss>\S+) grad_norm=(?P<norm>\S+)"
FLOOR, OURS = "python, re.search of each line", "the supervisor's looks at its log"
WRITE = """
import os, sys
def piece(begin):
    said = "I1123 08:00:00.123456 train.py:211] step=%d loss=%.6f grad_norm=%.5f tokens/s=93211.5\\n"
    return "".join(said % (n, 2 + 7 / (n + 1), n % 97 / 97) for n in range(begin, begin + 5000)).encode()
steps, pattern = int(sys.argv[1]), sys.argv[2]
"""
SEARCH = f"""{WRITE}
import re
search = re.compile(pattern).search
for begin in range(0, steps, 5000):
    for line in piece(begin).decode().split("\\n"): search(line)
"""
LOOK = f"""{WRITE}
import base, progress
progress.LOOK_S = 0.0  # a look for each piece
attempt = base.Attempt({{"run": "r1", "attempt": "1"}})
base.make_dir(attempt.dir)
found = progress.Progress(attempt, pattern)
for begin in range(0, steps, 5000):
    with open(attempt.path("stdout.log"), "ab") as log: log.write(piece(begin))
    found.look()
found.look(last=True)
known = base.read_json(attempt.path("progress.json"))
assert known["step"] == steps - 1 and "error" not in known, known
"""


def measure(plan: Plan) -> list[Report]:
    """Both write the same lines first: what our looks cost is the difference."""
    steps = STEPS // 20 if plan.quick else STEPS
    with scratch() as folder:
        words = [str(steps), PATTERN]
        env = {"HOME": str(folder), "PYTHONPATH": str(AGENT)}
        contenders = [
            Contender(FLOOR, [sys.executable, "-c", SEARCH, *words]),
            Contender(
                OURS,
                ["sh", "-c", 'rm -rf "$HOME/.tpuctl"; exec "$@"', "sh", sys.executable, "-c", LOOK, *words],
                env,
            ),
        ]
        found = compare(contenders, plan.rounds)
        kept = os.stat(folder / ".tpuctl" / "runs" / "r1" / "1" / "metrics").st_size
    return [
        Report(
            title="Numbers of a program",
            setting=f"{steps:,} steps with three numbers, in looks of 5,000 lines; both make the lines first",
            baseline=FLOOR,
            lines=lines(contenders, found),
            budgets=(
                Budget("kept of a million steps", kept / 1000, 300.0, unit=" KB"),
                Budget("CPU of 1,000 lines", found[OURS].cpu_s * 1e6 / steps, 15.0, unit=" ms"),
            ),
        )
    ]
