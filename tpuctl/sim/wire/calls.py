"""The calls of the TPU API and of the APIs of a project: rows of `manifests/tables/sim_calls.yaml`, from which
paths of REST, names of gRPC, permissions and calls that faults can be planned for come."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import Struct, convert

from tpuctl.model.shipped_files import load_sim_calls
from tpuctl.sim.wire.payload import snake

_LOCATION = "projects/*/locations/*"
_TEMPLATE = re.compile(r"\{([\w.]+)=([^}]+)\}")


class Call(Struct, frozen=True):
    """One row: see the table. `permission` is empty where the call itself asks for some."""

    id: str
    rpc: str = ""
    http: str = ""
    body: str = ""
    message: str = ""
    answer: str = ""
    permission: str = ""
    versions: tuple[str, ...] = ("v2", "v2alpha1")
    also: tuple[str, ...] = ()
    """Other versions that have the same path."""
    changes: bool = False
    fails: bool = False
    api: str = ""
    service: str = ""

    @property
    def verb(self) -> str:
        return self.http.partition(" ")[0]

    @property
    def template(self) -> str:
        """Its path, with `{name=projects/*/…}` for the part that a field of the request has."""
        return self.http.partition(" ")[2]

    @property
    def paths(self) -> list[str]:
        """The path in all its versions."""
        _, version, rest = self.template.split("/", 2)
        return [f"/{each}/{rest}" for each in (version, *self.also)]


@cache
def tpu_calls() -> tuple[Call, ...]:
    """Those of the TPU API."""
    return tuple(convert(_of_tpus(id, row), Call) for id, row in load_sim_calls()["tpu"].items())


def _of_tpus(id: str, row: dict[str, Any]) -> dict[str, Any]:
    one = f"{_LOCATION}/{id.partition('.')[0]}/*"
    places = {"{parent}": f"{{parent={_LOCATION}}}", "{name}": f"{{name={one}}}"}
    http = str(row.get("http", "")).replace("{node.name}", f"{{node.name={one}}}")
    for short, whole in places.items():
        http = http.replace(short, whole)
    return {"id": id, "permission": f"tpu.{id}", **row, "http": http}


@cache
def project_calls() -> tuple[Call, ...]:
    """Those of Resource Manager, Service Usage, Cloud Quotas and Secret Manager."""
    return tuple(
        convert({"id": id, "api": of.split()[0], "service": of.split()[1], **row}, Call)
        for of, rows in load_sim_calls()["project"].items()
        for id, row in rows.items()
    )


def field_of(template: str) -> str:
    """The field of a request that is in its path; empty for none."""
    found = _TEMPLATE.search(template)
    return found[1] if found else ""


def compile_template(template: str, *, named: bool = False) -> re.Pattern[str]:
    """A regular expression for paths: with one group for the field, or `named`, with one for each `*` in it,
    called like one of the collection before it (`quotaInfos/*` gives `quota_info`)."""
    return re.compile("".join(_parts(template, named)))


def _parts(template: str, named: bool) -> Iterator[str]:
    at = 0
    for found in _TEMPLATE.finditer(template):
        yield re.escape(template[at : found.start()])
        inner = re.escape(found[2])
        if named:
            yield re.sub(r"(\w+)s/\\\*", lambda each: f"{each[1]}s/(?P<{snake(each[1])}>[^/:]+)", inner)
        else:
            yield "(" + inner.replace(r"\*", "[^/:]+") + ")"
        at = found.end()
    yield re.escape(template[at:])
