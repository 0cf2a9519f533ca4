"""Where two answers differ in form, not in content: keys, types, enums, the shapes of names and times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAPS = frozenset({"labels", "metadata"})
"""Fields whose keys are data. `metadata` of an operation has a `@type` and is a message."""


@dataclass(frozen=True, order=True)
class Difference:
    """`at` is the place in the body (`networkConfig.network`, `items[].id`), `status` or `header NAME`;
    `what` is missing (in the simulator's answer), extra, type or form."""

    exchange: str
    at: str
    what: str
    detail: str = ""

    def __str__(self) -> str:
        return (
            f"{self.exchange} {self.what} at {self.at or 'the whole body'}{self.detail and ': '}{self.detail}"
        )


def form(text: str) -> str:
    """What a string looks like: an enum value as it is, else the kind of thing that it is."""
    if re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)", text):
        return "time"
    if re.fullmatch(r"\d+", text):
        return "digits"
    if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*", text) and len(text) > 1:
        return text
    if re.fullmatch(r"\d+(\.\d+){3}(/\d+)?", text):
        return "address block" if "/" in text else "address"
    if text.startswith(("http://", "https://")):
        host, _, path = text.partition("://")[2].partition("/")
        return f"https://{host}/{_names(re.sub('^compute/(v1|beta)', 'compute', path))}"
    if "/" in text and text.split("/")[0] in ("projects", "operations", "zones", "regions"):
        return _names(text)
    if re.fullmatch(r"[^@\s]+@[^@\s]+", text):
        return "e-mail"
    if re.match(r"(compute|storage)#", text) or text.startswith("type.googleapis.com/"):
        return text
    return "text"


def _names(path: str) -> str:
    """A resource name with its ids left out, project numbers told from project ids."""
    path = path.partition("?")[0]
    path = re.sub(r"projects/\d+(?=/|$)", "projects/NUMBER", path)
    path = re.sub(r"projects/(?!NUMBER)[^/]+", "projects/ID", path)
    return re.sub(
        r"(locations|zones|regions|nodes|queuedResources|operations|disks|snapshots|addresses|networks|subnetworks"
        r"|instances|instanceGroups|instanceGroupManagers|instanceTemplates|images|licenses|diskTypes|services|quotaInfos|acceleratorTypes|runtimeVersions|b|o|acl)/[^/]+",
        r"\1/*",
        path,
    )


def differences(exchange: str, recorded: Any, simulated: Any, at: str = "") -> Iterator[Difference]:
    """What differs between a recorded body and the simulator's."""
    if isinstance(recorded, Mapping) and isinstance(simulated, Mapping):
        yield from _fields(exchange, recorded, simulated, at)
    elif _kind(recorded) != _kind(simulated):
        yield Difference(exchange, at, "type", f"{_kind(recorded)} recorded, {_kind(simulated)} simulated")
    elif isinstance(recorded, list):
        yield from _items(exchange, recorded, simulated, at)
    elif isinstance(recorded, str) and form(recorded) != form(simulated):
        yield Difference(exchange, at, "form", f"{form(recorded)} recorded, {form(simulated)} simulated")


def _kind(value: Any) -> str:
    """JSON has one kind of numbers."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value).__name__.replace("NoneType", "nothing")


def _fields(
    exchange: str, recorded: Mapping[str, Any], simulated: Mapping[str, Any], at: str
) -> Iterator[Difference]:
    last = at.rpartition(".")[2]
    if (last in MAPS and "@type" not in recorded) or any("/" in key for key in recorded):
        yield from _map(exchange, recorded, simulated, at)
        return
    for key in sorted({*recorded, *simulated}):
        place = f"{at}.{key}" if at else key
        if key not in simulated:
            yield Difference(exchange, place, "missing")
        elif key not in recorded:
            yield Difference(exchange, place, "extra")
        else:
            yield from differences(exchange, recorded[key], simulated[key], place)


def _map(
    exchange: str, recorded: Mapping[str, Any], simulated: Mapping[str, Any], at: str
) -> Iterator[Difference]:
    """A map with keys of its own, such as the scopes of an aggregated list: values of the keys in both."""
    for key in sorted(set(recorded) & set(simulated)):
        yield from differences(exchange, recorded[key], simulated[key], f"{at}.*")


def _items(exchange: str, recorded: Sequence[Any], simulated: Sequence[Any], at: str) -> Iterator[Difference]:
    if bool(recorded) != bool(simulated):
        yield Difference(exchange, f"{at}[]", "extra" if simulated else "missing", "no items in the other")
    elif recorded:
        yield from differences(exchange, recorded[0], simulated[0], f"{at}[]")
