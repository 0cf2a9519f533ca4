"""`make conformance`: other people's clients against the simulated cloud, as a table in docs/conformance.md.

Names of clients as arguments run those alone and leave the page as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.harness import Result, discover, run_apart
from tests.conformance.reasons import REASONS

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
HEAD = """# Conformance

Written by `make conformance`: programs and libraries that others wrote, unchanged, against the simulated cloud.
A check is one thing that a client did, errors included, compared with what the real API answers. Each client
has a virtual environment and a simulator of its own; a sample of them runs in `make test`.

| client | version | checks | as the real API | not |
|---|---|---|---|---|
"""


def render(results: Sequence[Result]) -> str:
    """The page."""
    lines = [HEAD.rstrip("\n")]
    for each in results:
        if each.missing:
            lines.append(f"| {each.client.name} | not run: {each.missing} | | | |")
            continue
        good = sum(check.ok for check in each.checks)
        lines.append(
            f"| {each.client.name} | {each.version} | {len(each.checks)} | {good} | {len(each.checks) - good} |"
        )
    rest = [(each.client.name, check) for each in results for check in each.checks if not check.ok]
    lines += ["", "## Not as the real API", ""]
    lines += [f"- {name}, {check.name}: {_why(name, check.name)}" for name, check in rest] or ["Nothing."]
    return "\n".join(lines) + "\n"


def _why(client: str, check: str) -> str:
    return REASONS.get((client, check), "no reason is known")


def unexplained(results: Sequence[Result]) -> list[str]:
    """What failed without a known reason."""
    return [
        f"{each.client.name}: {check.name}: {check.detail}"
        for each in results
        for check in each.checks
        if not check.ok and (each.client.name, check.name) not in REASONS
    ]


def main(names: Sequence[str]) -> int:
    results = []
    for client in discover():
        if names and client.name not in names:
            continue
        print(f"{client.name} …", flush=True)
        results.append(run_apart(client))
    if not names:
        PAGE.write_text(render(results))
    failed = unexplained(results)
    print(render(results))
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
