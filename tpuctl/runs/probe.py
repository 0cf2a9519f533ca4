"""Probes of data: what hosts printed as their first batch, and what that says of the data.

Two outputs of one host that differ are random; hosts that should read different parts and print the same repeat
each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from tpuctl.lib.text import fold_workers
from tpuctl.runs.smoke import SmokeFinding

MARK = "tpuctl-probe "
"""What the one line of `templates/data_probe.py` begins with."""


class ProbeReport(Struct, frozen=True):
    """Digests of what one host's probe printed the first and the second time, and how many bytes that were."""

    first: str
    second: str
    bytes: int


def parse_probe(output: str) -> ProbeReport | None:
    """The report in what a process wrote; None where there is none, or none that can be read."""
    for line in output.splitlines():
        if line.startswith(MARK):
            try:
                return msgspec.json.decode(line.removeprefix(MARK), type=ProbeReport)
            except msgspec.MsgspecError:
                return None
    return None


def judge_probe(reports: Mapping[int, ProbeReport | str], distinct: bool | None) -> Sequence[SmokeFinding]:
    """What is wrong, by worker. A worker without a report has the last line that it wrote instead. `distinct`:
    whether hosts read different parts; None where the contract does not say."""
    found: list[SmokeFinding] = []
    same: dict[str, list[int]] = {}
    for worker, report in sorted(reports.items()):
        if isinstance(report, str):
            found.append(SmokeFinding(worker, f"did not finish: {report}" if report else "did not finish"))
        elif not report.bytes:
            found.append(SmokeFinding(worker, "printed nothing"))
        elif report.first != report.second:
            found.append(SmokeFinding(worker, "printed another first batch the second time: it is random"))
        else:
            same.setdefault(report.first, []).append(worker)
    if distinct:
        for workers in same.values():
            said = f"workers {fold_workers(workers)} have the same first batch: each should read its own part"
            found += [SmokeFinding(workers[0], said)] if len(workers) > 1 else []
    elif distinct is False and len(same) > 1:
        most = max(same.values(), key=len)
        others = [worker for workers in same.values() if workers is not most for worker in workers]
        found += [SmokeFinding(each, "has another first batch than the others") for each in sorted(others)]
    return found


def describe_probe(reports: Mapping[int, ProbeReport | str]) -> str:
    """The digests, by worker, for the manifest."""
    said = {worker: report for worker, report in sorted(reports.items()) if isinstance(report, ProbeReport)}
    return ", ".join(f"{worker} {report.first[:12]}" for worker, report in said.items())
