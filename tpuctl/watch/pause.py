"""`pause` and `resume`: one document that every watchdog of the store obeys."""

from __future__ import annotations

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.lib.time import render_time
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import Repository


class Pause(Struct, frozen=True):
    """A pause of all watchdogs. `until` is in seconds since the epoch by the store's time, None for no end."""

    by: str
    since: float
    until: float | None = None
    reason: str = ""
    lifted: bool = False


PAUSE = Repository(Pause, "pause")
"""There is one, without a name."""


def current_pause(services: Services) -> Pause | None:
    """The pause that is in force, if any."""
    pause = PAUSE.record(services, "")
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
    PAUSE.overwrite(services, "", pause)
    record_decision(services, "fleet", "pause", reason or f"asked for by {services.user}")
    return pause


def resume_fleet(services: Services) -> bool:
    """Lifts the pause; False when there was none."""
    pause = current_pause(services)
    if pause is None:
        return False
    PAUSE.overwrite(services, "", Pause(services.user, services.store.now(), lifted=True))
    record_decision(services, "fleet", "resume", f"asked for by {services.user}")
    return True
