"""`make conformance`: other people's clients against the simulated cloud, a table in docs/develop.

Names of clients as arguments run those alone; what the others saw before stays. The page is written when all
clients of the versions that are asked for today have run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.harness import Result, discover, find_result, run_apart
from tests.conformance.reasons import REASONS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "develop" / "conformance.md"
KEPT = ROOT / "build" / "conformance"
"""What each client saw when it ran last."""
HEAD = """# Conformance

Written by `make conformance`: programs and libraries that others wrote, unchanged, against the simulated
cloud. A check is one thing that a client did, errors included, compared with what the real API answers;
in-toto, MLflow and ro-crate-py read what `tpuctl manifest export` writes. Each client has a virtual
environment and a simulator of its own; a sample of them runs in `make test`. The checks are in
`tests/conformance`. Those of storage clients run twice: with the variables of `tpuctl sim env`, and as
`--https:` through the proxy of `tpuctl sim env --https`, where clients are not told any address. Some
checks want a client to be refused [what is not simulated](simulator.md#what-it-refuses), in words that say so.

| client | version | run on | checks | as the real API | not |
|---|---|---|---|---|---|
"""


def render(results: Sequence[Result]) -> str:
    """The page."""
    lines = [HEAD.rstrip("\n")]
    for each in results:
        if each.missing:
            lines.append(f"| {each.client.name} | not run: {each.missing} | | | | |")
            continue
        good = sum(check.ok for check in each.checks)
        lines.append(
            f"| {each.client.name} | {each.version} | {each.day} | {len(each.checks)} | {good} "
            f"| {len(each.checks) - good} |"
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


def main(names: Sequence[str]) -> int:
    clients = discover()
    unknown = sorted(set(names) - {client.name for client in clients})
    if unknown:
        print(f"no client {', '.join(unknown)}; there are: {', '.join(client.name for client in clients)}")
        return 2
    for client in clients:
        if not names or client.name in names:
            print(f"{client.name} …", flush=True)
            run_apart(client).save(KEPT)
    found = [(client, find_result(client, KEPT)) for client in clients]
    results = [result for _, result in found if result is not None]
    absent = [client.name for client, result in found if result is None]
    if absent:
        print(f"{PAGE.name} stays as it is: not yet run: {', '.join(absent)}")
    else:
        PAGE.write_text(render(results))
    ran = [each for each in results if not names or each.client.name in names]
    print(render(ran))
    failed = [*unexplained(ran), *outdated(ran)]
    print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
