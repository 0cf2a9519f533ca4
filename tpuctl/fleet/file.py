"""The fleet file: from marked data to requests, or to everything that is wrong with it, each with its place.

`settings:` is configuration as everywhere; `fleet:` lists slices and the runs on them. A key that tpuctl cannot
act on is no key: nothing here is accepted and then ignored.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any

from msgspec import Struct, field

from tpuctl.config.file import SECTIONS
from tpuctl.config.schema import Decoder, Problem
from tpuctl.config.yaml_positions import Marked, MarkedMapping, Position
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.lib.names import RUN_ID, SLICE_NAME, check_fleet_name, check_run_id, check_slice_name
from tpuctl.lib.options import Option, flags_of, hints_of, registry
from tpuctl.lib.text import suggest
from tpuctl.model.run_spec import RunRequest
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.runs.chips import parse_chips
from tpuctl.runs.rules import check_run

MAX_RUN_NAME = 40
"""Leaves room for the digest and the number behind it in the id of a run."""


def _check_run_name(name: str) -> str:
    if len(name) > MAX_RUN_NAME:
        raise UsageError(f"run name {name!r} has {len(name)} characters; at most {MAX_RUN_NAME} are allowed")
    return check_run_id(name)


class FleetRequest(Struct, frozen=True):
    """What one file asks for. `name` marks what came from it, so that `--prune` knows its own."""

    name: Annotated[
        str,
        Option(
            "Name of the fleet; what is no longer listed is found by it.",
            check=check_fleet_name,
            key_pattern=SLICE_NAME,
            examples=("lab",),
        ),
    ]
    slices: Annotated[
        Mapping[str, SliceRequest],
        Option(
            "Slices by their names.",
            check_key=check_slice_name,
            key_pattern=SLICE_NAME,
            examples=({"big": {"accelerator": "v4-32"}},),
        ),
    ] = field(default_factory=dict)
    runs: Annotated[
        Mapping[str, RunRequest],
        Option(
            "Runs by their names.",
            check_key=_check_run_name,
            key_pattern=RUN_ID,
            examples=({"train": {"on": "big", "script": "train.py"}},),
        ),
    ] = field(default_factory=dict)


class FleetFile(Struct, frozen=True):
    """A fleet with the places of its keys."""

    path: str
    fleet: FleetRequest
    marks: MarkedMapping

    def place(self, *keys: str) -> Position:
        """Where the innermost key of `fleet.…` that stands in the file is."""
        at, found = self.marks, Position(1, 1)
        for name in ("fleet", *keys):
            if name not in at.keys:
                break
            found = at.keys[name]
            inner = at.entries[name]
            if not isinstance(inner, MarkedMapping):
                break
            at = inner
        return found

    def problem(self, error: TpuctlError, *keys: str) -> Problem:
        """What a check of the item below `keys` said, at the key it is about and in words of a file."""
        shape = SliceRequest if keys[:1] == ("slices",) else RunRequest
        path = ".".join(("fleet", *keys))
        hint = error.hint and in_file_words(error.hint, shape)
        message = f"{path}: {in_file_words(error.message, shape)}"
        return Problem(self.place(*keys, str(error.details.get("key", ""))), message, hint)


def parse_fleet_file(marked: Marked | None, path: str) -> tuple[FleetFile | None, list[Problem]]:
    """The fleet in a file, and all that is wrong with it by itself. Without a problem there is a fleet."""
    start = Position(1, 1)
    if not isinstance(marked, MarkedMapping):
        return None, [Problem(start, "there are no keys and values in it", "settings: {…} and fleet: {…}")]
    if "fleet" not in marked.entries:
        near = next((name for name in marked.entries if suggest(name, ("fleet",))), None)
        guess = f"; did you mean {near!r} to be 'fleet'?" if near and near not in SECTIONS else ""
        return None, [Problem(start, f"there is no fleet in it{guess}", "fleet: {name: lab, slices: {…}}")]
    decoder = Decoder()
    fleet = decoder.decode(FleetRequest, marked.entries["fleet"], "fleet", marked.keys["fleet"])
    if fleet is None:
        return None, decoder.problems
    file = FleetFile(path, fleet, marked)
    return file, [*decoder.problems, *_contradictions(file, decoder.problems)]


def slice_of(fleet: FleetRequest, request: RunRequest) -> str | None:
    """The slice of a run: the one it names, else the only one there is."""
    return request.on or (next(iter(fleet.slices)) if len(fleet.slices) == 1 else None)


def _contradictions(file: FleetFile, known: Sequence[Problem]) -> list[Problem]:
    """What each run says against itself, and against what else is in the file. A run that says nothing to run
    because the key is wrong, which is one of the `known` problems, is not complained of twice."""
    problems: list[Problem] = []
    taken: dict[str, dict[str, RunRequest]] = {}
    for name, request in file.fleet.runs.items():
        misspelt = any(problem.path == f"fleet.runs.{name}" for problem in known)
        if misspelt and not _entries(request):
            continue
        try:
            _check_entry(request)
            check_run(request)
            where = _check_slice(file.fleet, request)
            _check_beside(where, request, taken.setdefault(where, {}))
            taken[where][name] = request
        except UsageError as error:
            problems.append(file.problem(error, "runs", name))
    return problems


def _entries(request: RunRequest) -> list[str]:
    """The keys that say what to run."""
    return [name for name in ("script", "module", "command") if getattr(request, name)]


def _check_beside(where: str, request: RunRequest, others: Mapping[str, RunRequest]) -> None:
    """Raises UsageError for a run that cannot be on its slice at the same time as these."""
    chips = parse_chips(request)
    for name, other in others.items():
        theirs = parse_chips(other)
        if chips == () or theirs == ():
            why = f"slice {where} has run {name} already, and takes one at a time"
            raise UsageError.of("on", why, "give each run a slice of its own, or on one host chips: 1")
        both = sorted(set(chips or ()) & set(theirs or ()))
        if both:
            raise UsageError.of(
                "chip", f"run {name} has chip {both[0]} of slice {where}", "chips: 1 is a free one"
            )
        if request == other:
            why = f"run {name} is the same on slice {where}: which is which, nothing tells"
            raise UsageError.of("on", why, "give one of them a tag, or other arguments")


def _is_inside(path: str) -> bool:
    """Whether a path stays below where it starts, also on its way."""
    pure, depth = PurePosixPath(path), 0
    for part in pure.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return not pure.is_absolute()


def _check_entry(request: RunRequest) -> None:
    given = _entries(request)
    if len(given) != 1:
        raise UsageError(
            f"say what to run once: {' and '.join(given)} exclude each other" if given else "say what to run",
            hint="script: train.py, or module: pkg.train, or command: [bash, train.sh]",
            details={"key": given[-1]} if given else {},
        )
    if request.script is not None and not _is_inside(request.script):
        raise UsageError(
            f"script {request.script!r} is not below the directory of the file",
            hint="a path relative to the file",
            details={"key": "script"},
        )
    if request.args and request.command:
        raise UsageError(
            "args go with a script or a module", hint="put all words into command", details={"key": "args"}
        )


def _check_slice(fleet: FleetRequest, request: RunRequest) -> str:
    name = slice_of(fleet, request)
    if name is None:
        raise UsageError("it does not say which slice", hint=f"on: {next(iter(fleet.slices), 'big')}")
    if name not in fleet.slices:
        near = suggest(name, list(fleet.slices))
        guess = f"; did you mean {near!r}?" if near else ""
        raise UsageError(
            f"there is no slice {name!r} in the file{guess}",
            hint=f"list it below fleet.slices, or on: {near or next(iter(fleet.slices), 'big')}",
            details={"key": "on"},
        )
    return name


_FLAG = re.compile(r"--[a-z][-a-z]*")


def in_file_words(text: str, shape: Any) -> str:
    """`text` with the flags of `shape` as the keys that say the same: `--zone us-east1-d` is
    `zone: us-east1-d` in a file, `--spot` is `tier: spot`."""

    def as_key(match: re.Match[str]) -> str:
        flag = match[0]
        for name, option in registry(shape).items():
            flags = [each.name for each in flags_of(name, option)]
            if flag in flags:
                return _as_key(name, hints_of(shape)[name], flags.index(flag), flag, text[match.end() :])
        return flag

    found = _FLAG.sub(as_key, text)
    for name, hint in hints_of(shape).items():
        if isinstance(typing.get_origin(hint), type) and issubclass(typing.get_origin(hint), Mapping):
            found = re.sub(rf"\b{name}: (\w+)=([^\s,]+)", rf"{name}: {{\1: \2}}", found)
    return found


def _as_key(name: str, hint: Any, index: int, flag: str, rest: str) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"{name}: {flag.removeprefix('--')}"
    if hint is bool:
        return f"{name}: {'true' if index == 0 else 'false'}"
    follows = rest.startswith(" ") and not rest[1:].startswith(("and ", "or ", "is ", "leaves "))
    return f"{name}:" if follows else name
