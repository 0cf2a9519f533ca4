"""Quoting: what a real shell makes of our commands; and secrets that do not print."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import subprocess

import pytest

from tpuctl.lib.shell import Secret, quote

NASTY = [
    "",
    " ",
    "a b",
    "'",
    '"',
    "\\",
    "\n",
    "line\nbreak\n",
    "\t\r",
    "$HOME",
    "${X:-y}",
    "`id`",
    "$(id)",
    "*",
    "~",
    "!",
    "#x",
    ";id",
    "&&",
    "|",
    "-n",
    "--",
    "日本é",
    "'\"'",
    "a=b",
    "\x7f\x01",
]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_every_value_comes_through_a_real_shell_unchanged(shell: str) -> None:
    words = " ".join(quote(value) for value in NASTY)
    done = subprocess.run([shell, "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == NASTY


def test_numbers_are_quoted_too() -> None:
    assert [quote(value) for value in (-9, 1.5)] == ["-9", "1.5"]


def test_a_nul_is_refused_rather_than_cut() -> None:
    with pytest.raises(ValueError, match="NUL"):
        quote("a\0b")


def test_a_secret_shows_only_when_revealed(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret("hunter2")
    with caplog.at_level(logging.INFO):
        logging.getLogger("x").info("with %s", secret)
    shown = [str(secret), repr(secret), f"{secret}", f"{secret:>20}", repr({"k": secret}), caplog.text]
    assert not any("hunter2" in text for text in shown)
    assert secret.reveal() == "hunter2"
    assert secret == Secret("hunter2")
    assert secret != Secret("other")


@pytest.mark.parametrize("store", [json.dumps, pickle.dumps, copy.deepcopy], ids=["json", "pickle", "copy"])
def test_a_secret_is_not_stored(store: object) -> None:
    assert callable(store)
    with pytest.raises(TypeError):
        store(Secret("hunter2"))
