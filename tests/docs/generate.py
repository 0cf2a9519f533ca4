"""Writes the documents that follow from the code: whole pages, and parts of pages between their markers.

`python -m tests.docs.generate` writes them, `--check` fails when they are stale, `--transcript` also runs the
five-minute session against the simulator and stores what it printed, and what commands print with `--json`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docs import agent_schema, house_picture, reference
from tpuctl.lib.text import parse_workers

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
FIVE_MINUTES = ROOT / "docs" / "start" / "five-minutes.md"
TRANSCRIPT = "transcript"

SESSION = (
    "tpuctl sim up --instant",
    "export TPUCTL_PROFILE=sim",
    "tpuctl up v4-32 --spot --pay",
    "tpuctl exec v4-32 -- hostname",
    "tpuctl run --no-checkpoint --name hello -- sh -c 'echo step 1 of 1; echo rank $TPUCTL_RANK'",
    "tpuctl sim preempt v4-32-1",
    "tpuctl up v4-32 --spot --pay",
    "tpuctl why v4-32",
    "tpuctl down v4-32 --yes",
    "tpuctl sim down",
)
"""What the five-minute session types."""

NORMAL = (
    (re.compile(r"r\d{6}-\d{6}-[a-z0-9]{4}"), "r261121-101500-k3v9"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "2026-11-21T10:15:00Z"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "10:15:00"),
    (re.compile(r"\b\d\d-\d\d 10:15:00"), "11-21 10:15:00"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:8470"),
    (re.compile(r"127\.79\.\d+\.\d+:\d+"), "127.79.1.59:22"),
    (re.compile(r"^(\s+pid\s+)\d+", re.MULTILINE), r"\g<1>4711"),
    (re.compile(r"^(\s+ssh port\s+)\d+", re.MULTILINE), r"\g<1>22"),
    (re.compile(r"after \d+ s\b"), "after 1 s"),
)

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/commands.md": reference.render_commands,
    "docs/reference/settings.md": reference.render_settings,
    "docs/reference/capacity-flags.md": reference.render_capacity_flags,
    "docs/reference/fleet-file.md": reference.render_fleet_file,
    "docs/reference/states.md": reference.render_states,
    "docs/develop/state-tables.md": reference.render_state_tables,
    "docs/pictures/house.svg": house_picture.render_house,
    "docs/reference/lint.md": reference.render_lint,
    "docs/reference/failures.md": reference.render_failures,
    "docs/reference/errors.md": reference.render_errors,
    "docs/reference/accelerators.md": reference.render_accelerators,
    "docs/reference/environment-file.md": reference.render_environment_file,
    "manifests/fleet.schema.json": reference.render_schema,
    "manifests/environment.schema.json": reference.render_environment_schema,
    "manifests/run.schema.json": reference.render_run_schema,
    "tpuctl/agent/schema.py": agent_schema.render_agent_schema,
}
"""Files that are generated as a whole."""


def render_picture() -> str:
    """The part of the recorded session in which commands change a slice or a run, for the README; and the lines
    before it that choose the simulator, so that nobody who pastes it buys a TPU."""
    recorded = part_of(FIVE_MINUTES.read_text(encoding="utf-8"), TRANSCRIPT)
    typed = re.findall(r"^\$ (.+\n(?:(?!\$ |```).*\n)*)", recorded, flags=re.MULTILINE)
    wanted = re.compile(r"export|tpuctl (sim up|up|run|sim preempt|down)\b")
    shown = [f"$ {each}" for each in typed if wanted.match(each)]
    return "```console\n" + "".join(shown) + "```"


PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {"session": render_picture, "commands": reference.render_command_table},
    "docs/start/install.md": {"version": reference.render_version},
    "docs/start/first-real-slice.md": {"roles": reference.render_roles},
    "docs/tasks/watchdog-on-a-vm.md": {"roles": reference.render_watchdog_roles},
    "docs/tasks/notifications.md": {"events": reference.render_events},
    "docs/develop/architecture.md": {"modules": reference.render_modules},
}
"""Files that people write, with parts that are generated."""


def part_of(text: str, name: str) -> str:
    """What stands between the markers of `name`. Raises ValueError when they are missing."""
    return _marked(text, name)[1].strip()


def replace_part(text: str, name: str, content: str) -> str:
    """`text` with `content` between the markers of `name`. Raises ValueError when they are missing."""
    found = _marked(text, name)
    return f"{text[: found.start(1)]}\n\n{content}\n\n{text[found.end(1) :]}"


def _marked(text: str, name: str) -> re.Match[str]:
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    found = list(re.finditer(re.escape(begin) + r"(.*?)" + re.escape(end), text, re.DOTALL))
    if len(found) != 1:
        raise ValueError(f"a page must hold the markers of {name!r} exactly once")
    return found[0]


def documents() -> dict[Path, str]:
    """Every file that is generated, in whole or in part, as it should be; the recorded transcript stays."""
    fresh = {ROOT / name: render() for name, render in PAGES.items()}
    for name, parts in PARTS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for part, render in parts.items():
            text = replace_part(text, part, render())
        fresh[ROOT / name] = text
    return fresh


def stale_documents() -> list[str]:
    """The names of those that are not as they should be."""
    return [
        str(path.relative_to(ROOT))
        for path, text in documents().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def record_session() -> str:
    """Runs the session in an empty state directory and returns it as a console transcript."""
    lines = []
    with tempfile.TemporaryDirectory(prefix="tpuctl-docs-") as home:
        state, work = Path(home) / "state", Path(home) / "work"
        work.mkdir()
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("TPUCTL_", "CLOUDSDK_", "XDG_"))}
        environ.update(TPUCTL_STATE_DIR=str(state), HOME=home, LOGNAME="ada", NO_COLOR="1")
        environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
        try:
            for command in SESSION:
                lines.append(f"$ {command}")
                lines += _type(command, environ, work, state)
        finally:
            subprocess.run(["tpuctl", "sim", "down"], env=environ, cwd=work, capture_output=True, check=False)
    return "```console\n" + "\n".join(lines) + "\n```"


def unhurried(transcript: str) -> list[str]:
    """The lines of a transcript that do not depend on how fast the machine was, nor does their order. Columns
    are as wide as their longest cell, so spaces are not compared; nor is which workers were heard so soon after
    each other that what they said alike stands once."""
    hurried = re.compile(r"waiting|is (ACCEPTED|CREATING)|asked \(after| doubt |SUSPEND|: (sent|received) \d")
    lines = [" ".join(line.split()) for line in transcript.splitlines() if not hurried.search(line)]
    return sorted(each for line in lines for each in _of_each_worker(line))


def _of_each_worker(line: str) -> list[str]:
    folded = re.match(r"([\w-]+)\[([\d,-]+)\] │", line)
    if folded is None:
        return [line]
    name, rest = folded[1], line[folded.end() :]
    return [f"{name}-{worker} │{rest}" for worker in parse_workers(folded[2], 1000)]


def _type(command: str, environ: dict[str, str], cwd: Path, state: Path) -> list[str]:
    if command.startswith("export "):
        name, _, value = command.removeprefix("export ").partition("=")
        environ[name] = value
        return []
    done = subprocess.run(
        shlex.split(command),
        env=environ,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=True,
    )
    text = done.stdout.replace(str(state), "~/.local/state/tpuctl")
    for pattern, replacement in NORMAL:
        text = pattern.sub(replacement, text)
    return text.rstrip("\n").splitlines()


def record() -> None:
    """Stores what the simulator answers today: the session, and the keys of `--json`."""
    from tests.docs.json_page import PAGE, record_page  # it imports this module

    text = FIVE_MINUTES.read_text(encoding="utf-8")
    FIVE_MINUTES.write_text(replace_part(text, TRANSCRIPT, record_session()), encoding="utf-8")
    PAGE.write_text(record_page(), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when something is stale")
    parser.add_argument("--transcript", action="store_true", help="run the session against the simulator again")
    options = parser.parse_args()
    if options.check:
        stale = stale_documents()
        for name in stale:
            print(f"{name} is stale: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    if options.transcript:
        record()
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
