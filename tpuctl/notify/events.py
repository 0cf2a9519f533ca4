"""Hooks: what is told to programs and web addresses of the user's own, and when.

Happenings are read out of the journal and the run records, which are written before the effect they announce.
Each has an id that is the same on every machine and after every crash, so that it can be told once.
Hooks come only from the user's own configuration file: what a shared store or a directory holds is never run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.config.hooks import Occasion
from tpuctl.lib.time import render_time
from tpuctl.model import timeouts
from tpuctl.model.records import RunState
from tpuctl.watch.heartbeat import PassResult, Trouble

REMEMBERED = 20
"""Incarnations of a slice whose happenings are remembered as told; older ones are not told any more."""


class Happening(Struct, frozen=True):
    """Something to tell. `token` is its id within the subject."""

    occasion: Occasion
    subject: str
    token: str
    at: float
    detail: str


class Seen(Struct, frozen=True):
    """How far one subject was looked at: the generation of its record, and what was told of it."""

    generation: int
    told: tuple[str, ...] = ()


class Ledger(Struct, frozen=True):
    """What one hook was told. `holder` has it to itself until `expires` (store's time)."""

    seen: Mapping[str, Seen] = field(default_factory=dict)
    troubled: Mapping[str, str] = field(default_factory=dict)
    """Subjects whose trouble was told, and the machine that saw it."""
    holder: str = ""
    expires: float = 0.0
    trying: str = ""
    tries: int = 0
    error: str = ""


def slice_happenings(subject: str, journal: Sequence[Mapping[str, Any]]) -> list[Happening]:
    """What the journal of a slice, in the order of appending, tells; each once, however often it was written.

    A slice has recovered when it is ready after a loss with no `up` or `down` in between.
    """
    found: dict[str, Happening] = {}
    lost = ready = False
    for entry in journal:
        action = str(entry["action"])
        occasion = None
        if action in {"up", "down"}:
            lost = ready = False
        elif action in {"preempted", "unreachable", "create-failed", "absent"}:
            occasion = None if action in {"create-failed", "absent"} else Occasion.PREEMPTED
            lost = lost or ready or occasion is not None
        elif action == "ready":
            occasion = Occasion.RECOVERED if lost else None
            lost, ready = False, True
        elif action in {"refused", "denied", "removed"}:
            occasion = Occasion.NEEDS_HUMAN
        if occasion is not None:
            token = f"{_number(str(entry.get('incarnation', '')))}/{occasion}"
            detail = f"{action}: {entry['reason']}"
            found.setdefault(token, Happening(occasion, subject, token, float(entry["at"]), detail))
    newest = max((_order(happening.token) for happening in found.values()), default=0)
    return [each for each in found.values() if _order(each.token) > newest - REMEMBERED]


def _number(cloud_name: str) -> str:
    return cloud_name.rpartition("-")[2] or "0"


def _order(token: str) -> int:
    number = token.partition("/")[0]
    return int(number) if number.isdecimal() else 0


def run_happenings(subject: str, record: Mapping[str, Any]) -> list[Happening]:
    """That a run is over without success and is not started again."""
    state = str(record["state"])
    if state not in {RunState.GAVE_UP, RunState.FAILED}:
        return []
    at = float(record.get("ended_at") or record["created_at"])
    detail = f"{state}: {record.get('reason') or 'no reason given'}"
    return [Happening(Occasion.GAVE_UP, subject, str(Occasion.GAVE_UP), at, detail)]


def is_history(record: Mapping[str, Any], now: float) -> bool:
    """Whether a record ended so long ago that nobody wants to hear of it."""
    ended = record.get("ended_at")
    return ended is not None and now - float(ended) > timeouts.HOOK_MEMORY_S


def trouble_happenings(troubles: Sequence[Trouble], ledger: Ledger) -> list[Happening]:
    """Troubles that a person should hear of and that were not told yet."""
    return [
        Happening(
            Occasion.NEEDS_HUMAN,
            trouble.subject,
            f"{Occasion.NEEDS_HUMAN}/{trouble.since:.0f}",
            trouble.since,
            f"{trouble.result}: {trouble.why}",
        )
        for trouble in troubles
        if trouble.subject not in ledger.troubled and _lasts(trouble)
    ]


def subjects_in_journal(found: Sequence[Happening]) -> frozenset[str]:
    """Slices whose trouble is among `found` already, out of their journal."""
    return frozenset(_name_of(each.subject) for each in found if each.occasion is Occasion.NEEDS_HUMAN)


def _name_of(key: str) -> str:
    return key.partition("/")[2]


def _lasts(trouble: Trouble) -> bool:
    return trouble.result == PassResult.BLOCKED or trouble.passes >= timeouts.TROUBLE_PASSES


def forget_resolved(
    ledger: Ledger, machine: str, troubles: Sequence[Trouble], resolved: Collection[str]
) -> Ledger:
    """Without the troubles that are over: seen settled by anybody, or gone for the machine that saw them."""
    mine = {trouble.subject for trouble in troubles}
    kept = {
        subject: seer
        for subject, seer in ledger.troubled.items()
        if subject not in resolved and (seer != machine or subject in mine)
    }
    return ledger if kept == ledger.troubled else replace(ledger, troubled=kept)


def mark_told(ledger: Ledger, happening: Happening, machine: str) -> Ledger:
    """The ledger after one happening was told, or given up on."""
    done = replace(ledger, trying="", tries=0)
    if happening.subject in done.seen:
        seen = done.seen[happening.subject]
        told = replace(seen, told=(*seen.told, happening.token))
        done = replace(done, seen={**done.seen, happening.subject: told})
        if happening.occasion is not Occasion.NEEDS_HUMAN:
            return done
        # What passes say of the slice from now on is the same thing.
        return replace(done, troubled={**done.troubled, _name_of(happening.subject): machine})
    return replace(done, troubled={**done.troubled, happening.subject: machine})


def mark_failed(ledger: Ledger, happening: Happening, trouble: str) -> Ledger:
    """The ledger after a try that failed."""
    name = f"{happening.subject}/{happening.token}"
    tries = ledger.tries + 1 if ledger.trying == name else 1
    return replace(ledger, trying=name, tries=tries, error=trouble)


def render_event(
    happening: Happening, *, store_id: str, project: str, profile: str, host: str
) -> dict[str, Any]:
    """What a hook is given. `id` is the same for repeats of the same happening; `text` is for people."""
    kind, _, name = happening.subject.rpartition("/")
    return {
        "id": f"{store_id}/{happening.subject}/{happening.token}",
        "event": str(happening.occasion),
        "kind": kind.removesuffix("s") or "subject",
        "name": name,
        "at": render_time(happening.at),
        "detail": happening.detail,
        "project": project,
        "profile": profile,
        "host": host,
        "text": f"tpuctl ({project}): {name} {happening.occasion}: {happening.detail}",
    }
