"""Writes the generated parts of the README between their markers, and the schema of fleet files.

`python -m tests.docs.generate` writes them, `--check` fails when they are stale, `--transcript` also runs the
five-minute session against the simulator and stores what it printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from tpuctl import __version__
from tpuctl.cli.app import COMMANDS, app
from tpuctl.core.ask_rules import WAYS
from tpuctl.core.config_file import LOCAL_ONLY
from tpuctl.core.fleet_file import FleetWish
from tpuctl.core.fleet_schema import fleet_schema
from tpuctl.core.hooks import OCCASION_NOTES
from tpuctl.core.lifecycle import FINAL_STATES, STATE_NOTES
from tpuctl.core.plan_fleet import CHANGE_NOTES
from tpuctl.core.records import CAUSE_NOTES, RUN_STATE_NOTES
from tpuctl.core.settings import SETTINGS
from tpuctl.core.shape import About, registry, render_example
from tpuctl.core.wishes import PolicyWish, RunWish, SliceWish, file_help
from tpuctl.errors import EXIT_MEANINGS, all_error_classes
from tpuctl.resources import load_accelerators

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
SCHEMA = ROOT / "manifests" / "fleet.schema.json"
TRANSCRIPT = "transcript"
WIDTH = 80

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
    (re.compile(r"127\.77\.\d+\.\d+:\d+"), "127.77.1.59:22"),
    (re.compile(r"^(\s+pid\s+)\d+", re.MULTILINE), r"\g<1>4711"),
    (re.compile(r"^(\s+ssh port\s+)\d+", re.MULTILINE), r"\g<1>22"),
    (re.compile(r"after \d+ s\b"), "after 1 s"),
)


def groups() -> Iterator[tuple[str, Any, Any]]:
    """Every command with its path, in the order of the help: `tpuctl up`, `tpuctl sim`, `tpuctl sim up`, …"""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="tpuctl", max_content_width=WIDTH, terminal_width=WIDTH)  # type: ignore[arg-type]
    for entry in COMMANDS:
        command = root.get_command(context, entry.name)  # type: ignore[attr-defined]
        child = typer.Context(command, info_name=entry.name, parent=context, terminal_width=WIDTH)
        yield f"tpuctl {entry.name}", command, child
        for name, verb in getattr(command, "commands", {}).items():
            verb_context = typer.Context(verb, info_name=name, parent=child, terminal_width=WIDTH)
            yield f"tpuctl {entry.name} {name}", verb, verb_context


def render_commands() -> str:
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="tpuctl", terminal_width=WIDTH)  # type: ignore[arg-type]
    parts = [f"```text\n{root.get_help(context)}\n```"]
    parts += [
        f"#### `{path}`\n\n```text\n{command.get_help(child)}\n```"
        for path, command, child in groups()
        if not getattr(command, "commands", None)
    ]
    return "\n\n".join(parts)


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def render_settings() -> str:
    rows = [
        (
            f"`{s.name}`",
            s.type,
            f"`{s.env}`",
            "no" if s.name in LOCAL_ONLY else "yes",
            _default(s.default),
            s.help,
        )
        for s in SETTINGS
    ]
    return _table(("setting", "type", "variable", "in `tpuctl.yaml`", "default", "meaning"), rows)


def _default(value: Any) -> str:
    if value in (None, (), ""):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def render_errors() -> str:
    codes: dict[int, list[str]] = {status: [] for status in EXIT_MEANINGS}
    for cls in all_error_classes():
        codes[cls.exit_code].append(cls.code)
    rows = [
        (str(status), ", ".join(f"`{code}`" for code in codes[status]) or "–", meaning)
        for status, meaning in EXIT_MEANINGS.items()
    ]
    return _table(("exit", "codes", "meaning"), rows)


def render_states() -> str:
    rows = [
        (f"`{state}`", who, "yes" if state in FINAL_STATES else "no", meaning)
        for state, (who, meaning) in STATE_NOTES.items()
    ]
    return _table(("state", "set by", "final", "meaning"), rows)


def render_hooks() -> str:
    return _table(("event", "told when"), [(f"`{name}`", note) for name, note in OCCASION_NOTES.items()])


def render_run_states() -> str:
    rows = [
        (f"`{state}`", "yes" if state.final else "no", meaning) for state, meaning in RUN_STATE_NOTES.items()
    ]
    causes = [(f"`{cause}`", budget, meaning) for cause, (budget, meaning) in CAUSE_NOTES.items()]
    return "\n\n".join(
        [
            _table(("state", "final", "meaning"), rows),
            "How an attempt can end, and which budget it is charged to:",
            _table(("cause", "budget", "meaning"), causes),
        ]
    )


def render_types() -> str:
    catalog = load_accelerators()
    rows = []
    for name, generation in catalog.generations.items():
        sizes = [found for found in catalog.types.values() if found.generation == name]
        if not generation.in_tpu_api or not sizes:
            continue
        zones = sorted({zone for found in sizes for zone in found.zones})
        hosts = f"{min(s.hosts for s in sizes)} to {max(s.hosts for s in sizes)}"
        rows.append((name, f"`{sizes[0].name}` … `{sizes[-1].name}`", hosts, ", ".join(zones)))
    return _table(("generation", "types", "hosts", "zones"), rows)


def render_capacity() -> str:
    rows = [
        (
            f"`{way.text}`",
            way.asks,
            ", ".join(f"`{flag}`" for flag in way.excludes if flag != way.flag) or "–",
            f"`{way.needs}`" if way.needs else "–",
            way.api,
        )
        for way in WAYS
    ]
    return _table(("flag", "asks for", "not with", "needs", "in the API"), rows)


def render_fleet_keys() -> str:
    parts = []
    for title, shape in (
        ("fleet", FleetWish),
        ("fleet.slices.NAME", SliceWish),
        ("fleet.runs.NAME", RunWish),
        ("fleet.runs.NAME.policy", PolicyWish),
    ):
        rows = [
            (f"`{name}`", _example(about), file_help(shape, name)) for name, about in registry(shape).items()
        ]
        parts.append(f"Keys of `{title}`:\n\n" + _table(("key", "example", "meaning"), rows))
    changes = [(f"`{change}`", meaning) for change, meaning in CHANGE_NOTES.items()]
    parts.append("Changes:\n\n" + _table(("change", "meaning"), changes))
    return "\n\n".join(parts)


def _example(about: About) -> str:
    return f"`{render_example(about.examples[0])}`" if about.examples else "–"


def render_schema() -> str:
    """The schema of fleet files, as it is published."""
    return json.dumps(fleet_schema(), indent=2) + "\n"


def render_version() -> str:
    return f"This is tpuctl {__version__}. It needs Python 3.11 to 3.14 on Linux; macOS is untested."


HEADING = re.compile(r"^(##|###) (.+)$", re.MULTILINE)


def render_contents(text: str) -> str:
    """Links to the chapters and sections of the README; the sections of a chapter stand in its line."""
    chapters: list[list[str]] = []
    fenced = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    for depth, title in HEADING.findall(fenced.sub("", text)):
        link = f"[{title}](#{re.sub(r'[^a-z0-9 -]', '', title.lower()).replace(' ', '-')})"
        if depth == "##":
            chapters.append([link])
        else:
            chapters[-1].append(link)
    return "\n".join(f"- {first}" + (f": {' · '.join(rest)}" if rest else "") for first, *rest in chapters)


PARTS: dict[str, Callable[[], str]] = {
    "version": render_version,
    "commands": render_commands,
    "settings": render_settings,
    "errors": render_errors,
    "fleet-keys": render_fleet_keys,
    "states": render_states,
    "run-states": render_run_states,
    "hooks": render_hooks,
    "types": render_types,
    "capacity": render_capacity,
}


def replace_part(text: str, name: str, content: str) -> str:
    """`text` with `content` between the markers of `name`. Raises ValueError when they are missing."""
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"README.md must hold the markers of {name!r} exactly once")
    return pattern.sub(lambda _: f"{begin}\n\n{content}\n\n{end}", text)


def render_readme(text: str) -> str:
    """The README with every generated part fresh; the transcript stays as it was recorded."""
    for name, render in PARTS.items():
        text = replace_part(text, name, render())
    return replace_part(text, "contents", render_contents(text))


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
    """The lines of a transcript that do not depend on how fast the machine was, nor does their order."""
    hurried = re.compile(r"waiting|is CREATING|asked \(after| doubt |SUSPEND")
    return sorted(line for line in transcript.splitlines() if not hurried.search(line))


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when something is stale")
    parser.add_argument("--transcript", action="store_true", help="run the session against the simulator again")
    options = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    fresh = render_readme(text)
    if options.check:
        stale = [README] if fresh != text else []
        stale += [SCHEMA] if not SCHEMA.exists() or SCHEMA.read_text() != render_schema() else []
        for path in stale:
            print(f"{path.name} is stale: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    SCHEMA.write_text(render_schema(), encoding="utf-8")
    if options.transcript:
        fresh = replace_part(fresh, TRANSCRIPT, record_session())
        from tests.docs.json_page import PAGE, record_page  # it imports this module

        PAGE.write_text(record_page(), encoding="utf-8")
    README.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
