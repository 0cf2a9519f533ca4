"""The answers of Google's servers that are kept in `answers/`, as data. See README.md beside this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.yaml_files import read_yaml

FOLDER = Path(__file__).parent / "answers"
EVIDENCE = ("recorded", "published example", "documentation", "account")
"""From the strongest to the weakest; what each means stands in README.md."""


@dataclass(frozen=True)
class Exchange:
    """One request and its answer; `name` is `STORY:LABEL`. `media` is what an upload sends instead of JSON,
    `content` what a download answers instead of it."""

    name: str
    method: str
    url: str
    sent: Any
    media: str | None
    status: int
    headers: Mapping[str, str]
    body: Any
    content: str | None

    @property
    def target(self) -> str:
        """Path and query, as they are sent."""
        parts = urlsplit(self.url)
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    @property
    def path(self) -> str:
        return urlsplit(self.url).path


@dataclass(frozen=True)
class Story:
    """One file. `setup` and what follows it say how the simulator comes to where the story begins."""

    name: str
    source: Mapping[str, str]
    evidence: str
    exchanges: Mapping[str, Exchange]
    setup: tuple[Mapping[str, Any], ...]
    objects: Mapping[str, str]
    fault: Mapping[str, Any] | None
    quota: Mapping[str, int]
    metadata: Mapping[str, str]
    client_only: str
    """Why the simulator is not compared with it; empty when it is."""

    @property
    def project(self) -> str:
        """The project that its addresses name; `-` where none does."""
        urls = [*(each.url for each in self.exchanges.values()), *(str(each["url"]) for each in self.setup)]
        for url in urls:
            for mark in ("/projects/", "?project=", "&project="):
                if mark in url:
                    return url.split(mark)[1].split("/")[0].split("&")[0].split(":")[0].split("?")[0]
        return "-"


_KEYS = {
    "source",
    "evidence",
    "note",
    "exchanges",
    "setup",
    "objects",
    "fault",
    "quota",
    "metadata",
    "client_only",
}


def _exchange(story: str, label: str, data: Mapping[str, Any]) -> Exchange:
    request = data["request"]
    return Exchange(
        name=f"{story}:{label}",
        method=request["method"],
        url=request["url"],
        sent=request.get("body"),
        media=data.get("media"),
        status=data["status"],
        headers=data.get("headers", {}),
        body=data.get("body"),
        content=data.get("content"),
    )


def load_story(path: Path) -> Story:
    data = read_yaml(path)
    name = path.relative_to(FOLDER).with_suffix("").as_posix()
    unknown = set(data) - _KEYS
    if unknown:
        raise ValueError(f"{name}: unknown keys {sorted(unknown)}")
    return Story(
        name=name,
        source=data["source"],
        evidence=data["evidence"],
        exchanges={label: _exchange(name, label, each) for label, each in data["exchanges"].items()},
        setup=tuple(data.get("setup", ())),
        objects=data.get("objects", {}),
        fault=data.get("fault"),
        quota=data.get("quota", {}),
        metadata=data.get("metadata", {}),
        client_only=data.get("client_only", ""),
    )


@cache
def stories() -> Mapping[str, Story]:
    """All of them, by name such as `tpu/node`."""
    found = [load_story(path) for path in sorted(FOLDER.rglob("*.yaml"))]
    return {story.name: story for story in found}


def exchange(name: str) -> Exchange:
    """The exchange called `STORY:LABEL`."""
    story, _, label = name.partition(":")
    return stories()[story].exchanges[label]
