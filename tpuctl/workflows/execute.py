"""One-off commands on workers, under the leash: when this process goes, they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tpuctl.core.nouns import FailureKind, HostTarget, RemoteResult
from tpuctl.core.plan import Blocked
from tpuctl.core.records import SliceRecord, SliceState
from tpuctl.errors import ConflictError, TpuctlError, UsageError
from tpuctl.workflows.documents import get_slice, list_slices
from tpuctl.workflows.enrolment import ask_to_be_let_in, why_closed
from tpuctl.workflows.events import Warn, WorkerOutput
from tpuctl.workflows.helper_link import HelperLink
from tpuctl.workflows.services import Services
from tpuctl.workflows.ssh_entries import follow_slices
from tpuctl.workflows.targets import host_targets


def resolve_slice(services: Services, name: str | None) -> SliceRecord:
    """The slice called `name`, or the caller's own only slice. Raises NotFoundError or UsageError.

    What this machine's own `ssh` knows of it follows it.
    """
    record = get_slice(services, name).record if name is not None else _only_slice(services)
    follow_slices(services, [record])
    return record


def _only_slice(services: Services) -> SliceRecord:
    mine = [
        record
        for record in list_slices(services)
        if record.owner == services.user and record.state is not SliceState.GONE
    ]
    if len(mine) == 1:
        return mine[0]
    names = ", ".join(record.name for record in mine)
    raise UsageError(
        f"which slice? you have {names}" if mine else "you have no slice",
        hint="give its name" if mine else "tpuctl up ACCELERATOR --spot",
    )


def choose_workers(
    record: SliceRecord, workers: Sequence[int] | None, everyone: Sequence[HostTarget]
) -> list[HostTarget]:
    """The targets of the chosen workers; all for None. Raises UsageError for one out of range."""
    if workers is None:
        return list(everyone)
    for worker in workers:
        if not 0 <= worker < len(everyone):
            raise UsageError(
                f"worker {worker} does not exist: {record.name} has workers 0 to {len(everyone) - 1}",
                hint="tpuctl status " + record.name,
            )
    return [everyone[worker] for worker in workers]


def execute(
    services: Services,
    record: SliceRecord,
    argv: Sequence[str],
    *,
    workers: Sequence[int] | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    sink: Callable[[int, str, bytes], None] | None = None,
) -> list[RemoteResult]:
    """Runs `argv` on the chosen workers and waits. Results come in worker order, failures included; a worker
    that is lost while others go on is told at once."""
    if record.state is not SliceState.READY:
        raise ConflictError(
            f"slice {record.name} is {record.state}, not ready", hint=f"tpuctl up {record.name}"
        )
    targets = choose_workers(record, workers, host_targets(services, record))

    def emit(worker: int, stream: str, data: bytes) -> None:
        services.emit(WorkerOutput(record.name, worker, stream, data, len(targets)))

    busy = {target.worker for target in targets}

    def on_end(result: RemoteResult) -> None:
        busy.discard(result.worker)
        if result.failure is not None and busy:
            services.emit(Warn(f"{record.name}-{result.worker}", result.detail or str(result.failure)))

    helper = HelperLink(services.remote, services.helper_source)
    results = helper.leash(
        targets, list(argv), sink or emit, env=environment, timeout_s=timeout_s, on_end=on_end
    )
    if any(result.failure is FailureKind.AUTH for result in results):
        _knock(services, record)
    return results


def _knock(services: Services, record: SliceRecord) -> None:
    """Hosts refused this machine's key: sends it to them, and says what that means for the person who waits.
    Whatever goes wrong with that, what the other hosts answered stands."""
    try:
        sent = ask_to_be_let_in(services, record.name)
    except TpuctlError as error:
        services.emit(Warn(record.name, f"this machine's key could not be sent: {error.message}"))
        return
    if sent:
        services.emit(Warn(record.name, f"{sent}: the same command again in a minute"))
        return
    verdict = why_closed(services, record, "its hosts refuse this machine's key")
    hint = f": {verdict.hint}" if isinstance(verdict, Blocked) and verdict.hint else ""
    services.emit(Warn(record.name, f"{verdict.why}{hint}"))
