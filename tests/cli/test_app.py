"""The frame: help is cheap and complete, errors have one shape and one exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.docs.reference import groups
from tests.support.typed import trouble
from tpuctl.cli.app import app, load_command
from tpuctl.cli.help import EXAMPLES
from tpuctl.cli.invocation import Invocation
from tpuctl.cli.registry import COMMANDS, Entry
from tpuctl.errors import EXIT_MEANINGS

runner = CliRunner()


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("TPUCTL_", "CLOUDSDK_", "GOOGLE_", "XDG_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # google-auth: do not look for a metadata server
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("--help", ""), ("disk --help", ""), ("sim", ""), ("", "tpuctl "), ("", "tpuctl disk ")],
)
def test_lists_of_commands_load_none_of_them_and_no_options(typed: str, completed: str) -> None:
    code = (
        "import sys\nfrom tpuctl.cli.app import app\n"
        "try:\n    app(sys.argv[1:], prog_name='tpuctl')\nexcept SystemExit as end:\n    assert not end.code\n"
        "loaded = {name for name in sys.modules if name.startswith('tpuctl.cli.commands')}\n"
        "print('LOADED', loaded | sys.modules.keys() & {'msgspec', 'google', 'paramiko', 'yaml', 'rich'})\n"
    )
    environ = {**os.environ, "COMP_WORDS": completed, "COMP_CWORD": str(len(completed.split()))}
    if completed:
        environ["_TPUCTL_COMPLETE"] = "complete_bash"
    done = subprocess.run(
        [sys.executable, "-c", code, *typed.split()], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("LOADED set()\n")


def test_calls_of_the_cloud_load_no_grpc() -> None:
    """Every command that asks Google waits for these imports."""
    code = "import sys, tpuctl.cloud.tpu; print(sys.modules.keys() & {'grpc', 'google.api_core.exceptions'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_every_listed_command_exists_and_has_help() -> None:
    for entry in COMMANDS:
        command = load_command(entry)
        assert command.name == entry.name
        assert command.help, entry.name
        assert entry.summary.endswith(".")
        for verb in entry.verbs:
            found = command.get_command(None, verb.name)
            assert found.name == verb.name
            assert " ".join([*found.help.split(), ""]).startswith(f"{verb.summary} "), found.help


def test_help_of_every_command_fits_eighty_columns() -> None:
    for path, command, context in groups():
        wide = [line for line in command.get_help(context).splitlines() if len(line) > 80]
        assert wide == [], path


@pytest.mark.parametrize("argv", [["types", "--help"], ["sim", "up", "--help"], ["grant", "import", "--help"]])
def test_help_after_a_command_ends_with_zero(argv: list[str]) -> None:
    result = runner.invoke(app, argv)
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_version_is_printed() -> None:
    assert runner.invoke(app, ["--version"]).stdout.startswith("tpuctl 0.")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["exec", "big", "hostname", "-f"], ["no such option: -f", "tpuctl exec NAME -- COMMAND -f"]),
        (["exec", "big", "uname", "now"], ["put -- before", "tpuctl exec big -- uname now"]),
        (["types", "--zone", "mars"], ["'mars' is not a zone"]),
        (["--project", "my-project", "capacity", "v99"], ["no accelerator type 'v99'"]),
        (["typs"], ["no such command: tpuctl typs", "did you mean `tpuctl types`?"]),
        (["create"], ["no such command: tpuctl create", "did you mean `tpuctl up`?"]),
        (["delete", "big", "--yes"], ["did you mean `tpuctl down`?"]),
        (["launch", "train.py"], ["did you mean `tpuctl run --up v4-8`?"]),
        (["list"], ["did you mean `tpuctl ls`?"]),
        (["describe", "big"], ["did you mean `tpuctl status`?"]),
        (["get", "pods"], ["did you mean `tpuctl ls`?"]),
        (["cancel", "r1"], ["did you mean `tpuctl stop`?"]),
        (["queue"], ["did you mean `tpuctl runs`?"]),
        (["start"], ["did you mean `tpuctl up`?"]),
        (["resize", "big"], ["did you mean `tpuctl up`?"]),
        (["grant", "list"], ["no such command: tpuctl grant list", "did you mean `tpuctl grant show`?"]),
        (["grant", "create"], ["did you mean `tpuctl grant add`?"]),
        (["watch", "start"], ["did you mean `tpuctl watch install`?"]),
        (["sim", "stop"], ["did you mean `tpuctl sim down`?"]),
        (["sim", "preemt"], ["no such command: tpuctl sim preemt", "did you mean `tpuctl sim preempt`?"]),
        (["--jso"], ["no such option: --jso", "did you mean --json?"]),
        (["runs", "--group"], ["option '--group' requires an argument"]),
        (["logs", "r1", "--tail", "5"], ["--tail is not needed", "tpuctl logs RUN | tail"]),
        (["manifest", "export", "r1", "--as", "x"], ["invalid value for '--as': 'x' is not one of"]),
        (["up", "--name", "big"], ["--name is not needed", "tpuctl up v4-8 NAME"]),
        (["types", "--zon", "x"], ["no such option: --zon", "did you mean --zone?"]),
        (["types", "v99"], ["no generation or type called v99", "v4"]),
        (["down"], ["missing argument", "tpuctl down --help"]),
        (["down", "--all", "big"], ["--all means all slices of yours"]),
        (["--project", "my-project", "status"], ["you have no slice", "tpuctl up ACCELERATOR --spot"]),
        (["grant", "add", "many", "spot", "v4", "us-central2-b"], ["'CHIPS'"]),
        (["run", "--worker", "0", "x.py"], ["--worker leaves out workers", "--alone"]),
        (["--project", "my-project", "up", "v4-8"], ["no tier", "--spot"]),
        (["--project", "my-project", "up", "v4-9", "--spot"], ["'v4-9'", "v4-8 or v4-16"]),
        (["--project", "my-project", "up", "v4-8", "--spot", "--zone", "mars"], ["'mars' is not a zone"]),
        (["--project", "my-project", "up", "v4-8", "--spot", "--on-demand"], ["--spot and --on-demand"]),
        (["--project", "my-project", "up", "v4-8", "Big_1", "--spot"], ["'Big_1'"]),
        (["up", "v4-8", "--spot"], ["no project", "--project"]),
        (["--project", "my-project", "up", "v4-8", "--spot", "--ttl", "soon"], ["--ttl 'soon'", "4h"]),
        (["--project", "my-project", "up", "v4-8", "--spot", "--stop-when-idle", "5m"], ["ten minutes"]),
        (["--project", "my-project", "run", "--on", "x", "gone.py"], ["'gone.py'"]),
        (["--project", "my-project", "run", "--on", "x", "--var", "K", "x.py"], ["--var 'K'"]),
        (["--profile", "sim", "ls"], ["no simulator is running", "tpuctl sim up"]),
    ],
)
def test_bad_input_is_refused_with_the_word_a_hint_and_exit_two(argv: list[str], said: list[str]) -> None:
    result = runner.invoke(app, argv)
    assert result.exit_code == 2, result.stderr
    assert result.stdout == ""
    first, second = result.stderr.splitlines()[:2]
    assert first.startswith("error: ")
    assert first.endswith(")")
    assert second.startswith("hint: ")
    for words in said:
        assert words in result.stderr


@pytest.mark.parametrize(
    "argv", [["--json", "types", "v99"], ["types", "v99", "--json"], ["types", "--json", "--zon"]]
)
def test_json_errors_are_a_document_on_stdout_and_stderr_is_empty(argv: list[str]) -> None:
    result = runner.invoke(app, argv)
    assert result.exit_code == 2
    assert result.stderr == ""
    error = json.loads(result.stdout)["error"]
    assert set(error) == {"code", "message", "hint", "details"}
    assert error["code"] == "usage"


def test_a_json_flag_of_the_users_program_is_not_ours() -> None:
    result = runner.invoke(app, ["exec", "nowhere", "--", "prog", "--json"])
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")


def _raise(error: BaseException) -> Entry:
    def target() -> None:
        raise error

    return _command(target)


def _command(target: Callable[[], None]) -> Entry:
    module = type(sys)("tpuctl.cli.commands.explode")
    module.explode = target  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    return Entry("explode", "Raise.")


def test_an_unexpected_exception_leaves_a_crash_report_and_exit_70(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpuctl.cli.app.COMMANDS", (_raise(ValueError("token=abcdefghijklmn")),))
    root = typer.main.get_command(app)
    result = runner.invoke(app, ["explode"])
    assert root is not None
    assert result.exit_code == 70
    assert "Traceback" not in result.stderr
    report = next((tmp_path / "state" / "crashes").glob("*.txt")).read_text()
    assert "ValueError" in report
    assert "abcdefghijklmn" not in report


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpuctl.cli.app.COMMANDS", (_raise(KeyboardInterrupt()),))
    result = runner.invoke(app, ["explode"])
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"
    assert 130 in EXIT_MEANINGS


def test_what_ctrl_c_breaks_in_a_library_ends_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    condition = threading.Condition(threading.Lock())  # as queues and events have it
    main = threading.get_ident()

    def hold() -> None:
        with condition:
            time.sleep(0.5)  # the other one has waited in vain, and wants its lock again
            signal.pthread_kill(main, signal.SIGINT)
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                pass  # it is free before the other one, which needs Python's own lock, hears of Ctrl-C

    def wait() -> None:
        with condition:
            holder.start()
            condition.wait(0.1)

    holder, interval = threading.Thread(target=hold), sys.getswitchinterval()
    monkeypatch.setattr("tpuctl.cli.app.COMMANDS", (_command(wait),))
    sys.setswitchinterval(5.0)
    try:
        result = runner.invoke(app, ["explode"])
    finally:
        sys.setswitchinterval(interval)
    holder.join()
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")
    report = next((tmp_path / "state" / "crashes").glob("*.txt")).read_text()
    assert "RuntimeError: release unlocked lock" in report


def test_a_reader_that_goes_away_causes_no_traceback() -> None:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{Path(sys.executable).parent}/tpuctl types v5p | head -n 1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("TYPE")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_completion_lists_commands_and_prints_its_script() -> None:
    environ = {**os.environ, "_TPUCTL_COMPLETE": "complete_bash", "COMP_WORDS": "tpuctl st", "COMP_CWORD": "1"}
    tpuctl = str(Path(sys.executable).parent / "tpuctl")
    done = subprocess.run([tpuctl], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["status", "stop", "stacks", "store"]


def test_config_show_names_the_origin_of_each_value() -> None:
    result = runner.invoke(app, ["--project", "my-project", "config", "show", "--json"])
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["project"]["value"] == "my-project"
    assert rows["project"]["origin"] == "flag"
    assert rows["ssh_port"] == {"name": "ssh_port", "value": 22, "origin": "default", "env": "TPUCTL_SSH_PORT"}


def test_a_letter_is_imported_shown_and_removed() -> None:
    letter = (
        "You get\n> 64 spot Cloud TPU v6e chips in zone us-east1-d\n"
        "> 32 on-demand Cloud TPU v4 chips in zone us-central2-b\n"
    )
    project = ["--project", "my-project"]
    done = runner.invoke(app, [*project, "grant", "import", "-", "--ends", "2099-12-31"], input=letter)
    assert done.exit_code == 0, done.stderr
    rows = json.loads(runner.invoke(app, [*project, "grant", "show", "--json"]).stdout)
    assert {(r["zone"], r["tier"], r["generation"], r["chips"], r["ends"]) for r in rows} == {
        ("us-east1-d", "spot", "v6e", 64, "2099-12-31"),
        ("us-central2-b", "on-demand", "v4", 32, "2099-12-31"),
    }
    assert runner.invoke(app, [*project, "grant", "rm", "spot", "v6e", "us-east1-d"]).exit_code == 0
    assert runner.invoke(app, [*project, "grant", "rm", "spot", "v6e", "us-east1-d"]).exit_code == 5
    assert runner.invoke(app, [*project, "grant", "import", "-"], input="Dear user").exit_code == 2


def test_tpuctl_alone_fits_a_screen_and_shows_the_daily_commands() -> None:
    shown = runner.invoke(app, []).stdout.splitlines()
    assert len(shown) <= 24
    assert max(map(len, shown)) <= 80
    assert {"up", "run", "ls", "logs", "down"} <= {line.split()[0] for line in shown if line.startswith("  ")}


def test_root_help_lists_every_command_once_in_groups() -> None:
    shown = runner.invoke(app, ["--help"]).stdout.splitlines()
    listed = [line.split()[0] for line in shown if line.startswith("  ") and line[2] != "-"]
    assert [name for name in listed if name in {entry.name for entry in COMMANDS}] == [e.name for e in COMMANDS]
    assert shown.index("Every day:") < shown.index("Set up and try:")


SUMMARY_WIDTH = 62
"""What a list of verbs has room for, in 80 columns."""


def test_help_has_no_noise_and_examples_that_can_be_typed() -> None:
    paths = set()
    for path, command, context in groups():
        text = command.get_help(context)
        assert "<list[str]>" not in text, path
        assert "x>=" not in text, path
        assert "[required]" not in text.partition("Options:")[0], path
        first, *below = (command.help or "").strip().splitlines()
        assert first[:1].isupper(), path
        assert first.endswith("."), path
        assert len(first) <= SUMMARY_WIDTH, path
        assert below[:1] in ([], [""]), f"{path}: the summary is one line"
        words = path.partition(" ")[2]
        if words in EXAMPLES:
            paths.add(words)
            assert [trouble(line.partition("#")[0]) for line in EXAMPLES[words]] == [""] * len(EXAMPLES[words])
            assert "Examples:\n" in text
    assert paths == set(EXAMPLES)


def test_flags_of_up_and_run_are_grouped() -> None:
    for name in ("up", "run"):
        shown = runner.invoke(app, [name, "--help"]).stdout
        titles = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
        assert {"Where and how long:", "How it is paid for:", "Network and identity:"} < set(titles)
        assert titles[-1] == "Options:"
        section = shown.partition("How it is paid for:")[2].partition("\n\n")[0]
        assert "--spot" in section
        assert "--zone" not in section


def test_a_state_directory_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUCTL_STATE_DIR", "/proc/nothing")
    result = runner.invoke(app, ["--project", "my-project", "ls"])
    assert result.exit_code == 2, result.stderr
    assert "cannot write below /proc/nothing" in result.stderr
    assert "hint: set TPUCTL_STATE_DIR" in result.stderr


def test_a_command_that_does_not_exist_is_a_document_with_json() -> None:
    result = runner.invoke(app, ["--json", "uo"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["message"] == "no such command: tpuctl uo"
    assert result.stderr == ""


def test_no_credentials_end_with_four_and_say_how_to_log_in() -> None:
    result = runner.invoke(app, ["--project", "my-project", "up", "v4-8", "--spot", "--pay"])
    assert result.exit_code == 4, result.stderr
    assert "no Google credentials" in result.stderr
    assert "gcloud auth application-default login" in result.stderr


def test_a_named_file_of_credentials_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    result = runner.invoke(app, ["--project", "my-project", "ls"])
    assert result.exit_code == 4, result.stderr
    assert "GOOGLE_APPLICATION_CREDENTIALS names" in result.stderr
    assert "/nowhere/key.json" in result.stderr


def test_config_show_writes_paths_below_home_short_and_json_in_full(tmp_path: Path) -> None:
    path = tmp_path / ".config" / "tpuctl" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("settings:\n  project: my-project\n")
    row = next(
        line for line in runner.invoke(app, ["config", "show"]).stdout.splitlines() if " my-project " in line
    )
    assert row.split() == ["project", "my-project", "~/.config/tpuctl/config.yaml"]
    rows = {row["name"]: row for row in json.loads(runner.invoke(app, ["config", "show", "--json"]).stdout)}
    assert rows["project"]["origin"] == str(path)


def test_types_alone_is_a_line_for_each_generation_and_json_has_all() -> None:
    lines = runner.invoke(app, ["types"]).stdout.splitlines()
    assert len(lines) < 20
    assert any(line.startswith("v4 ") and "v4-8 to v4-" in line for line in lines)
    assert len(json.loads(runner.invoke(app, ["types", "--json"]).stdout)) > 100
    assert "v4-32" in runner.invoke(app, ["types", "v4"]).stdout


def test_a_price_of_the_cheapest_of_several_regions_says_so() -> None:
    [line] = [each for each in runner.invoke(app, ["types"]).stdout.splitlines() if each.startswith("v5e ")]
    assert " from 0." in line
    rows = {line.split()[0]: line for line in runner.invoke(app, ["types", "v5e"]).stdout.splitlines()}
    assert "from 1.96" in rows["v5litepod-8"]
    here = runner.invoke(app, ["types", "v5e", "--zone", "us-south1-a"]).stdout
    assert "from " not in here


def test_a_hint_to_type_it_again_has_the_flags_and_quotes() -> None:
    words = ["--profile", "sim", "disk", "clone", "data", "--to", "big", "--path", "/mnt/my data"]
    assert Invocation(words).typed == "tpuctl --profile sim disk clone data --to big --path '/mnt/my data'"
