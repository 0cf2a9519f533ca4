"""Run the probes of a run's data on its hosts, with its code and environment, before it is written down."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tpuctl.datasets.contract import Contract
from tpuctl.engine.services import Services
from tpuctl.errors import PartialError, TpuctlError
from tpuctl.lib.codec import from_data
from tpuctl.lib.time import render_time
from tpuctl.model.receipt import Receipt
from tpuctl.model.run_spec import Policy
from tpuctl.model.shipped_files import read_template
from tpuctl.model.timeouts import PROBE_S
from tpuctl.provenance.manifest import Row
from tpuctl.runs.once import run_once
from tpuctl.runs.probe import describe_probe, judge_probe, parse_probe
from tpuctl.runs.submit import Submission


def probed(receipts: Sequence[Receipt]) -> list[Receipt]:
    """The data that has a probe."""
    return [receipt for receipt in receipts if receipt.contract.get("probe")]


def probe_data(services: Services, submission: Submission, receipt: Receipt, run_id: str) -> Row:
    """The check for the manifest. Raises PartialError where first batches are not as the contract says."""
    contract = from_data(Contract, receipt.contract)
    argv = ("python3", "-c", read_template("data_probe.py").decode(), *contract.probe)
    spec = replace(
        submission.spec,
        argv=argv,
        policy=Policy(max_failures=0, max_preemptions=0, max_restarts=0),
        no_checkpoint=True,
        checkpoint_dir=None,
        allow_cpu=True,
        progress="",
        group="",
        tags=(),
    )
    ended, reports = run_once(services, replace(submission, spec=spec), run_id, PROBE_S, parse_probe)
    if not reports:
        raise TpuctlError(
            f"{receipt.uri} was not probed: {ended.reason}", hint=f"tpuctl why {ended.slice_name}"
        )
    found = judge_probe(reports, contract.distinct)
    if found:
        said = "; ".join(
            each.what if each.what.startswith("workers ") else f"worker {each.worker} {each.what}"
            for each in found
        )
        details = {"workers": sorted({each.worker for each in found})}
        raise PartialError(f"the probe of {receipt.uri}: {said}", hint=f"tpuctl logs {run_id}", details=details)
    at = render_time(services.store.now()) or ""
    return {"check": f"probe {receipt.uri}", "detail": describe_probe(reports), "at": at}
