"""What the lifecycle rules of a bucket do with which version of an object. Pure.

https://cloud.google.com/storage/docs/lifecycle: a rule applies where all its conditions hold; of several that
apply, deletion wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any

from tpuctl.sim.gcs.wire import Data, invalid, not_implemented, seconds_of

DAY_S = 86_400
DELETE, SET_CLASS, ABORT = "Delete", "SetStorageClass", "AbortIncompleteMultipartUpload"

Condition = Callable[[Any, Data, int, float], bool]
"""Whether a condition holds, by its value, the version, how many newer ones there are, and the time."""


def _days_since(key: str) -> Condition:
    return lambda days, data, _, now: key in data and seconds_of(data[key]) + days * DAY_S <= now


def _before(key: str) -> Condition:
    return lambda date, data, _, __: key in data and data[key][:10] < date


_CONDITIONS: Mapping[str, Condition] = {
    "age": _days_since("timeCreated"),
    "createdBefore": _before("timeCreated"),
    "customTimeBefore": _before("customTime"),
    "daysSinceCustomTime": _days_since("customTime"),
    "daysSinceNoncurrentTime": _days_since("timeDeleted"),
    "isLive": lambda live, data, _, __: live is ("timeDeleted" not in data),
    "matchesPrefix": lambda prefixes, data, _, __: data["name"].startswith(tuple(prefixes)),
    "matchesStorageClass": lambda classes, data, _, __: data["storageClass"] in classes,
    "matchesSuffix": lambda suffixes, data, _, __: data["name"].endswith(tuple(suffixes)),
    "noncurrentTimeBefore": _before("timeDeleted"),
    "numNewerVersions": lambda least, _, newer, __: newer >= least,
    "sizeAboveBytes": lambda size, data, _, __: int(data["size"]) > int(size),
    "sizeBelowBytes": lambda size, data, _, __: int(data["size"]) < int(size),
}
_OF_UPLOADS = frozenset({"age", "matchesPrefix", "matchesSuffix"})
"""Conditions that uploads which never ended can have."""


def rules_of(bucket: Mapping[str, Any]) -> list[Data]:
    return list((bucket.get("lifecycle") or {}).get("rule") or ())


def check_rules(bucket: Mapping[str, Any], storage_classes: tuple[str, ...]) -> None:
    """Rules that Cloud Storage refuses, or that would be stored and not done. Raises GcsError."""
    for rule in rules_of(bucket):
        action, condition = rule.get("action") or {}, _conditions(rule)
        kind = action.get("type")
        if kind not in (DELETE, SET_CLASS, ABORT):
            raise invalid(f"Invalid lifecycle action type: {kind}")
        if kind == SET_CLASS and action.get("storageClass") not in storage_classes:
            raise invalid(f"Invalid storage class: {action.get('storageClass')}")
        if not condition:
            raise invalid("A lifecycle rule must have at least one condition.")
        for name, value in condition.items():
            if name not in _CONDITIONS:
                raise not_implemented(f"the lifecycle condition {name}")
            if kind == ABORT and name not in _OF_UPLOADS:
                raise invalid(f"The condition {name} is not supported for the action {ABORT}.")
            _check_value(name, value)


def _check_value(name: str, value: Any) -> None:
    if isinstance(value, int) and value < 0:
        raise invalid(f"The value of the lifecycle condition {name} must not be negative.")
    if name.endswith("Before"):
        try:
            date.fromisoformat(value)
        except ValueError:
            raise invalid(f"Invalid date of the lifecycle condition {name}: {value}") from None


def _conditions(rule: Data) -> Data:
    return {name: value for name, value in (rule.get("condition") or {}).items() if value not in (None, [])}


def actions_on(bucket: Data, data: Data, newer: int, now: float, kind: str) -> Iterator[Data]:
    """The actions of a kind that apply to a version, or to an upload that has a name and a time of creation."""
    for rule in rules_of(bucket):
        if rule["action"]["type"] == kind and all(
            _CONDITIONS[name](value, data, newer, now) for name, value in _conditions(rule).items()
        ):
            yield rule["action"]
