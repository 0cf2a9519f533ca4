"""`python -m tests.bench.history [A B]`: what got slower between the last two entries of each section, or
between two revisions. Exits with 1 where something did.

`docs/develop/benchmarks.jsonl` has a line for each time that a section was measured. A row got slower where it
takes more than the rounds of either time differ among themselves; where those are not known, a quarter more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.bench.harness import Report
from tests.bench.report import PAGE, versions
from tests.support import measured

HISTORY = PAGE.with_suffix(".jsonl")
NOTICED = 1.05
"""Less is nobody's concern, however alike the rounds are."""
UNKNOWN = 1.25

Entry = Mapping[str, Any]


def entry_of(name: str, report: Report, began: Entry, rounds: int) -> dict[str, Any]:
    """One line of the history. `began`: revision, date, and the load at the begin and at the end."""
    rows = {line.name: {key: value for key, value in asdict(line).items() if value} for line in report.lines}
    budgets = [{**asdict(each), "met": each.met} for each in report.budgets]
    own = {"name": name, "title": report.title, "rounds": rounds, "versions": versions()}
    return {**began, **own, "rows": rows, "budgets": budgets}


def compare_entries(before: Entry, after: Entry) -> Iterator[tuple[str, str, float, float, bool]]:
    """Row, `CPU` or `wall`, the seconds before and after, and whether that is slower than rounds differ."""
    for name in before["rows"].keys() & after["rows"].keys():
        old, new = before["rows"][name], after["rows"][name]
        for word, key in (("wall", "wall_s"), ("CPU", "cpu_s")):
            if not old.get(key) or not new.get(key):
                continue
            spans = [row.get(f"{key}_span") for row in (old, new)]
            known = all(spans) and min(before["rounds"], after["rounds"]) > 1
            slower = new[key] > old[key] * NOTICED and spans[1][0] > spans[0][1] if known else (
                new[key] > old[key] * UNKNOWN
            )  # fmt: skip
            yield name, word, old[key], new[key], slower


def pairs(entries: Sequence[Entry], revisions: Sequence[str]) -> list[tuple[Entry, Entry]]:
    """Of each section what is compared: the last entries of two revisions, or the last two."""
    found = []
    for title in dict.fromkeys(each["title"] for each in entries):
        own = [each for each in entries if each["title"] == title]
        if revisions:
            last = [[each for each in own if each["revision"].startswith(wanted)] for wanted in revisions]
            own = [each[-1] for each in last if each]
        if len(own) > 1:
            found.append((own[-2], own[-1]))
    return found


def render_difference(before: Entry, after: Entry) -> tuple[list[str], int]:
    """Lines for people, and how many rows are slower."""

    def when(each: Entry) -> str:
        return f"{each['revision']} ({each['date']}, load {each['load'][0]})"

    rows = sorted(compare_entries(before, after), key=lambda row: row[2] / row[3])
    lines = [f"{after['title']}: {when(before)} -> {when(after)}"]
    lines += [f"  slower {new / old:5.2f}x  {name}: {word} {old:.3f} -> {new:.3f} s"
              for name, word, old, new, slower in rows if slower]  # fmt: skip
    count = len(lines) - 1
    met = {each["text"] for each in before["budgets"] if each["met"]}
    broken = [each for each in after["budgets"] if each["text"] in met and not each["met"]]
    lines += [f"  no longer met: {each['text']}: {each['value']:.2f} of {each['limit']:g}" for each in broken]
    return [*lines, *([] if len(lines) > 1 else ["  nothing is slower"])], count + len(broken)


def main(revisions: Sequence[str]) -> int:
    found = [render_difference(*each) for each in pairs(measured.read_entries(HISTORY), revisions)]
    if len(revisions) not in (0, 2) or not found:
        print(
            f"nothing to compare: {HISTORY.name} needs two entries of a section; or name two revisions, A and B"
        )
        return 2
    print("\n".join(line for lines, _ in found for line in lines))
    return 1 if any(slower for _, slower in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
