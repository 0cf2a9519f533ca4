"""Command lines made at random from what commands take: every command and option, nasty values, odd streams."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from tpuctl.cli.app import app

UNTRIED = frozenset({"demo", "sim up", "sim down", "forward"})
"""Run for long, or end the simulator under the others."""
VALUES: tuple[bytes, ...] = (
    b"", b"-", b"--", b"0", b"-1", b"1e999", b"9" * 40, b"a", b"big", b"v4-8", b"spot", b"us-central2-b",
    b"\xff\xfe", b"f\xff.py", b"x" * 300, b"y" * 10_000, b"/dev/zero", b"/dev/null", b"../pipe", b"a\nb",
    b"/nonexistent/x", b"\x1b[31m", b"$(id)", b"`id`", b"; id", b"~nobody-here/x", b"gs://", b"gs://sim-bucket/x",
    b"a:b", "ü€😀".encode(), b"a=b", b"TOKEN=env:NOPE", b"X=file:/dev/zero", b"2020-01-01", b"8h", b"[" * 500,
    b"0-99999999", b"9" * 5000, "٣".encode(), "٣:٣".encode(), rb"(\d{1,99999999999})", rb"(\d+", b"9999999d",
    b"4000000d", b"NaN", b"inf", b"-8h", b"99999-01-01", b"2026-13-45T99:99Z", b"/dev/full", b"/proc/self/mem",
    b"r1", b"deep.json", b"./deep.json", b"deep.yaml", b"deep.toml", b"./zeros.json", b"run.tar", b"./run.tar",
    b"folder", b"./unread.json", b"loop", b"gs://sim-bucket/" + b"a/" * 400, b"sm://sim-project/x",
    b"data:rw:relative",
    b"big:/../../etc", b"=", b":", b"@",
)  # fmt: skip
FILES: Mapping[str, bytes] = {
    "deep.json": b'{"schema":' * 100_000 + b"1" + b"}" * 100_000,
    "deep.yaml": b"a: " + b"[" * 100_000,
    "deep.toml": b"a = " + b"[" * 100_000,
    "run.tar": b"run.json".ljust(124, b"\0") + b"77777777777\0" + b"\0" * 376 + b"{}" * 500,
    "unread.json": b"{}",
}
"""Files that `VALUES` name, made to break what reads them."""
STREAMS = (
    *["as usual"] * 4, "full stdout", "closed stdin", "closed stdout", "closed stderr", "home is a file",
    "odd variables",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One command line, and how its standard streams are."""

    words: tuple[bytes, ...]
    streams: str


def make_files(folder: Path) -> None:
    """`FILES`, and what else `VALUES` name there: a folder, a link to itself, and 2 GB of nothing."""
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "unread.json").chmod(0)
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    with (folder / "zeros.json").open("wb") as file:
        file.truncate(2 << 30)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its words, with what it takes."""
    root: Any = typer.main.get_command(app)
    context = typer.Context(root, info_name="tpuctl")
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        verbs = getattr(command, "commands", None)
        for path, each in (
            [(name, command)] if verbs is None else [(f"{name} {v}", c) for v, c in verbs.items()]
        ):
            if path not in UNTRIED:
                yield path, each


def calls(seed: int, count: int) -> Iterator[Call]:
    """`count` command lines: of each command in turn, so that every one is tried."""
    chance = random.Random(seed)
    known = list(commands())
    chance.shuffle(known)
    for number in range(count):
        path, command = known[number % len(known)]
        words = [word.encode() for word in path.split()]
        for param in command.params:
            words += _given(chance, param)
        if chance.random() < 0.2:
            words.insert(chance.randrange(len(words) + 1), chance.choice(VALUES))
        yield Call(tuple(words), chance.choice(STREAMS))


def _given(chance: random.Random, param: Any) -> list[bytes]:
    if param.param_type_name == "argument":
        many = chance.choice((0, 1, 1, 2)) if param.nargs == -1 else chance.choice((0, 1, 1, 1))
        return [chance.choice(VALUES) for _ in range(many)]
    if chance.random() > 0.2 or param.name == "help":
        return []
    option = str(chance.choice(param.opts)).encode()
    return [option] if getattr(param, "is_flag", False) else [option, chance.choice(VALUES)]
