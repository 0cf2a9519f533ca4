"""The data of a run: its receipts before it is written down, and the same data once more before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpuctl.config.settings import Config
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, NotFoundError, UsageError
from tpuctl.hosts.deadline import HOST_TIME_S
from tpuctl.hosts.targets import host_targets
from tpuctl.model.hosts import HostTarget
from tpuctl.model.receipt import Receipt, difference
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.run_spec import RunRequest

if TYPE_CHECKING:
    from tpuctl.hosts.agent import HostAgent


def find_data(services: Services, config: Config, request: RunRequest) -> tuple[Receipt, ...]:
    """The receipts of what a run says that it reads. Raises UsageError for data without one, and where runs
    have to say what they read and this one does not."""
    if config.require_data and not request.data and not request.synthetic:
        said = f"require_data is set ({config.origins['require_data']}), and the run does not say what it reads"
        raise UsageError.of("data", said, "--data URI, or --synthetic for made-up data")
    if not request.data:
        return ()
    from tpuctl.datasets.receipt import find_receipt

    return tuple(find_receipt(services, word) for word in request.data)


def why_changed(services: Services, receipt: Receipt, agent: HostAgent, host: HostTarget | None) -> str:
    """Why data is not as its receipt says; empty where it is. A tree is asked of `host`; without one nothing is
    known of it. Raises TpuctlError where nobody can tell."""
    from tpuctl.datasets.receipt import ask_tree, take_receipt

    try:
        if receipt.kind == "gcs":
            now = take_receipt(services, receipt.uri, None)
        elif host is not None:
            now = ask_tree(agent, host, receipt.uri, receipt.path, None, timeout_s=HOST_TIME_S)
        else:
            return ""
    except NotFoundError as error:
        return error.message
    found = difference(receipt, now)
    return f"{receipt.uri} is not as its receipt says: {found}" if found else ""


def renew_hint(uri: str) -> str:
    """What to type where data changed."""
    return f"tpuctl data receipt {uri} --contract FILE, if it was meant to change"


def check_data(services: Services, receipts: Sequence[Receipt], slice_: SliceRecord | None) -> None:
    """Raises ConflictError where data is not as its receipt says. What is on hosts is asked of those of
    `slice_`, if it is ready."""
    for uri, why in data_problems(services, receipts, slice_).items():
        if why:
            raise ConflictError(why, hint=renew_hint(uri), details={"key": "data"})


def data_problems(
    services: Services, receipts: Sequence[Receipt], slice_: SliceRecord | None
) -> dict[str, str]:
    """For each URI why its data is not the same; empty where it is."""
    if not receipts:
        return {}
    from tpuctl.hosts.agent import HostAgent

    ready = slice_ is not None and slice_.state is SliceState.READY
    trees = any(each.kind != "gcs" for each in receipts)
    host = host_targets(services, slice_)[0] if slice_ is not None and ready and trees else None
    agent = HostAgent(services.remote, services.agent_source)
    return {each.uri: why_changed(services, each, agent, host) for each in receipts}
