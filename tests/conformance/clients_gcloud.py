"""The real gcloud: hundreds of commands in a row, refused ones too, each with what Google's servers answer."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.client import Check, Client

COMMANDS = Path(__file__).with_name("gcloud_commands.txt")
ZONE = "us-central2-b"
LARGE = 5_000_000
SETTLE_S = 60.0
"""How long a queued request may take until the commands that need its node agree."""
TIMEOUT_S = 180.0
_EVENTUALLY = re.compile(r"tpu-vm (list|describe|stop)|queued-resources describe|value\(state")
"""Commands whose answer depends on what goes on in the background: asked again until it is as wanted."""


def commands(bucket: str, folder: Path) -> list[tuple[bool, str, str]]:
    """(ends with 0, arguments, what it says) of every command."""
    found = []
    for line in COMMANDS.read_text().splitlines():
        if line and not line.startswith("#"):
            filled = line.replace("{z}", ZONE).replace("{b}", bucket).replace("{f}", str(folder))
            verdict, _, rest = filled.partition(" ")
            words, _, said = rest.partition(" | ")
            found.append((verdict == "ok", words, said))
    return found


def _ask(words: str, env: Mapping[str, str], work: Path) -> tuple[int, str]:
    """Exit status and everything that it said."""
    done = subprocess.run(
        ["gcloud", *shlex.split(words)],
        env=dict(env),
        cwd=work,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stdout + done.stderr


def _check(ends_well: bool, words: str, said: str, env: Mapping[str, str], work: Path) -> Check:
    deadline = time.monotonic() + (SETTLE_S if _EVENTUALLY.search(words) else 0)
    while True:
        try:
            status, text = _ask(words, env, work)
        except subprocess.TimeoutExpired:
            return Check(words, False, f"did not end within {TIMEOUT_S:.0f} s")
        crashed = "gcloud crashed" in text
        if (status == 0) == ends_well and re.search(said, text, re.MULTILINE) and not crashed:
            return Check(words, True)
        if time.monotonic() >= deadline or crashed:
            return Check(words, False, f"exit {status}: {' '.join(text.split())[-300:]}")


def run(env: Mapping[str, str], work: Path) -> list[Check]:
    """Every command of the table, one after the other, in `work`."""
    folder = work / "files"
    (folder / "tree").mkdir(parents=True)
    (folder / "small.txt").write_text("hello\n")
    (folder / "large.bin").write_bytes(bytes(range(256)) * (LARGE // 256))
    bucket = f"conformance-{int(time.time())}"
    own = {
        **env,
        "CLOUDSDK_CONFIG": str(work / "gcloud"),
        "HOME": str(work),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    }
    return [_check(well, words, said, own, work) for well, words, said in commands(bucket, folder)]


CLIENTS = [Client("gcloud", ("bin:gcloud",), run)]
