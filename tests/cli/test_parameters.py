"""Options that need no conversion get none; the others get Typer's, with its complaints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from tests.support.session import open_session
from tpuctl.cli.typer_lazy import spare

PARSED = typer.Typer(rich_markup_mode=None, add_completion=False)


@PARSED.command()
def parse(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    name: str | None = None,
    count: Annotated[int, typer.Option(min=1, max=9)] = 3,
    share: float | None = None,
    zone: Annotated[list[str] | None, typer.Option(envvar="TEST_ZONES")] = None,
    ports: Annotated[list[int] | None, typer.Option("--port")] = None,
    shout: Annotated[str, typer.Option(parser=str.upper)] = "quiet",
    on: Annotated[bool, typer.Option("--on/--off")] = False,
) -> None:
    """Says what it was given."""
    typer.echo(repr((words, name, count, share, zone, ports, shout, on)))


LINES = [
    [],
    ["a", "b"],
    ["--name", "5"],
    ["--name", ""],
    ["--count", "7"],
    ["--count", "many"],
    ["--count", "10"],
    ["--share", "0.5"],
    ["--share", "half"],
    ["--zone", "x", "--zone", "y"],
    ["--port", "1", "--port", "2"],
    ["--port", "one"],
    ["--shout", "loud"],
    ["--on"],
    ["--off", "--", "--on"],
    ["--help"],
]


def outcome(command: Any, line: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as end:
        command(line, prog_name="parse")
    return end.value.code, *capsys.readouterr()


@pytest.mark.parametrize("line", LINES, ids=" ".join)
@pytest.mark.parametrize("zones", ["", "u v"], ids=["no variable", "a variable"])
def test_a_line_is_understood_as_typer_understands_it(
    line: list[str], zones: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEST_ZONES", zones)
    plain = outcome(typer.main.get_command(PARSED), line, capsys)
    assert outcome(spare(typer.main.get_command(PARSED)), line, capsys) == plain
    assert plain[0] in {0, 2}


def test_a_command_line_of_words_loads_no_converters(tmp_path: Path) -> None:
    """What `exec` is given needs none; their import is a third of what it costs."""
    code = (
        "import sys\n"
        "from tpuctl.cli.app import app\n"
        "try:\n"
        "    app(['exec', 'nobody', '--worker', '0', '--', 'true'], prog_name='tpuctl')\n"
        "except SystemExit:\n"
        "    pass\n"
        "print('pydantic' in sys.modules, 'tpuctl.workers.exec' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False True"


def test_a_dry_run_of_a_run_loads_no_ssh_and_no_steps() -> None:
    """A person waits for it, and what it leaves out is a fifth of what it would import."""
    code = (
        "import sys\n"
        "from tpuctl.cli.app import app\n"
        "try:\n"
        "    app(sys.argv[1:], prog_name='tpuctl')\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        "unused = {'ssh.remote', 'hosts.agent', 'slices.reconcile', 'transfer.prepare', 'provenance.parts',\n"
        "    'datasets.receipt', 'money.letters'}\n"
        "print('LOADED', {name for name in unused if f'tpuctl.{name}' in sys.modules})\n"
    )
    words = "run --up v4-8 --no-checkpoint --spot --pay --zone us-central2-b --dry-run -- hostname"
    with open_session() as session:
        done = session.finish(session.start(*words.split(), program=(sys.executable, "-c", code)))
    assert "would ask for" in done.stdout
    assert done.stdout.endswith("LOADED set()\n")
