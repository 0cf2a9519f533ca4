"""Hooks: what is told to programs and web addresses of the user's own, and when.

Happenings are read out of the journal and the run records, which are written before the effect they announce.
Each has an id that is the same on every machine and after every crash, so that it can be told once.
Hooks come only from the user's own configuration file: what a shared store or a directory holds is never run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tpuctl.core import timeouts
from tpuctl.core.manifest import render_time
from tpuctl.core.records import RunState
from tpuctl.core.urls import check_ping_url
from tpuctl.core.watch import Trouble
from tpuctl.errors import BadConfigError, UsageError

FORM = "hooks: [{events: [needs-human], command: [/path/to/program]}]"
KEYS = ("name", "events", "command", "webhook", "webhook_file", "timeout_s", "profiles")
MAX_TIMEOUT_S = 120
REMEMBERED = 20
"""Incarnations of a slice whose happenings are remembered as told; older ones are not told any more."""
_NAME = re.compile(r"[a-z0-9][-a-z0-9]{0,40}")


class Occasion(StrEnum):
    """What a hook can be told."""

    PREEMPTED = "preempted"
    RECOVERED = "recovered"
    GAVE_UP = "gave-up"
    NEEDS_HUMAN = "needs-human"
    TEST = "test"


OCCASION_NOTES: Mapping[Occasion, str] = {
    Occasion.PREEMPTED: "the cloud took a slice away, or its hosts fell silent for good",
    Occasion.RECOVERED: "a slice that was lost is ready again",
    Occasion.GAVE_UP: "a run has used up a budget and is not started again",
    Occasion.NEEDS_HUMAN: (
        "a slice was refused or removed, a pass is blocked, or it failed in three passes in a row"
    ),
}
"""For the documents; `test` is sent by `watch hooks --test` alone."""


@dataclass(frozen=True)
class Hook:
    """One hook. `name` is its identity in the store: machines that share it tell each happening once."""

    name: str
    events: frozenset[Occasion]
    command: tuple[str, ...] = ()
    webhook: str | None = None
    webhook_file: str | None = None
    timeout_s: float = timeouts.HOOK_TIMEOUT_S
    profiles: tuple[str, ...] = ()
    """Only in these profiles; empty means all."""

    @property
    def key(self) -> str:
        return f"hooks/{self.name}"


@dataclass(frozen=True)
class Happening:
    """Something to tell. `token` is its id within the subject."""

    occasion: Occasion
    subject: str
    token: str
    at: float
    detail: str


@dataclass(frozen=True)
class Seen:
    """How far one subject was looked at: the generation of its record, and what was told of it."""

    generation: int
    told: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """What one hook was told. `holder` has it to itself until `expires` (store's time)."""

    seen: Mapping[str, Seen] = field(default_factory=dict)
    troubled: Mapping[str, str] = field(default_factory=dict)
    """Subjects whose trouble was told, and the machine that saw it."""
    holder: str = ""
    expires: float = 0.0
    trying: str = ""
    tries: int = 0
    error: str = ""


def parse_hooks(value: Any, where: str) -> tuple[Hook, ...]:
    """The list below the key `hooks`. Raises BadConfigError naming `where` and the key."""
    if not isinstance(value, list):
        raise BadConfigError(f"{where}: hooks must be a list", hint=FORM)
    hooks = tuple(_parse_hook(item, f"{where}: hook {number}") for number, item in enumerate(value, start=1))
    names = [hook.name for hook in hooks]
    for name in names:
        if names.count(name) > 1:
            raise BadConfigError(f"{where}: two hooks are called {name}", hint="give each a name: of its own")
    return hooks


def _parse_hook(item: Any, where: str) -> Hook:
    if not isinstance(item, dict):
        raise BadConfigError(f"{where} must hold keys and values", hint=FORM)
    for key in item:
        if key not in KEYS:
            hint = (
                "YAML reads a bare `on` as true; the key is events"
                if key is True
                else f"known: {', '.join(KEYS)}"
            )
            raise BadConfigError(f"{where}: unknown key {key!r}", hint=hint)
    targets = [key for key in ("command", "webhook", "webhook_file") if item.get(key)]
    if len(targets) != 1:
        raise BadConfigError(f"{where}: needs one of command, webhook and webhook_file", hint=FORM)
    try:
        hook = Hook(
            name="",
            events=_parse_events(item.get("events")),
            command=_parse_words(item.get("command"), "command"),
            webhook=check_ping_url(str(item["webhook"])) if item.get("webhook") else None,
            webhook_file=str(item["webhook_file"]) if item.get("webhook_file") else None,
            timeout_s=_parse_timeout(item.get("timeout_s", timeouts.HOOK_TIMEOUT_S)),
            profiles=_parse_words(item.get("profiles"), "profiles"),
        )
        return replace(hook, name=_parse_name(item.get("name"), hook))
    except UsageError as error:
        raise BadConfigError(f"{where}: {error.message}", hint=error.hint) from error


def _parse_events(value: Any) -> frozenset[Occasion]:
    allowed = [str(occasion) for occasion in OCCASION_NOTES]
    if not isinstance(value, list) or not value or any(item not in allowed for item in value):
        raise UsageError(f"events: {value!r} is not a list of events", hint=f"of: {', '.join(allowed)}")
    return frozenset(Occasion(item) for item in value)


def _parse_words(value: Any, key: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(word, str) and "\0" not in word for word in value):
        raise UsageError(f"{key} must be a list of words: nothing goes through a shell", hint=FORM)
    return tuple(value)


def _parse_timeout(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_TIMEOUT_S:
        raise UsageError(f"timeout_s: {value!r} is not 1 to {MAX_TIMEOUT_S} seconds", hint="timeout_s: 30")
    return float(value)


def _parse_name(value: Any, hook: Hook) -> str:
    """The name that was given, else a digest of the target, which does not give a secret URL away."""
    if value is None:
        target = json.dumps([hook.command, hook.webhook, hook.webhook_file])
        return hashlib.sha256(target.encode()).hexdigest()[:12]
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise UsageError(f"name: {value!r}: small letters, digits and hyphens, at most 40", hint="name: pager")
    return value


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


def told_by_journal(found: Sequence[Happening]) -> frozenset[str]:
    """Slices whose trouble is among `found` already, out of their journal."""
    return frozenset(_name_of(each.subject) for each in found if each.occasion is Occasion.NEEDS_HUMAN)


def _name_of(key: str) -> str:
    return key.partition("/")[2]


def _lasts(trouble: Trouble) -> bool:
    return trouble.result == "blocked" or trouble.passes >= timeouts.TROUBLE_PASSES


def forget_settled(
    ledger: Ledger, machine: str, troubles: Sequence[Trouble], settled: Collection[str]
) -> Ledger:
    """Without the troubles that are over: seen settled by anybody, or gone for the machine that saw them."""
    mine = {trouble.subject for trouble in troubles}
    kept = {
        subject: seer
        for subject, seer in ledger.troubled.items()
        if subject not in settled and (seer != machine or subject in mine)
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
