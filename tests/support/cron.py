"""A real cron daemon and the user's real crontab, given back byte for byte."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.require import require_tool
from tpuctl.watch.install.preflight import cron_runs


@contextmanager
def real_cron() -> Iterator[None]:
    """A cron daemon runs while this lasts; afterwards the crontab is as it was."""
    require_tool("crontab")
    daemon = require_tool("cron")
    saved = subprocess.run(["crontab", "-l"], capture_output=True)
    with _daemon(daemon):
        try:
            yield
        finally:
            if saved.returncode == 0:
                subprocess.run(["crontab", "-"], input=saved.stdout, check=True)
            else:
                subprocess.run(["crontab", "-r"], check=True)
    after = subprocess.run(["crontab", "-l"], capture_output=True)
    assert (after.returncode, after.stdout) == (saved.returncode, saved.stdout)


@contextmanager
def _daemon(program: str) -> Iterator[None]:
    """The one that runs, else one of our own, which needs root."""
    if cron_runs():
        yield
        return
    if os.geteuid() != 0:
        pytest.skip("needs root to start cron")
    daemon = subprocess.Popen([program, "-f"], stdin=subprocess.DEVNULL)
    try:
        yield
        assert daemon.poll() is None, "cron ended by itself"
    finally:
        daemon.terminate()
        daemon.wait()
