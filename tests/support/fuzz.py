"""Command lines made at random from what commands take: every command and option, nasty values, odd streams."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.docs.reference import groups
from tpuctl.cli.app import EntryGroup

UNTRIED = frozenset({"demo", "sim up", "sim down", "forward", "ui"})
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
    b"big:/../../etc", b"=", b":", b"@", b"z" * 100_000, b"\x7f\x9b31m\r", "\u202e\u200b\ufeffa".encode(),
    b"\n", b"/dev/stdin", b"/", b".", b"0001-01-01", b"9999-12-31T23:59:59Z", b"1e308s", b"0d",
    b"9" * 30 + b"s",
)  # fmt: skip
LIKELY: Mapping[str, tuple[bytes, ...]] = {
    "accelerator type": (b"v4-8", b"v4-16", b"v5litepod-4", b"v6e-256"),
    "disk data": (b"data", b"data", b"data:/mnt/data", b"data:ro:/mnt/x"),
    "slice names name on to node": (b"big", b"big", b"big-1", b"new"),
    "run_id source left right run again": (b"r1", b"r1", b"r1@1", b"./r1.json"),
    "zone": (b"us-central2-b", b"us-east5-a", b"auto"),
    "env base like environment": (b"cpu", b"demo-cpu", b"jax-tpu"),
    "tier": (b"spot", b"on-demand", b"reserved", b"flex-start"),
    "generation": (b"v4", b"v5e", b"v6e"),
    "timeout ttl until every grace limit stall older_than runs_older_than since": (b"1", b"60", b"8h", b"3d"),
    "valid_for run_duration stop_when_idle join_limit first_step_limit": (b"60", b"8h", b"3d"),
    "ends valid_until": (b"2030-01-01", b"2030-01-01T08:00Z"),
    "size mib_s throughput boot_disk chips keep files hosts passes attempt slices": (b"1", b"10", b"65536"),
    "uri data what mount checkpoint_dir store path target": (b"gs://sim-bucket/x", b"gs://sim-bucket:/mnt/b"),
    "file python output receipt plot contract step startup_script": (b"a", b"new.out", b"step.py:step"),
    "worker": (b"0", b"0-1", b"all"),
    "words": (b"a", b"big", b"big:a", b"--", b"true"),
    "preset": (b"rate-limit", b"no-capacity", b"slow"),
    "key": (b"slices/big", b"disks/data", b"runs/r1", b"pause"),
    "purpose type": (b"v4-8", b"v4-16", b"pd-ssd", b"hyperdisk-balanced", b"hyperdisk-ml"),
    "mesh": (b"data=4", b"data=2,model=2"),
    "secret var label tag metadata opt variables": (b"K=V", b"k=v"),
}  # fmt: skip
"""Values that the parameters of these names may take: half of what they are given, so that commands come as far
as their work."""
FILES: Mapping[str, bytes] = {
    "deep.json": b'{"schema":' * 100_000 + b"1" + b"}" * 100_000,
    "deep.yaml": b"a: " + b"[" * 100_000,
    "deep.toml": b"a = " + b"[" * 100_000,
    "run.tar": b"run.json".ljust(124, b"\0") + b"77777777777\0" + b"\0" * 376 + b"{}" * 500,
    "unread.json": b"{}",
    ".tpuctlignore": b"zeros.json\n",
    "step.py": b"def step(x): return x\n",
}
"""Files that `VALUES` name, made to break what reads them."""
STREAMS = (
    *["as usual"] * 4, "full stdout", "closed stdin", "closed stdout", "closed stderr", "home is a file",
    "odd variables", "crafted store", "crafted store", "crafted fleet", "crafted settings",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One command line, and how its standard streams are."""

    words: tuple[bytes, ...]
    streams: str
    craft: int = 0
    """The seed of what is wrong with the store or file that `streams` names."""


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
    for path, command, _ in groups():
        words = path.removeprefix("tpuctl ")
        if not isinstance(command, EntryGroup) and words not in UNTRIED:
            yield words, command


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
        yield Call(tuple(words), chance.choice(STREAMS), chance.randrange(1 << 30))


def _given(chance: random.Random, param: Any) -> list[bytes]:
    if param.param_type_name == "argument":
        many = chance.choice((0, 1, 1, 2)) if param.nargs == -1 else chance.choice((0, 1, 1, 1))
        return [_value(chance, param.name) for _ in range(many)]
    wanted = 0.9 if param.required else 0.2
    if chance.random() > wanted or param.name == "help":
        return []
    option = str(chance.choice(param.opts)).encode()
    return [option] if getattr(param, "is_flag", False) else [option, _value(chance, param.name)]


def _value(chance: random.Random, name: str) -> bytes:
    """Half of them may be right where `LIKELY` knows the parameter."""
    for names, values in LIKELY.items():
        if name in names.split() and chance.random() < 0.5:
            return chance.choice(values)
    return chance.choice(VALUES)
