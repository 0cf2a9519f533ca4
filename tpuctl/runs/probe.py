"""Probes of data: what hosts printed as their first batch, and what that says of the data.

Two outputs of one host that differ are random; hosts that should read different parts and print the same repeat
each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from tpuctl.lib.text import fold_workers
from tpuctl.model.receipt import Receipt
from tpuctl.runs.smoke import SmokeFinding

MARK = "tpuctl-probe "
"""What the one line of `templates/data_probe.py` begins with."""


_PROBE = "-probe-"


class ProbeReport(Struct, frozen=True):
    """Digests of what one host's probe printed the first and the second time, and how many bytes that were."""

    first: str
    second: str
    bytes: int


def probed(receipts: Sequence[Receipt]) -> list[Receipt]:
    """The data that has a probe."""
    return [receipt for receipt in receipts if receipt.contract.get("probe")]


def probe_check(receipt: Receipt) -> str:
    """What the check of a probe is called in manifests."""
    return f"probe {receipt.uri}"


def probe_name(attempt_id: str, number: int) -> str:
    """What hosts call the `number`-th probe of an attempt, beside the attempts of the run."""
    return f"{attempt_id}{_PROBE}{number}"


def is_probe_of(attempt_id: str, name: str) -> bool:
    """Whether it is one of that attempt."""
    return name.startswith(f"{attempt_id}{_PROBE}")


def parse_probe(output: str) -> ProbeReport | None:
    """The report in what a process wrote; None where there is none, or none that can be read."""
    for line in output.splitlines():
        if line.startswith(MARK):
            try:
                return msgspec.json.decode(line.removeprefix(MARK), type=ProbeReport)
            except (msgspec.MsgspecError, RecursionError):
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


def describe_findings(found: Sequence[SmokeFinding]) -> str:
    """All of it in one line."""
    return "; ".join(
        each.what if each.what.startswith("workers ") else f"worker {each.worker} {each.what}" for each in found
    )


def describe_probe(reports: Mapping[int, ProbeReport | str]) -> str:
    """The digests, by worker, for the manifest."""
    said = {worker: report for worker, report in sorted(reports.items()) if isinstance(report, ProbeReport)}
    return ", ".join(f"{worker} {report.first[:12]}" for worker, report in said.items())
