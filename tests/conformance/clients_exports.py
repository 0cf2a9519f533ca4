"""Libraries that read what `tpuctl manifest export` writes of a run."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.conformance.client import Check, Client
from tests.conformance.harness import TPUCTL, run_script

STORY = (
    ("up", "v4-16", "one", "--spot", "--pay"),
    ("run", "--on", "one", "--no-checkpoint", "--name", "first", "--", "sh", "-c", "sleep 1; echo step 1 of 1"),
)
"""The program takes a second, the unit of times in a manifest: a run ends after it began."""


def _read(form: str, env: Mapping[str, str], work: Path) -> list[Check]:
    """The checks of `FORM_checks.py` on the manifest of a run."""
    own, project = {**env, "TPUCTL_PROFILE": "sim"}, work / "project"  # the folder itself is the home
    project.mkdir()
    export = ("manifest", "export", "first", "--as", form, "--to", str(work / f"{form}.json"))
    for words in (*STORY, export):
        subprocess.run([TPUCTL, *words], env=own, cwd=project, check=True, capture_output=True)
    return run_script(f"{form}_checks.py", env, work)


CLIENTS = [
    Client("in-toto's attestations", ("in-toto-attestation==0.9.3",), partial(_read, "slsa")),
    Client("MLflow", ("mlflow-skinny==3.17.2",), partial(_read, "mlflow")),
    Client("ro-crate-py", ("rocrate==0.16.0",), partial(_read, "rocrate")),
]
