"""Programs and libraries that tpuctl uses, with their versions; and the state of its SSH key file."""

from __future__ import annotations

import platform
import re
import shutil
from importlib import metadata
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.lib.programs import call
from tpuctl.model.facts import KeyFacts, ToolFacts

LIBRARIES = ("google-cloud-tpu", "google-cloud-compute", "google-cloud-storage", "google-auth", "paramiko")


def list_tools(*, needs_ssh: bool, needs_gcloud: bool = False) -> tuple[ToolFacts, ...]:
    """`needs_ssh`, `needs_gcloud`: the way to the hosts leads through this machine's own."""
    from tpuctl import __version__

    return (
        ToolFacts("tpuctl", __version__, "this"),
        ToolFacts("python", platform.python_version(), "runs tpuctl"),
        *(_library(name) for name in LIBRARIES),
        ToolFacts(
            "ssh",
            _version(["ssh", "-V"]),
            "`tpuctl ssh` and jump_host need it",
            needed=needs_ssh,
            fix="sudo apt-get install openssh-client",
        ),
        ToolFacts(
            "gcloud",
            _version(["gcloud", "--version"]),
            "logging in, iap, and most of the commands that mend things",
            needed=needs_gcloud,
            fix="https://cloud.google.com/sdk/docs/install",
        ),
    )


def _library(name: str) -> ToolFacts:
    try:
        version: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = None
    return ToolFacts(name, version, "tpuctl needs it", needed=True, fix=f"pip install {name}")


def _version(words: list[str]) -> str | None:
    """The first thing in a program's answer that looks like a version; None when it is not installed."""
    if shutil.which(words[0]) is None:
        return None
    try:
        done = call(words)
    except TpuctlError:
        return "of unknown version"
    found = re.search(rb"\d+(?:\.\d+)+\w*", done.stdout + done.stderr)
    return found.group().decode() if found else "of unknown version"


def inspect_key(path: Path) -> KeyFacts:
    """The SSH key as a file; whether it holds a key is for `ssh/keys.py` to say."""
    try:
        return KeyFacts(str(path), path.stat().st_mode & 0o7777)
    except FileNotFoundError:
        return KeyFacts(str(path))
    except OSError as error:
        return KeyFacts(str(path), error=error.strerror or str(error))
