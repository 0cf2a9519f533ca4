"""Hooks as configured: which events start which command."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.config.proxy import check_ping_url
from tpuctl.errors import BadConfigError, UsageError
from tpuctl.model import timeouts

FORM = "hooks: [{events: [needs-human], command: [/path/to/program]}]"


KEYS = ("name", "events", "command", "webhook", "webhook_file", "timeout_s", "profiles")


MAX_TIMEOUT_S = 120


_NAME = re.compile(r"[a-z0-9][-a-z0-9]{0,40}")


class EventKind(StrEnum):
    """What a hook can be told."""

    PREEMPTED = "preempted"
    RECOVERED = "recovered"
    GAVE_UP = "gave-up"
    NEEDS_HUMAN = "needs-human"
    MOUNT_LOST = "mount-lost"
    UNSAVED = "unsaved"
    TEST = "test"


EVENT_NOTES: Mapping[EventKind, str] = {
    EventKind.PREEMPTED: "the cloud took a slice away, or its hosts fell silent for good",
    EventKind.RECOVERED: "a slice that was lost is ready again",
    EventKind.GAVE_UP: "a run has used up a budget and is not started again",
    EventKind.NEEDS_HUMAN: (
        "a slice was refused or removed, a run stands still, became slow, has a number that is infinite or "
        "none, compiles a function again or has operations on the CPU, a pass is blocked, or it failed in "
        "three passes in a row"
    ),
    EventKind.MOUNT_LOST: "a mount died under a run, or its bucket does not answer",
    EventKind.UNSAVED: (
        "a TPU is deleted although something that was written there may be lost: its hosts were silent for too "
        "long, or somebody typed `--force`"
    ),
}
"""For the documents; `test` is sent by `watch hooks --test` alone."""


class Hook(Struct, frozen=True):
    """One hook. `name` is its identity in the store: machines that share it tell each event once."""

    name: str
    events: frozenset[EventKind]
    command: tuple[str, ...] = ()
    webhook: str | None = None
    webhook_file: str | None = None
    timeout_s: float = timeouts.HOOK_TIMEOUT_S
    profiles: tuple[str, ...] = ()
    """Only in these profiles; empty means all."""

    @property
    def key(self) -> str:
        return f"hooks/{self.name}"


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


def _parse_events(value: Any) -> frozenset[EventKind]:
    allowed = [str(kind) for kind in EVENT_NOTES]
    if not isinstance(value, list) or not value or any(item not in allowed for item in value):
        raise UsageError(f"events: {value!r} is not a list of events", hint=f"of: {', '.join(allowed)}")
    return frozenset(EventKind(item) for item in value)


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
