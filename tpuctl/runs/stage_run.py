"""`data stage`: a run on one host of a slice that brings files of the Hugging Face hub into a bucket.

Its program is `templates/hub_stage.py`. What it is to bring, and how far it is, is in the bucket, so that any
machine goes on with it. The bucket is the place of the run's checkpoints, from which attempts go on: whether
hosts may write there is then known before the program starts, and a run that brings nothing is noticed.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from msgspec.structs import replace

from tpuctl.config.settings import Config
from tpuctl.datasets.contract import Contract
from tpuctl.datasets.pack import list_objects
from tpuctl.datasets.receipt import keep_receipt, take_receipt
from tpuctl.datasets.stage import RECORD, StageRecord, StageRequest, conflict
from tpuctl.datasets.verify import check_rows, find_record, verify
from tpuctl.engine.services import Services
from tpuctl.errors import (
    ConflictError,
    DeniedError,
    NotFoundError,
    PartialError,
    TpuctlError,
    UsageError,
)
from tpuctl.lib.names import parse_secret
from tpuctl.model.attempts import Cause
from tpuctl.model.receipt import Receipt
from tpuctl.model.records import RunRecord, RunState, SliceRecord
from tpuctl.model.run_spec import RunRequest
from tpuctl.model.shipped_files import read_template
from tpuctl.runs.follow import follow_run
from tpuctl.runs.reconcile import run_error
from tpuctl.runs.submit import Submission, freeze_code, prepare_run
from tpuctl.transfer.tree import Content

ENVIRONMENT, PROGRAM = "hf-hub", "hub_stage.py"
_BY_STATUS = {kind.exit_code: kind for kind in (UsageError, DeniedError, NotFoundError, ConflictError)}
"""As `hub_stage.py` has them."""
PROGRESS = r"staged (\d+) of (\d+) MB"


def find_staged(services: Services, request: StageRequest) -> StageRecord | None:
    """What is at the place already; None where it is empty. Raises ConflictError for anything else there."""
    record = find_record(services, request.place)
    another = "another prefix, or if nobody needs what is there: gcloud storage rm -r " + request.place
    if record is None:
        strange = list_objects(services, request.place, limit=1)
        if strange:
            raise ConflictError(f"{request.place} has something else: {strange[0].name}", hint=another)
        return None
    why = conflict(record, request.source, request.include, request.exclude)
    if why:
        raise ConflictError(f"{request.place} has {why}", hint=another)
    return record


def prepare_stage(
    services: Services, config: Config, request: StageRequest, target: SliceRecord, directory: Path
) -> Submission:
    """Checks the run on `target`, changes nothing. Raises as `prepare_run` does."""
    asked = {
        "kind": request.source.kind,
        "repo": request.source.repo,
        "revision": request.source.revision,
        "include": request.include,
        "exclude": request.exclude,
        "place": request.place,
        "scratch": request.scratch,
    }
    variables = {"HF_HOME": f"{request.scratch}/.hub"}
    if request.endpoint:
        variables["HF_ENDPOINT"] = request.endpoint
    run = RunRequest(
        on=target.name,
        script=PROGRAM,
        args=(json.dumps(asked),),
        env=ENVIRONMENT,
        worker="0",
        alone=True,
        allow_cpu=True,
        lint="off",
        checkpoint_dir=request.place,
        progress=PROGRESS,
        secret=dict([parse_secret(f"HF_TOKEN={request.token}")]) if request.token else {},
        var=variables,
    )
    program = read_template(PROGRAM)
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / PROGRAM).write_bytes(program)
        code = freeze_code(config, run, Path(made))
    code = replace(code, content=Content(code.content.tree, lambda _sha256: [program]))
    return prepare_run(services, replace(config, require_data=False), run, code, directory, target)


def is_staged(services: Services, request: StageRequest, record: StageRecord | None) -> bool:
    """Whether all is there, by the checksums that the bucket has."""
    if record is None or not record.complete:
        return False
    return all(row["problem"] is None for row in verify(services, request.place, quick=True))


def follow_stage(services: Services, run_id: str, deadline: float | None) -> None:
    """Waits for the end of its run. Raises what that amounts to where it did not succeed, and where somebody
    stopped it."""
    ended = follow_run(services, run_id, deadline=deadline)
    error = run_error(ended, f"tpuctl logs {run_id}")
    if error is not None:
        raise _by_status(error, ended)
    if ended.state is RunState.STOPPED:
        raise PartialError(f"run {run_id} was stopped", hint="the same command again goes on")


def _by_status(error: TpuctlError, run: RunRecord) -> TpuctlError:
    """The error by what the program was refused, which its exit status says. That a run on one host with a
    bucket that is there was not begun because of the project means that its account may not write there."""
    attempt = run.attempt
    if attempt is not None and attempt.cause is Cause.NOT_SET_UP:
        kind: type[TpuctlError] = DeniedError
    elif attempt is not None and attempt.failure is not None and attempt.failure.signature == "stage-refused":
        kind = _BY_STATUS.get(attempt.ends[0].exit_status or 0, TpuctlError)
    else:
        return error
    return kind(error.message, hint=error.hint, details=error.details)


def finish_stage(services: Services, request: StageRequest) -> tuple[StageRecord, Receipt]:
    """Compares what is at the place with its record, by the checksums that the bucket has, and keeps its
    receipt. Raises PartialError where it is not complete, or not as it arrived."""
    record = find_record(services, request.place)
    if record is None or not record.complete:
        again = f"tpuctl data stage {request.source} {request.place}"
        raise PartialError(f"{request.place} is not complete: see {RECORD} there", hint=again)
    check_rows(services, request.place, verify(services, request.place, quick=True))
    receipt = take_receipt(services, request.place, Contract())
    keep_receipt(services, receipt)
    return record, receipt
