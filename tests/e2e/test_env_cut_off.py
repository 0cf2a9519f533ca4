"""A real JAX on isolated hosts that reach no package index: all of it comes through the wheelhouse in the
bucket, to the hosts of today and to those after a preemption."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.support.require import require_isolated_hosts
from tests.support.session import Session, open_session
from tests.support.soak import soak
from tests.support.wheels import MINOR, Project, make_python_archive

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

INSTALL_S = 400.0
INDEX = "https://pypi.org/simple/"


@pytest.fixture
def session() -> Iterator[Session]:
    require_isolated_hosts()
    with open_session("--instant", "--hosts", "isolated") as opened:
        yield opened


@pytest.mark.parametrize(("accelerator", "hosts"), [soak("v4-16", 2), soak("v4-64", 8)])
def test_jax_is_installed_run_and_brought_back_without_a_byte_from_the_registry(
    session: Session, accelerator: str, hosts: int
) -> None:
    """To install JAX takes a host 12 s of a processor."""
    session.type("env", "new", "train", "--like", "cpu", "--python", MINOR)
    session.environ["TPUCTL_WHEELHOUSE"] = "gs://sim-bucket/wheels"
    session.type("sim", "fault", "no-internet")
    session.type("up", accelerator, "big", "--spot", "--pay", "--env", "train", within_s=INSTALL_S)
    curl = f"curl -sS -m 5 {INDEX} >/dev/null 2>&1 || echo cut off"
    reached = json.loads(session.type("exec", "--json", "big", "--", "sh", "-c", curl).stdout)
    said = {row["worker"]: row["stdout"] for row in reached}
    assert said == dict.fromkeys(range(hosts), "cut off\n")
    session.type("sim", "preempt", "big-1")
    session.type("up", "big", within_s=INSTALL_S)
    assert "of big are as train says" in session.type("env", "verify", "train", "--on", "big").stderr
    # A run of jax.distributed: a collective over the processes of all hosts.
    tested = json.loads(session.type("smoke", "big", "--limit", "300", "--json", within_s=INSTALL_S).stdout)
    assert [(row["worker"], row["backend"]) for row in tested] == [(worker, "cpu") for worker in range(hosts)]


def put(session: Session, name: str, content: bytes) -> None:
    """An object of the simulator's bucket."""
    at = f"{session.storage()}/upload/storage/v1/b/sim-bucket/o?uploadType=media&name={name}"
    urllib.request.urlopen(urllib.request.Request(at, content, method="POST"), timeout=60).close()


def test_an_interpreter_comes_from_the_bucket_and_never_another_one(session: Session) -> None:
    project = Project(session.work, whole_installer=True)
    archive = session.work / "python.tar.gz"
    digest, content = make_python_archive(archive), archive.read_bytes()
    put(session, "builds/python.tar.gz", content)
    session.environ["TPUCTL_WHEELHOUSE"] = "gs://sim-bucket/house"
    session.type("up", "v4-16", "big", "--spot", "--pay")
    session.type("sim", "fault", "no-internet")

    def add(sha256: str) -> None:
        source = f"python_archive: {{source: gs://sim-bucket/builds/python.tar.gz, sha256: {sha256}}}"
        project.add("own", {"tiny": "1.0"}, f"imports: [tiny]\n{source}")

    def pythons() -> set[str]:
        said = session.type(
            "exec", "--json", "big", "--", "sh", "-c", "ls -A .tpuctl/pythons .tpuctl/envs || true"
        )
        return {row["stdout"] for row in json.loads(said.stdout)}

    apply = ("env", "apply", "own", "--on", "big")
    # Another one than the file says is refused before anything is sent.
    add("0" * 64)
    refused = session.type(*apply, status=2).stderr
    assert f"python.tar.gz of environment own has the sha256 {digest}, not {'0' * 64}" in " ".join(
        refused.split()
    )
    assert pythons() == {""}
    # One that was changed in the bucket is refused by each host.
    add(digest)
    put(session, f"house/{digest}/python.tar.gz", content[:-1])
    assert f"not {digest}" in "".join(session.type(*apply, status=3).stderr.split("\n"))
    assert all("tpuctl-env.json" not in said for said in pythons())
    put(session, f"house/{digest}/python.tar.gz", content)
    session.type(*apply)
    session.type("env", "verify", "own", "--on", "big")
    program = "import sys, tiny; print(sys.base_prefix, tiny.VERSION)"
    words = ("run", "--env", "own", "--on", "big", "--no-checkpoint", "--", "python", "-c", program)
    (session.work / ".tpuctlignore").write_text("envs\npython.tar.gz\n")
    told = [line.partition("│ ")[2] for line in session.type(*words).stdout.splitlines()]
    assert {line.partition("/.tpuctl/")[2] for line in told} == {f"pythons/{digest[:16]} 1.0"}
