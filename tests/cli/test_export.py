"""`tpuctl export`: a run as a JobSet, whose containers are started here as the node agent of a pod would."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.support.session import Session, open_session
from tests.support.wheels import Project

pytestmark = pytest.mark.slow
PROGRAM = """\
import os, sys
names = "RANK", "WORLD_SIZE", "ATTEMPT", "COORDINATOR"
print(sys.argv[1:], *(os.environ["TPUCTL_" + name] for name in names))
print(*(os.environ.get(name) for name in ("MEGASCALE_SLICE_ID", "X", "TOKEN")))
"""
OPTIONS = ("--container", "python:3.11", "--checkpoint-dir", "gs://sim-bucket/ckpt")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session("--instant") as opened:
        (opened.work / "train.py").write_text(PROGRAM)
        yield opened


def expand(text: str, told: Mapping[str, str]) -> str:
    """`$(NAME)` and `$$` as Kubernetes takes them; every other `$` is one."""
    values = {"$$": "$", **{f"$({name})": value for name, value in told.items()}}
    return re.sub(r"[$]([$]|[(][^)]*[)])", lambda found: values.get(found[0], found[0]), text)


class Pod:
    """One pod of an exported run: its containers as processes of this machine, in a folder for `/tpuctl`."""

    def __init__(self, session: Session, file: str, home: Path) -> None:
        [*_, jobset] = yaml.safe_load_all((session.work / file).read_text())
        self.spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        self.home, self._cwd = home, session.root
        home.mkdir()
        own = {"STORAGE_EMULATOR_HOST": session.storage(), "GCE_METADATA_HOST": "127.0.0.1:1"}
        self._environ = {**session.environ, **own}

    def start(self, container: Any, **told: str) -> subprocess.CompletedProcess[str]:
        """A container; `told` are the values of variables that the cluster knows."""
        for row in container.get("env", []):
            if "value" in row:
                told[row["name"]] = expand(row["value"], told)
        words = [self._word(expand(word, told)) for word in container["command"]]
        environ = {**self._environ, **told}
        return subprocess.run(words, cwd=self._cwd, env=environ, capture_output=True, text=True, check=False)

    def _word(self, word: str) -> str:
        if word == "python3":
            return sys.executable
        return word.replace("/tpuctl", str(self.home), 1) if word.startswith("/tpuctl") else word


def left(session: Session) -> tuple[list[Path], set[str]]:
    """Files here, and objects in the bucket."""
    listed = requests.get(f"{session.storage()}/storage/v1/b/sim-bucket/o", timeout=30).json()
    return sorted(session.work.iterdir()), {each["name"] for each in listed.get("items", [])}


def told(index: int, slice_id: int = 0, restarts: int = 0) -> dict[str, str]:
    return {
        "JOB_COMPLETION_INDEX": str(index),
        "TPUCTL_SLICE_ID": str(slice_id),
        "TPUCTL_RESTARTS": str(restarts),
        "TPUCTL_LEADER": "two-slice-0-0.two",
        "TOKEN": "from the cluster",
    }


def test_pods_get_the_code_verify_it_and_know_which_worker_they_are(session: Session, tmp_path: Path):
    said = session.type(
        "export", "train.py", "--up", "v6e-16", "--slices", "2", "--name", "two", *OPTIONS,
        "--secret", "TOKEN=env:NOT_SET_HERE", "--var", "X=$(HOME)$$5", "--", "--lr", "$$1$(TOKEN)",
    )  # fmt: skip
    assert "wrote two.yaml: run two as a JobSet of 8 pods; its bundle is two.run.tar" in " ".join(
        said.stdout.split()
    )
    assert (
        'kubectl create secret generic two --namespace default --from-file=TOKEN=<(printf %s "$TOKEN")'
        in said.stderr
    )
    pod = Pod(session, "two.yaml", tmp_path / "home")
    done = pod.start(pod.spec["initContainers"][0])
    assert (done.returncode, done.stderr) == (0, "")
    assert (pod.home / "code/train.py").read_text() == PROGRAM
    done = pod.start(pod.spec["containers"][0], **told(3, slice_id=1, restarts=2))
    assert (
        done.stdout == "['--lr', '$$1$(TOKEN)'] 7 8 3 two-slice-0-0.two:8476\n1 $(HOME)$$5 ****************\n"
    )


def test_a_bundle_that_was_changed_or_is_gone_is_never_tried_again(session: Session, tmp_path: Path):
    session.type("export", "train.py", "--up", "v6e-8", "--name", "changed", *OPTIONS)
    pod = Pod(session, "changed.yaml", tmp_path / "home")
    prepare = pod.spec["initContainers"][0]
    [*_, uri, digest] = prepare["command"]
    done = pod.start({**prepare, "command": [*prepare["command"][:-1], "0" * 64]})
    assert done.returncode == 78
    assert f"{uri} has the sha256 {digest}, not {'0' * 64}: it was changed" in done.stderr
    done = pod.start({**prepare, "command": [*prepare["command"][:-2], "gs://sim-bucket/none.tar", digest]})
    assert (done.returncode, done.stderr) == (78, "tpuctl: there is no gs://sim-bucket/none.tar\n")
    assert not (pod.home / "code").exists()


def test_a_pinned_environment_is_installed_and_verified_in_a_pod(session: Session, tmp_path: Path):
    project = Project(session.work)
    project.add("small", {"glimmer": "1.0"}, more="imports: [glimmer]")
    (session.work / "uses.py").write_text("import glimmer; print(glimmer.__file__)\n")
    session.type(
        "export", "uses.py", "--up", "v6e-8", "--name", "pinned", "--env", "small",
        "--no-checkpoint", "--code-prefix", "gs://sim-bucket/exports",
    )  # fmt: skip
    pod = Pod(session, "pinned.yaml", tmp_path / "home")
    [prepare], [program] = pod.spec["initContainers"], pod.spec["containers"]
    assert program["image"] == f"docker.io/library/python:3.{sys.version_info.minor}-slim"
    done = pod.start(prepare)
    assert done.returncode == 0, done.stderr
    assert "verifying" in done.stdout
    program["command"] = ["python" if word == "python3" else word for word in program["command"]]
    program["command"][0] = sys.executable
    done = pod.start(program, **told(0))
    assert done.stdout.startswith(str(pod.home / ".tpuctl/envs/")), done.stderr
    assert json.loads((pod.home / "env/env.json").read_text())["wheelhouse"] == "gs://sim-bucket/exports/wheels"


def test_what_comes_back_to_a_slice_is_the_same_run(session: Session):
    session.type("export", "train.py", "--up", "v6e-8", "--spot", "--name", "back", *OPTIONS, "--var", "X=1")
    [*_, jobset] = yaml.safe_load_all((session.work / "back.yaml").read_text())
    manifest = json.loads(session.type("manifest", "show", "back.run.tar", "--json").stdout)
    assert manifest["run"]["id"] == "back" == jobset["metadata"]["labels"]["tpuctl/run"]
    assert manifest["chain"] == [jobset["metadata"]["annotations"]["tpuctl/manifest-sha256"]]
    assert manifest["slice"]["accelerator_type"] == "v6e-8"
    again = session.json("rerun", "back.run.tar", "--on", "v6e-8", "--zone", "us-east1-d", "--dry-run")
    assert ("image", "python:3.11") in {(row["what"], row["detail"]) for row in again["plan"]}
    up = ("--up", "v6e-8", "--spot", "--pay", "--zone", "us-east1-d")
    session.type("run", "train.py", *up, "--no-checkpoint", "--name", "again", within_s=180)
    session.type(
        "export", "again", "--up", "v4-32", "-o", "other.yaml", "--container", "python:3.12", "--code-prefix",
        "gs://sim-bucket/x",
    )  # fmt: skip
    [*_, other] = yaml.safe_load_all((session.work / "other.yaml").read_text())
    pod = other["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "python:3.12"
    assert pod["containers"][0]["command"][-2:] == ["python3", "train.py"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == "tpu-v4-podslice"
    session.type("manifest", "verify", "other.run.tar")
    manifest = json.loads(session.type("manifest", "show", "other.run.tar", "--json").stdout)
    assert (manifest["command"]["container"], manifest["environment"]) == ("python:3.12", None)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("nothing-here",), 5, "no run called nothing-here"),
        (("train.py", *OPTIONS), 2, "--up TYPE, such as --up v6e-16"),
        (
            ("train.py", "--up", "v6e-16", *OPTIONS[:2], "--no-checkpoint"),
            2,
            "--code-prefix gs://BUCKET/PREFIX",
        ),
        (
            ("train.py", "--up", "v6e-16", *OPTIONS, "--code-prefix", "gs://gone/x"),
            5,
            "gs://gone does not exist",
        ),
        (("train.py", "--up", "v6e-16", *OPTIONS, "--ttl", "8h"), 2, "leave out --ttl"),
        (("train.py", "--up", "v6e-16", *OPTIONS, "--on", "big"), 2, "--on names a slice"),
        (("train.py", "--up", "v6e-16", *OPTIONS, "-o", "train.py"), 2, "is there and is no export"),
        (("train.py", "--up", "v6e-16", *OPTIONS, "-o", "."), 2, "it is a directory"),
        (("train.py", "--up", "v6e-16", *OPTIONS, "-o", "/"), 2, "it is a directory"),
        (("train.py", "--up", "v6e-16", *OPTIONS, "-o", "a\nb"), 2, "cannot be printed"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_nothing_is_left_behind(session: Session, words, status, said):
    before = left(session)
    done = session.type("export", *words, status=status)
    assert said in " ".join(done.stderr.split())
    assert left(session) == before


def test_a_preview_prints_the_file_and_uploads_nothing(session: Session):
    before = left(session)
    done = session.type("export", "train.py", "--up", "tpu7x-16", "--name", "seen", *OPTIONS, "--dry-run")
    [jobset] = yaml.safe_load_all(done.stdout)
    assert jobset["metadata"]["name"] == "seen"
    assert left(session) == before
