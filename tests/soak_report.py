"""`python -m tests.soak_report [PART …] [--minutes N] [--seed N] [--resume]`: `make soak` and its report.

Each part is a process of its own, which is ended when the time is up; one that fails ends no other. What each
came to is kept in `build/soak.jsonl`, and the last of each part is told in `build/soak.md`.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tests.support import measured

BUILD = measured.ROOT / "build"
HISTORY = BUILD / "soak.jsonl"
PAGE = BUILD / "soak.md"
PARTS: Mapping[str, tuple[float, Sequence[str]]] = {
    "tests": (0.75, ("pytest", "-v", "-rs", "-n", "4", "--dist", "load", "--durations", "60", "-m", "soak")),
    "command-lines": (0.6, ("pytest", "-v", "-rs", "tests/cli/test_fuzz.py")),
    "lives": (1.0, ("tests.soak", "--seed", "{seed}", "--minutes", "{minutes:.0f}")),
}
"""In their order, each with the share of the time left that it may take, and a module with its arguments. `-v`
makes pytest say how many there were, in spite of the `-q` of every run. Four workers for two processors: these
tests wait less than those of `make test`."""
ENDING_S = 60.0
GRACE_S = 600.0
"""A life that has begun is lived to its end."""
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?|kills|passes|odd requests)\b")
_SKIPPED = re.compile(r"^SKIPPED \[\d+\] .*$", re.MULTILINE)


def run_part(name: str, minutes: float, seed: int) -> dict[str, Any]:
    """One part, and what it came to."""
    words = [each.format(seed=seed, minutes=minutes) for each in PARTS[name][1]]
    environ = {**os.environ, "TPUCTL_FUZZ_CALLS": "2000", "TPUCTL_FUZZ_SEED": str(seed)}
    own = {"name": name, "revision": measured.revision(), "date": measured.today(), "load": measured.load()}
    began = time.monotonic()
    log = BUILD / f"soak-{name}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as out:
        part = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
        try:
            status: int | str = part.wait(60 * minutes + GRACE_S * (name == "lives"))
        except subprocess.TimeoutExpired:
            status = "the time was up"
        finally:
            _end(part)
    said = log.read_text(errors="replace")
    wall_s = round(time.monotonic() - began)
    told = {"said": said[-300:], "missing": _SKIPPED.findall(said)}
    return {**own, "seed": seed, "status": status, "wall_s": wall_s, **count(name, said), **told}


def _end(part: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does, so that it ends what it started; and for good where that does not help."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(subprocess.TimeoutExpired):
            if part.poll() is None:
                os.killpg(part.pid, number)
                part.wait(ENDING_S)


def count(name: str, said: str) -> dict[str, int]:
    """What a part said of how much it did. Lives count themselves: the last number is that of all."""
    found: dict[str, int] = {}
    for number, word in _COUNTS.findall(said):
        key = "lives" if name == "lives" and word == "passed" else word
        found[key] = int(number) if key in ("lives", "passed", "failed") else found.get(key, 0) + int(number)
    return found


def render(entries: Sequence[Mapping[str, Any]]) -> str:
    """The last entry of each part."""
    last = {each["name"]: each for each in entries}
    lines = [
        "# Soak",
        "",
        "| part | revision | date | seed | minutes | did | end |",
        "|---|---|---|---:|---:|---|---|",
    ]
    for name in (name for name in PARTS if name in last):
        each = last[name]
        did = (
            ", ".join(f"{each[key]} {key}" for key in each if key in ("lives", *_WORDS))
            or "nothing that it counts"
        )
        end = "no violation" if each["status"] == 0 else f"**{each['status']}**"
        row = (name, each["revision"], each["date"], each["seed"], each["wall_s"] // 60, did, end)
        lines.append(f"| {' | '.join(map(str, row))} |")
    lines += [
        f"\n{each['name']}:\n\n```text\n{each['said']}\n```" for each in last.values() if each["status"] != 0
    ]
    lines += [
        "\n".join([f"\n{each['name']}, skipped:\n\n```text", *each["missing"], "```"])
        for each in last.values()
        if each.get("missing")
    ]
    revisions = {each["revision"] for each in last.values()}
    if len(revisions) > 1 or len(last) < len(PARTS):
        lines.append("\nThis is not of one revision, or not all of it: `make soak` runs all parts.")
    return "\n".join(lines) + "\n"


_WORDS = ("passed", "failed", "skipped", "error", "errors", "kills", "passes", "odd requests")


def main(argv: Sequence[str]) -> int:
    """0 when nothing was violated in all that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak_report")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--minutes", type=float, default=120.0, help="for all of them together (%(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--resume", action="store_true", help="only what ended well at no time of this revision"
    )
    options = parser.parse_args(argv)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    names = [name for name in PARTS if not options.parts or name in options.parts]
    if options.resume:
        well = [each for each in measured.read_entries(HISTORY) if each["status"] == 0]
        names = [name for name in names if not measured.is_done(well, name, measured.revision())]
    end = time.monotonic() + 60 * options.minutes
    ended = []
    for name in names:
        left = max(1.0, (end - time.monotonic()) / 60)
        share = 1.0 if name == names[-1] else PARTS[name][0]
        print(f"{name}: at most {left * share:.0f} min …", flush=True)
        ended.append(
            run_part(name, left * share - GRACE_S / 60 * (name == "lives" and left > 30), options.seed)
        )
        measured.append_entry(HISTORY, ended[-1])
        PAGE.write_text(render(measured.read_entries(HISTORY)), encoding="utf-8")
    print(render(measured.read_entries(HISTORY)))
    return 1 if any(each["status"] != 0 for each in ended) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
