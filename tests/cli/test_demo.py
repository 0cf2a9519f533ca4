"""The README's first command tells its whole story and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.require import require_isolated_hosts
from tpuctl.cli.commands.demo import Stage
from tpuctl.errors import TpuctlError


def demo_at_work(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("TPUCTL_", "CLOUDSDK_"))}
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "tpuctl"), "demo", *words],
        env={**environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def play(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    demo = demo_at_work(tmp_path, *words)
    stdout, stderr = demo.communicate()
    return subprocess.CompletedProcess(demo.args, demo.returncode, stdout, stderr)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "words",
    [pytest.param((), id=""), pytest.param(("--hosts", "isolated"), id="isolated", marks=pytest.mark.soak)],
)
def test_the_demo_recovers_from_a_preemption_and_ends_like_the_unbroken_run(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    if words:
        require_isolated_hosts()
    done = play(tmp_path, *words)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    metrics = re.findall(r"^(?:unbroken|preempted): +(final loss .*)$", done.stdout, re.MULTILINE)
    assert len(metrics) == 2
    assert metrics[0] == metrics[1]
    assert "resumed from step 60 (attempt 2)" in done.stdout
    assert "left in the cloud: 0" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_demo_of_disks_shows_the_same_bytes_on_every_host(tmp_path: Path) -> None:
    require_isolated_hosts()
    done = play(tmp_path, "disks", "--hosts", "isolated")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "held still on dev" in done.stdout
    assert "Read-only file system" in done.stdout
    assert "left in the cloud: 0" in done.stdout
    assert "the same bytes on every host, before the preemption and after it" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_of_disks_on_other_hosts_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = play(tmp_path, "disks")
    assert done.returncode == 2
    assert "disks are mounted on isolated hosts alone" in done.stderr
    assert "tpuctl demo disks --hosts isolated" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_says_nothing_is_ended_and_named(tmp_path: Path) -> None:
    """How long it takes says nothing: a machine may be busy."""
    stage = Stage(tmp_path, silent_s=1.0)
    talks = subprocess.Popen(
        ["sh", "-c", "for n in 1 2 3 4 5 6; do echo $n; sleep 0.3; done; printf end"], stdout=subprocess.PIPE
    )
    assert stage.watch(talks, ("x",)).split() == [*"123456", "end"]
    hangs = subprocess.Popen(["sh", "-c", "echo begun; exec sleep 100"], stdout=subprocess.PIPE)
    with pytest.raises(TpuctlError, match="`tpuctl up v4-8` said nothing for 1 s, and was ended") as ended:
        stage.watch(hangs, ("up", "v4-8"))
    assert "the load of this machine is" in str(ended.value.hint)
    assert hangs.poll() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.long
def test_a_demo_whose_simulator_dies_ends_with_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with demo_at_work(tmp_path) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if found := re.search(r"pid +(\d+)", line):
                os.kill(int(found[1]), signal.SIGKILL)
        said = demo.stderr.read() if demo.stderr is not None else ""
        assert demo.wait(timeout=120) == 1
    [error, hint] = said.splitlines()
    assert error.startswith("error: `tpuctl up v4-16 --spot --pay` ended with")
    assert hint.startswith("hint: tpuctl demo --keep")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "then", "fails"),
    [
        (("--version",), ("--help",), ""),
        (("--version",), ("sim", "preempt", "none"), "`tpuctl sim preempt none` ended with"),
        (("sim", "preempt", "none"), ("--version",), "`tpuctl sim preempt none` ended with"),
    ],
)
def test_what_is_typed_beside_a_command_is_waited_for_and_its_failure_is_the_demos(
    tmp_path: Path, words: tuple[str, ...], then: tuple[str, ...], fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no simulator here, so nothing can be preempted."""
    lost: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", lost.append)
    stage = Stage(tmp_path)
    if fails:
        with pytest.raises(TpuctlError, match=fails):
            stage.type_beside(words, "tpuctl 0", then)
    else:
        assert "tpuctl 0" in stage.type_beside(words, "tpuctl 0", then)
    assert lost == []
    assert [each.name for each in threading.enumerate() if "ThreadPool" in each.name] == []
