"""What `data stage` brings from the Hugging Face hub: the source as it is typed, and the record in the bucket.

The program that brings the files, `templates/hub_stage.py`, writes the record before the first file, and once
more, complete, after the last.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import Struct

from tpuctl.datasets.plan import PackedShard, parse_place
from tpuctl.errors import UsageError
from tpuctl.lib.codec import from_data, parse_json
from tpuctl.lib.options import Option, argument
from tpuctl.model.requests import Detach, ToSlice

FORMAT = "tpuctl-stage/1"
RECORD = ".tpuctl-stage.json"
_OTHERS = ("spaces", "buckets")
_FORM = "hf://ORG/NAME@REVISION, or hf://datasets/ORG/NAME@REVISION"
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[\w./+-]{1,255}", re.ASCII)


class HubRef(Struct, frozen=True):
    """A repository of the hub at a revision: a branch, a tag or a commit. `kind` is `model` or `dataset`."""

    kind: str
    repo: str
    revision: str

    def __str__(self) -> str:
        folder = "datasets/" if self.kind == "dataset" else ""
        return f"hf://{folder}{self.repo}@{self.revision}"


def parse_hub(text: str) -> HubRef:
    """What `hf://…` names. Raises UsageError."""
    rest, at, revision = text.removeprefix("hf://").partition("@")
    if not text.startswith("hf://"):
        raise UsageError(f"{text!r} is no repository of the hub", hint=_FORM)
    if not at or not _REVISION.fullmatch(revision):
        raise UsageError(f"{text!r} names no revision", hint=f"hf://{rest}@main, or a tag or a commit")
    first, slash, inner = rest.partition("/")
    kind = {"datasets": "dataset", "models": "model"}.get(first) if slash else None
    repo = inner if kind else rest
    names = repo.split("/")
    if len(names) > 2 and all(names) and first not in _OTHERS:
        path = "/".join(names[2:])
        raise UsageError(
            f"{text!r} is a path within a repository",
            hint=f"{HubRef(kind or 'model', '/'.join(names[:2]), revision)} --include '{path}*'",
        )
    if first in _OTHERS or not all(_NAME.fullmatch(name) for name in names):
        raise UsageError(f"{text!r} is no model or data set of the hub", hint=_FORM)
    return HubRef(kind or "model", repo, revision)


def _parse_token(reference: str) -> str:
    kind, _, where = reference.partition(":")
    if kind not in ("env", "file", "sm") or not where:
        raise UsageError("--token must say where the token is", hint="--token env:HF_TOKEN")  # never shows it
    return reference


class StageRequest(Struct, frozen=True):
    """What is to be brought from the hub, and where to."""

    source: Annotated[
        HubRef, argument("hf://REPO@REVISION", "Or hf://datasets/REPO@REVISION.", parse=parse_hub)
    ]
    place: Annotated[
        str, argument("gs://BUCKET/PREFIX", "Where to: empty, or the same begun earlier.", parse=parse_place)
    ]
    on: ToSlice = None
    include: Annotated[
        tuple[str, ...], Option("Only files like this, as '*.safetensors'; repeatable.", metavar="PATTERN")
    ] = ()
    exclude: Annotated[tuple[str, ...], Option("No files like this; repeatable.", metavar="PATTERN")] = ()
    token: Annotated[
        str,
        Option(
            "Token of the hub: env:VAR, file:PATH or sm://PROJECT/SECRET.", metavar="REF", parse=_parse_token
        ),
    ] = ""
    endpoint: Annotated[str, Option("A hub that is not huggingface.co.", metavar="URL")] = ""
    scratch: Annotated[str, Option("Folder of the host for files on their way.", metavar="DIR")] = "~"
    detach: Detach = False


class StagedFile(Struct, frozen=True):
    """One file; `crc32c`, and `sha256` where the hub has none, are known once it is in the bucket."""

    name: str
    size: int
    sha256: str = ""
    crc32c: str = ""


class StageRecord(Struct, frozen=True):
    """What is, or is to be, below a prefix: the commit into which the revision was resolved, and its files."""

    complete: bool
    kind: str
    repo: str
    revision: str
    commit: str
    files: tuple[StagedFile, ...]
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    format: str = FORMAT

    @property
    def source(self) -> HubRef:
        return HubRef(self.kind, self.repo, self.revision)

    @property
    def shards(self) -> tuple[PackedShard, ...]:
        """The files as `data verify` compares them."""
        return tuple(PackedShard(each.name, each.size, 1, 1, each.sha256, each.crc32c) for each in self.files)


def parse_record(content: bytes) -> StageRecord | None:
    """None for what is no such record."""
    try:
        data: Any = parse_json(content)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            return None
        return from_data(StageRecord, data)
    except ValueError:
        return None


def conflict(record: StageRecord, source: HubRef, include: tuple[str, ...], exclude: tuple[str, ...]) -> str:
    """In what a record is of something else than what is asked for, in words; empty for nothing."""
    if record.source != source:
        return f"files of {record.source}"
    if (record.include, record.exclude) != (include, exclude):
        return f"files of {source} by other patterns"
    return ""
