"""`pause` and `resume`: one document that every watchdog of the store obeys."""

from __future__ import annotations

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, StaleRecordError
from tpuctl.lib.codec import to_data
from tpuctl.lib.time import render_time
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import decode

KEY = "pause"


class Pause(Struct, frozen=True):
    """A pause of all watchdogs. `until` is in seconds since the epoch by the store's time, None for no end."""

    by: str
    since: float
    until: float | None = None
    reason: str = ""
    lifted: bool = False


def current_pause(services: Services) -> Pause | None:
    """The pause that is in force, if any."""
    document = services.store.get(KEY)
    pause = decode(Pause, document) if document is not None else None
    if pause is None or pause.lifted:
        return None
    over = pause.until is not None and services.store.now() >= pause.until
    return None if over else pause


def paused_why(services: Services) -> str:
    """That the fleet is paused, by whom and until when; empty when it is not."""
    pause = current_pause(services)
    if pause is None:
        return ""
    until = f"until {render_time(pause.until)}" if pause.until is not None else "until `tpuctl resume`"
    reason = f" ({pause.reason})" if pause.reason else ""
    return f"paused by {pause.by} {until}{reason}"


def pause_fleet(services: Services, *, until: float | None, reason: str = "") -> Pause:
    """Stops every watchdog of this store. Pausing again replaces the end and the reason."""
    pause = Pause(services.user, services.store.now(), until, reason)
    _write(services, pause)
    record_decision(services, "fleet", "pause", reason or f"asked for by {services.user}")
    return pause


def resume_fleet(services: Services) -> bool:
    """Lifts the pause; False when there was none."""
    pause = current_pause(services)
    if pause is None:
        return False
    _write(services, Pause(services.user, services.store.now(), lifted=True))
    record_decision(services, "fleet", "resume", f"asked for by {services.user}")
    return True


def _write(services: Services, pause: Pause) -> None:
    document = services.store.get(KEY)
    try:
        services.store.put(KEY, to_data(pause), if_generation=document.generation if document else 0)
    except ConflictError as error:
        raise StaleRecordError("another tpuctl pauses or resumes at this moment") from error
