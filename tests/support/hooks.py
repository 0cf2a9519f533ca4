"""The folder by which programs of a run tell of themselves, as a host makes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.session import ROOT

AGENT = ROOT / "tpuctl" / "agent"
_WRITE = "import sys, join; join.write_modules(sys.argv[1])"


def write_hooks(folder: Path) -> None:
    """Puts the start hook and its parts into `folder`."""
    environ = {"PYTHONPATH": str(AGENT), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", _WRITE, str(folder)], env=environ, check=True, timeout=60)


def in_agent(code: str, home: Path) -> str:
    """What `code` prints with the agent's modules, whose home is `home`."""
    environ = {"PYTHONPATH": str(AGENT), "PATH": os.environ["PATH"], "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def run_hooked(
    folder: Path, program: str, *behind: Path, interpreter: str = sys.executable, **variables: str
) -> str:
    """What a program prints in which the hooks of `folder` are, with `behind` in its path. They must not be
    noticed: it ends well and says nothing on stderr."""
    environ = {"PATH": os.environ["PATH"], "TPUCTL_JOIN": str(folder), "TPUCTL_JOIN_PLATFORMS": "tpu,cpu"}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, [folder, *behind]))
    words = [interpreter, "-c", program]
    done = subprocess.run(words, env={**environ, **variables}, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def reports(folder: Path, ending: str = ".json") -> list[dict[str, Any]]:
    """What processes wrote there."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"*{ending}"))]
