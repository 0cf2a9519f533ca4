"""docs/reference/json.md: the keys of what commands print with `--json` on the simulator."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.docs.generate import ROOT
from tests.support.session import Session, open_session

PAGE = ROOT / "docs" / "reference" / "json.md"
COMMANDS = (
    ("ls", "slices and all other TPUs of the project"),
    ("status big", "one slice"),
    ("status hello", "one run; `tpuctl runs RUN --json` is the same"),
    ("why big", "decisions, oldest first"),
    ("runs", "runs, newest first"),
    ("manifest show hello", "the manifest of a run"),
    ("logs hello", "what the workers of a run wrote, by time"),
    ("stacks long", "what the processes of a run that goes on do, by worker"),
    ("top big", "what chips and hosts do, with bytes and bytes per second"),
    ("collect hello", "the index of what was collected of a run"),
    ("metrics hello", "numbers that the program of a run printed, by attempt and step"),
    ("exec big -- hostname", "one row per worker"),
    ("capacity", "what was learnt, by zone, type and tier"),
    ("quota", "quotas, holders, grants and cost"),
    ("grant show", "grants"),
    ("bill", "what can cost money"),
    ("types v4", "accelerator types"),
    ("lint train.py", "what TPUs punish in a program"),
    ("config show", "settings and where each came from"),
    ("watch once", "what a pass did"),
    ("watch status", "who passes"),
    ("doctor", "findings"),
    ("sim status", "the simulator"),
)
"""What is shown, in a fleet with one slice, one run that has ended and one that goes on."""
_HOUR = re.compile(r"^hours\.\d\d$")
HEAD = """\
# What `--json` prints

Every command that lists something takes `--json`: one JSON document on stdout, nothing else there and nothing
on stderr. Keys do not change their name or meaning; new ones may come, so ignore what you do not know. Moments
are RFC 3339 in UTC where they are text, and seconds since 1970 where they are numbers; what is not known or
does not apply is `null` or an empty text. The exit status is the same as without `--json`.

When a command fails, the document is `{"error": {"code", "message", "hint", "details"}}`; the codes are
[in a table](errors.md).

The keys below are those that the commands print on the simulator; `x[]` is a list, `x.y` a key within a key.
"""


def keys_of(value: Any, path: str = "", depth: int = 2) -> Iterator[str]:
    """The keys of a document, in order; what lies deeper than `depth` is not looked at."""
    if isinstance(value, list):
        rows = [row for row in value if isinstance(row, dict)]
        merged = {key: row[key] for row in rows for key in row}
        yield from keys_of(merged, f"{path}[]" if path else "", depth) if rows else ()
    elif isinstance(value, dict):
        for key, inner in value.items():
            name = f"{path}.{key}" if path else str(key)
            nested = list(keys_of(inner, name, depth - 1)) if depth > 1 else []
            yield from nested or [f"{name}[]" if isinstance(inner, list) else name]


def prepare(session: Session) -> None:
    """A fleet in which every list has a row."""
    bad = "import torch_xla\nfrom torch.utils.checkpoint import checkpoint_sequential\n"
    (session.work / "train.py").write_text(bad)
    session.type("up", "v4-8", "big", "--spot", "--pay")
    session.type("grant", "add", "32", "spot", "v4", "us-central2-b")
    named = ("--progress", r"step (?P<step>\d+) loss (?P<loss>\S+)", "--", "echo", "step 1 loss 0.5")
    session.type("run", "--on", "big", "--name", "hello", "--no-checkpoint", *named)
    session.type("run", "-d", "--on", "big", "--name", "long", "--no-checkpoint", "--", "sleep", "600")
    session.type("sim", "load", "big-1")
    session.type("watch", "once")


def with_json(command: str) -> str:
    """`command` as it is typed for a document: what stands behind `--` is the program's."""
    own, dashes, theirs = command.partition(" -- ")
    return f"{own} --json{dashes}{theirs}"


def documents(session: Session) -> dict[str, Any]:
    """What each command prints; stderr has to be empty."""
    found = {}
    for command, _ in COMMANDS:
        done = session.type(*with_json(command).split(), status=None)
        assert done.stderr == "", command
        found[command] = json.loads(done.stdout)
    return found


def render_page(found: dict[str, Any]) -> str:
    parts = [HEAD]
    for command, what in COMMANDS:
        value = found[command]
        kind = "list of objects" if isinstance(value, list) else "object"
        named = dict.fromkeys(_HOUR.sub("hours.HH", key) for key in keys_of(value))
        keys = ", ".join(f"`{key}`" for key in named)
        parts.append(f"## `tpuctl {with_json(command)}`\n\n{what[0].upper()}{what[1:]}: {kind}.\n\n{keys}\n")
    return "\n".join(parts)


def record_page() -> str:
    with open_session() as session:
        prepare(session)
        return render_page(documents(session))
