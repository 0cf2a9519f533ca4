"""`make conformance`: other people's clients against the simulated cloud, a table in docs/develop.

Names of clients as arguments run those alone. Of the others the page keeps what stands there, where that is of
the version that is asked for today; it is written when there is something to say of all.
`--resume` leaves out those that ran at this very revision.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.client import Client
from tests.conformance.harness import Result, discover, find_result, pinned_version, run_apart
from tests.conformance.reasons import REASONS
from tests.support import measured

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "develop" / "conformance.md"
KEPT = ROOT / "build" / "conformance"
"""What each client saw when it ran last."""
HEAD = """# Conformance

Written by `make conformance`: programs and libraries that others wrote, unchanged, against the simulated
cloud. A check is one thing that a client did, errors included, compared with what the real API answers;
in-toto, MLflow and ro-crate-py read what `tpuctl manifest export` writes, and Kubernetes' own server checks
[what goes to clusters](testing.md#rules). Each client has a virtual environment and a simulator of its own;
a sample of them runs in `make test`. The checks are in
`tests/conformance`. Those of storage clients run twice: with the variables of `tpuctl sim env`, and as
`--https:` through the proxy of `tpuctl sim env --https`, where clients are not told any address. Some
checks want a client to be refused [what is not simulated](simulator.md#what-it-refuses), in words that say so.
Each client says on which day it ran, and since 2026-11-27 at which revision.

| client | version | run on | checks | as the real API | not |
|---|---|---|---|---|---|
"""

NOT_SET_UP = "could not be set up"
REST = "## Not as the real API"


@dataclass(frozen=True)
class Row:
    """What the page says of one client: its row of the table, and a line for each check that failed."""

    client: str
    cells: str
    wrong: tuple[str, ...] = ()


def row_of(result: Result) -> Row:
    name = result.client.name
    if result.missing:
        return Row(name, f"not run: {result.missing} | | | |")
    wrong = [check for check in result.checks if not check.ok]
    count = len(result.checks)
    when = f"{result.day} at {result.revision}" if result.revision else result.day
    cells = f"{result.version} | {when} | {count} | {count - len(wrong)} | {len(wrong)}"
    return Row(name, cells, tuple(f"- {name}, {each.name}: {_why(name, each.name)}" for each in wrong))


def find_row(client: Client, page: str) -> Row | None:
    """What a page says of a client, if it is of the version that is asked for."""
    table, _, rest = page.partition(f"\n{REST}\n")
    start = f"| {client.name} | "
    for line in table.splitlines():
        if line.startswith(start):
            cells = line.removeprefix(start).removesuffix(" |")
            wrong = tuple(each for each in rest.splitlines() if each.startswith(f"- {client.name}, "))
            version = cells.partition(" | ")[0]
            return Row(client.name, cells, wrong) if pinned_version(client) in (None, version) else None
    return None


def render(rows: Sequence[Row]) -> str:
    """The page."""
    lines = [HEAD.rstrip("\n"), *(f"| {each.client} | {each.cells} |" for each in rows)]
    rest = [line for each in rows for line in each.wrong]
    return "\n".join([*lines, "", REST, "", *(rest or ["Nothing."])]) + "\n"


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


def outdated(results: Sequence[Result]) -> list[str]:
    """Reasons for what these clients, all that were run, found as it should be, or did not do at all."""
    whole = [each for each in results if not each.missing]
    ran = {each.client.name: {check.name: check.ok for check in each.checks} for each in whole}
    return [
        f"{client}: {check}: reasons.py has a reason, but it is as the real API"
        if ran[client].get(check)
        else f"{client}: {check}: reasons.py has a reason, but there is no such check"
        for client, check in REASONS
        if client in ran and ran[client].get(check) is not False
    ]


def run(client: Client) -> Result:
    """One that cannot be installed, or whose simulator does not start, keeps no other from being run."""
    try:
        return run_apart(client)
    except subprocess.SubprocessError as error:
        return Result(client, "", missing=f"{NOT_SET_UP}: {type(error).__name__}")


def main(argv: Sequence[str]) -> int:
    resume, names = "--resume" in argv, [each for each in argv if each != "--resume"]
    clients, at = discover(), measured.revision()
    unknown = sorted(set(names) - {client.name for client in clients})
    if unknown:
        print(f"no client {', '.join(unknown)}; there are: {', '.join(client.name for client in clients)}")
        return 2
    for client in clients:
        there = find_result(client, KEPT) if resume else None
        done = there is not None and not there.missing and measured.is_clean(at) and there.revision == at
        if (not names or client.name in names) and not done:
            print(f"{client.name} …", flush=True)
            run(client).save(KEPT)
    seen = {client.name: find_result(client, KEPT) for client in clients}
    page = PAGE.read_text()
    rows = [
        row_of(result) if (result := seen[client.name]) is not None else find_row(client, page)
        for client in clients
    ]
    absent = [client.name for client, row in zip(clients, rows, strict=True) if row is None]
    if absent:
        print(f"{PAGE.name} stays as it is: not yet run: {', '.join(absent)}")
    else:
        PAGE.write_text(render([row for row in rows if row is not None]))
    ran = [each for name, each in seen.items() if each is not None and (not names or name in names)]
    print(render([row_of(each) for each in ran]))
    absent = [f"{each.client.name}: {each.missing}" for each in ran if each.missing.startswith(NOT_SET_UP)]
    failed = [*absent, *unexplained(ran), *outdated(ran)]
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
