"""Starting, stopping and steering the background simulator from outside of it."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tpuctl.errors import ConflictError, NotFoundError, TpuctlError, UsageError
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.server.options import SimOptions
from tpuctl.sim.server.processes import alive
from tpuctl.sim.server.state_dir import LOG_FILE, failure, guardian_lock, sweep
from tpuctl.sim.server.state_dir import status as status

START_TIMEOUT_S = 120.0
"""Imports take about a second, and half a minute at a load of 30; a server that fails is noticed before."""
STOP_TIMEOUT_S = 30.0


def up(state_dir: Path, options: SimOptions | None = None, *, bound: bool = False) -> SimInfo:
    """Starts the simulator in the background and waits until it answers; one that runs already is kept.

    `bound`: it ends with this process, however that ends; call from the main thread then. Raises ConflictError
    when the one that runs has other options, and TpuctlError with the log's last lines when none comes up.
    """
    options = options or SimOptions()
    options.check()
    running = status(state_dir)
    if running is not None:
        _check_same(running, options)
        return running
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state_dir / LOG_FILE).open("wb") as log:
        guardian = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "tpuctl.sim.server.supervisor",
                    str(state_dir),
                    json.dumps(options.to_json()),
                ),
                *([str(os.getpid())] if bound else []),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    importlib.import_module("urllib.request")  # while the simulator comes up: `sim up` asks it afterwards
    return _wait_until_up(state_dir, guardian)


def _check_same(running: SimInfo, options: SimOptions) -> None:
    """Raises ConflictError when the simulator that runs was started otherwise."""
    other = [
        f"{name} {running.options.get(name)}, not {value}"
        for name, value in options.to_json().items()
        if running.options.get(name) != value
    ]
    if other:
        raise ConflictError(
            f"a simulator runs already, with {'; '.join(other)}",
            hint="`tpuctl sim down` ends it and all in it but its buckets; `tpuctl sim delay` and "
            "`tpuctl sim quota` change it",
        )


def _wait_until_up(state_dir: Path, guardian: subprocess.Popen[bytes]) -> SimInfo:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        info = status(state_dir)
        if info is not None:
            return info
        if guardian.poll() is not None:
            break
        time.sleep(0.02)
    else:
        guardian.terminate()
        guardian.wait()
    raise failure(state_dir, "the simulator did not start")


def down(state_dir: Path) -> bool:
    """Stops the simulator with all its hosts and their data, buckets excepted; False when none was running."""
    info = status(state_dir)
    if info is None:
        with guardian_lock(state_dir) if state_dir.is_dir() else nullcontext(False) as ours:
            if ours:
                sweep(state_dir)
        return False
    if not os.access(state_dir, os.W_OK | os.X_OK):  # before anything ends: what is there could not be removed
        raise TpuctlError(
            f"{state_dir} cannot be written, so the simulator was left running", hint=f"chmod u+w {state_dir}"
        )
    os.kill(info.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline and (alive(info.pid) or alive(info.guardian_pid)):
        _reap(info.guardian_pid)
        time.sleep(0.02)
    if alive(info.pid):
        os.kill(info.pid, signal.SIGKILL)
    with guardian_lock(state_dir) as ours:
        if ours:
            sweep(state_dir)
    return True


def _reap(pid: int) -> None:
    """Takes the exit status when the guardian happens to be our own child (`up` and `down` in one process)."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _admin(info: SimInfo, verb: str, action: str, body: Mapping[str, Any] | None = None) -> Any:
    import urllib.error
    import urllib.request

    request = urllib.request.Request(  # noqa: S310 - the address is our own server's, from our own file
        f"{info.http}/_sim/{action}",
        data=None if body is None else json.dumps(dict(body)).encode(),
        headers={"authorization": f"Bearer {info.token}", "content-type": "application/json"},
        method=verb,
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        refusal = json.load(error)["error"]
        links = [link for detail in refusal.get("details", ()) for link in detail.get("links", ())]
        kind = NotFoundError if error.code == HTTPStatus.NOT_FOUND else UsageError
        hint = links[0]["description"] if links else None
        raise kind(refusal["message"], hint=hint) from error
    except OSError as error:
        raise TpuctlError(
            f"the simulator at {info.http} does not answer: {error}",
            hint="`tpuctl sim down`, then `tpuctl sim up`",
        ) from error


def act(
    info: SimInfo, verb: str, node: str, zone: str | None = None, workers: Sequence[int] = (), **more: Any
) -> list[str]:
    """Lets something happen to a node or instance, to all of a queued resource or group of that name, or to
    some workers; their full names. `preempt`, `reboot`, `crash` (hosts die and the API does not notice), or
    `load`: what chips seem to do, by `fields` of `Load` in `hosts/metrics_server.py`, None for nothing."""
    return list(_admin(info, "POST", verb, {"node": node, "zone": zone, "workers": list(workers), **more}))


def set_quotas(info: SimInfo, quotas: Mapping[str, int]) -> dict[str, int]:
    """Changes quotas, by the keys of `tpuctl.sim.world.quotas`; all that are set now."""
    return dict(_admin(info, "POST", "quotas", quotas))


def waits(info: SimInfo) -> dict[str, float]:
    """How long a user waits for what, in seconds, as the delays are now; see `Delays.at`."""
    return dict(_admin(info, "GET", "delays"))


def set_delays(info: SimInfo, delays: Mapping[str, float]) -> dict[str, float]:
    """Changes single delays of `tpuctl.sim.server.options.Delays`, in seconds; all of them now."""
    return dict(_admin(info, "POST", "delays", delays))


def set_fields(info: SimInfo, name: str, zone: str | None, fields: Mapping[str, str]) -> list[str]:
    """Makes the API show these fields of a node or queued resource; the full names."""
    asked = {"name": name, "zone": zone, "fields": dict(fields)}
    return list(_admin(info, "POST", "set", asked)["set"])


def set_capacity(info: SimInfo, capacity: Mapping[str, int | None]) -> dict[str, int]:
    """Changes how many chips zones have, None for plenty; all that are limited now."""
    return dict(_admin(info, "POST", "capacity", capacity))


def reservations(info: SimInfo, change: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """All reservations, after one was set by `name`, `zone`, `generation` and `chips`."""
    if change is None:
        return list(_admin(info, "GET", "reservations"))
    return list(_admin(info, "POST", "reservations", change))


def set_metadata(info: SimInfo, items: Mapping[str, str]) -> dict[str, str]:
    """Changes the project's metadata, such as `enable-oslogin`; all of it now."""
    return dict(_admin(info, "POST", "metadata", items))


def fault(info: SimInfo, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Plans a fault: the fields of `tpuctl.sim.world.faults.Fault`, or `{"preset": NAME, …}`."""
    return dict(_admin(info, "POST", "faults", spec))


def faults(info: SimInfo) -> list[dict[str, Any]]:
    """The faults that are still to strike."""
    return list(_admin(info, "GET", "faults"))


def clear_faults(info: SimInfo) -> None:
    _admin(info, "DELETE", "faults")


def state(info: SimInfo) -> dict[str, Any]:
    """Nodes, queued resources and operations as the API shows them."""
    return dict(_admin(info, "GET", "state"))


def journal(info: SimInfo) -> list[dict[str, Any]]:
    """Every mutating call so far."""
    return list(_admin(info, "GET", "journal"))


def reset(info: SimInfo) -> None:
    """An empty cloud again, with the same addresses and token."""
    _admin(info, "POST", "reset", {})
