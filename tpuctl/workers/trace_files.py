"""Traces of several hosts on this machine, in the layout that xprof and TensorBoard open as one session."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tpuctl.engine.ports import Clock, EventSink
from tpuctl.errors import TpuctlError
from tpuctl.hosts.agent import HostAgent
from tpuctl.model.cloud import HostTarget, RemoteResult
from tpuctl.workers.copy_from import pull
from tpuctl.workers.file_receiver import FileReceiver

SUFFIX = ".xplane.pb"


def session_folder(directory: Path, session: str) -> Path:
    """Where a session of the log directory `directory` has its hosts, as xprof looks for them."""
    return directory / "plugins" / "profile" / session


def fetch_traces(
    agent: HostAgent,
    targets: Sequence[HostTarget],
    path: str,
    place: Path,
    *,
    clock: Clock,
    emit: EventSink,
) -> tuple[tuple[RemoteResult, ...], list[Path]]:
    """Fetches what each target has in the folder `path`. Returns what came of it, and the files in `place`, one
    for each process; they arrive elsewhere, so that a viewer never sees half of one.
    """
    arriving = place.parents[2] / f".arriving-{place.name}"
    try:
        arriving.mkdir(parents=True, exist_ok=True)
        pulled = pull(agent, targets, path, lambda t: FileReceiver(arriving / t.label), clock=clock, emit=emit)
        files = [each for target in targets for each in _settle(arriving / target.label, target.label, place)]
        return pulled.results, files
    except OSError as error:
        raise TpuctlError(f"cannot write {place}: {error.strerror}", hint="--to another directory") from error
    finally:
        shutil.rmtree(arriving, ignore_errors=True)


def _settle(folder: Path, label: str, place: Path) -> list[Path]:
    """`LABEL.xplane.pb`, and of several processes `LABEL.PROCESS.xplane.pb`."""
    found = sorted(folder.glob(f"*{SUFFIX}"))
    if found:
        place.mkdir(parents=True, exist_ok=True)
    named = {each: label if len(found) == 1 else f"{label}.{each.name[: -len(SUFFIX)]}" for each in found}
    return [each.replace(place / f"{name}{SUFFIX}") for each, name in named.items()]
