"""Which blobs of a store are garbage: those without a reference.

A reference is anything in a document that looks like the sha256 of a blob, wherever it stands: a record of a
newer tpuctl, with fields that this one does not know, counts too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tpuctl.errors import UsageError
from tpuctl.lib.codec import parse_json
from tpuctl.lib.time import parse_duration, render_duration
from tpuctl.model import timeouts

_DIGEST = re.compile(r"(?=([0-9a-f]{64}))")
"""Wherever one may begin, whatever stands beside it: one too many only keeps a blob."""
MAIN_REFERRERS = ("runs/", "slices/")
"""What refers to blobs, and is known to every machine that makes passes, so that reading it costs pages."""
WITHOUT_REFERENCES = frozenset(
    {"capacity", "grants", "hooks", "idle", "journal", "leases", "machines", "notices", "watchdogs"}
)
"""Groups of documents that never refer to a blob. Of a group that is not known here every document is read."""


def parse_prune_age(word: str, flag: str) -> float:
    """Seconds of an age from which blobs may be removed. Raises UsageError for less than is safe."""
    why = "who stores code now writes down later what it belongs to"
    return _parse_age(word, flag, timeouts.PRUNE_AFTER_LEAST_S, why)


def parse_runs_age(word: str, flag: str) -> float:
    """Seconds since their end from which runs may be removed. Raises UsageError for less than is safe."""
    return _parse_age(word, flag, timeouts.RUNS_KEPT_LEAST_S, "a manifest is the only proof of a run")


def _parse_age(word: str, flag: str, least_s: float, why: str) -> float:
    seconds = parse_duration(word, flag)
    if seconds < least_s:
        hint = f"{flag} {render_duration(least_s)} or more"
        raise UsageError(f"{flag} {word} is too short: {why}", hint=hint)
    return seconds


def find_digests(data: Any) -> frozenset[str]:
    """Everything in a document that looks like the sha256 of a blob, keys included."""
    if isinstance(data, str):
        return frozenset(_DIGEST.findall(data))
    if isinstance(data, Mapping):
        return find_digests([*data.keys(), *data.values()])
    if isinstance(data, Sequence):
        return frozenset[str]().union(*(find_digests(each) for each in data))
    return frozenset()


def find_children(content: bytes) -> frozenset[str]:
    """The blobs that a blob refers to itself: a tree does, also one of a newer tpuctl, and so may whatever else
    is a JSON object."""
    try:
        data = parse_json(content) if content.startswith(b"{") else None
    except ValueError:
        return frozenset()
    return find_digests(data)


def group_of(key: str) -> str:
    """The first part of a key; the whole key of a document that stands alone."""
    return key.partition("/")[0]


def other_referrers(keys: Iterable[str]) -> tuple[str, ...]:
    """Prefixes under which a reference may stand, besides the main ones."""
    main = {group_of(prefix) for prefix in MAIN_REFERRERS}
    groups = {(group_of(key), "/" in key) for key in keys}
    return tuple(
        sorted(
            f"{group}/" if below else group
            for group, below in groups
            if group not in WITHOUT_REFERENCES and not (below and group in main)
        )
    )
