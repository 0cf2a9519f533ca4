"""Drift of hosts that are machines of their own: each kind is found, named, and mended by the command of the
message."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.require import require_isolated_hosts, require_tool
from tests.support.session import Session, open_session
from tests.support.wheels import MINOR, Project

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]

BUILT = f"lib/python{MINOR}/site-packages/tiny_ext.so"
HUGEPAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
VERIFY = ("env", "verify", "tiny", "--on", "big")
APPLY = ("env", "apply", "tiny", "--on", "big")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    require_isolated_hosts()
    with open_session("--instant", "--hosts", "isolated") as opened:
        opened.project = Project(opened.work)
        content = b"\x7fELF built by hand"
        (opened.project.envs / "built.so").write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        more = f"imports: [tiny]\nfiles:\n  - {{source: built.so, to: {BUILT}, sha256: {digest}}}"
        more += "\nkernel: {transparent_hugepages: always}"
        opened.project.add("tiny", {"tiny": "1.0"}, more)
        opened.type("up", "v4-16", "big", "--spot", "--pay")
        yield opened


@pytest.fixture
def alike(session: Session) -> Iterator[Session]:
    """Hosts that are brought to what is asked before the test, and must be so after it."""
    session.type(*APPLY)
    yield session
    assert "2 hosts of big are as tiny says" in session.type(*VERIFY).stderr


def on(session: Session, worker: int, script: str) -> None:
    session.type("exec", "big", "--worker", str(worker), "--", "bash", "-c", script)


def drift(session: Session, columns: str, *said: str) -> list[str]:
    """`verify` finds drift in these columns alone and names it. The commands that mend it."""
    told = json.loads(session.type(*VERIFY, "--json", status=3).stdout)["error"]
    for text in said:
        assert text in told["message"]
    assert told["details"]["columns"] == columns.split(", ")
    return [each["hint"] for each in told["details"]["differences"]]


def mend(session: Session, hints: list[str]) -> None:
    """Types the commands of a message."""
    for hint in hints:
        session.type(*shlex.split(hint, comments=True)[1:])


def test_a_disk_that_became_full_is_named_and_what_no_run_needs_goes(alike: Session) -> None:
    on(alike, 1, 'cp -a "$HOME" /var/tmp/kept')
    on(alike, 1, 'sudo mount -t tmpfs -o size=1300m,mode=700,uid=$(id -u) tmpfs "$HOME"')
    on(alike, 1, 'cp -a /var/tmp/kept/. "$HOME" && mkdir -p "$HOME/.tpuctl/envs/half-made"')
    alike.type(*VERIFY)
    on(alike, 1, 'fallocate -l 400M "$HOME/.tpuctl/envs/half-made/wheel"')
    (hint,) = drift(alike, "disk", "worker 1 has ", "MiB free, not enough")
    assert hint == "tpuctl env gc --on big"
    mend(alike, [hint])
    alike.type(*VERIFY)
    on(alike, 1, 'sudo umount -l "$HOME"')


def test_a_setting_of_the_kernel_that_is_lost_is_named_and_set_again_and_this_machine_keeps_its_own(
    alike: Session,
) -> None:
    own = HUGEPAGES.read_text()
    on(alike, 1, f"echo madvise | sudo tee {HUGEPAGES}")
    plan = {
        row["workers"]: (row["does"], row["why"]) for row in alike.json("env", "plan", "tiny", "--on", "big")
    }
    assert plan["1"] == ("setting transparent hugepages to always", "transparent hugepages are madvise")
    mend(alike, drift(alike, "hugepages", "worker 1 has madvise, not always"))
    assert HUGEPAGES.read_text() == own


@pytest.mark.parametrize(
    ("name", "value", "file", "sudo"),
    [
        ("TPU_LIBRARY_PATH", "/opt/old/libtpu.so", "~/.bashrc", ""),
        ("XLA_FLAGS", "--xla_dump_to=/tmp/hlo", "/etc/bash.bashrc", "sudo "),
    ],
)
def test_a_variable_that_leads_programs_elsewhere_is_named(
    alike: Session, name: str, value: str, file: str, sudo: str
) -> None:
    on(alike, 1, f"(echo export {name}={value}; cat {file}) > /tmp/login; {sudo}cp /tmp/login {file}")
    mend(alike, drift(alike, "variables", f"worker 1 has {name}={value}"))


def test_a_foreign_process_on_the_chips_is_named_and_ended(session: Session) -> None:
    packages = {"jax": "0.10.2", "libtpu": "0.0.40"}
    session.project.add("tpu", packages, files={"libtpu_stands_in.py": ""}, backend="jax")
    verify = ("env", "verify", "tpu", "--on", "big")
    session.type("exec", "big", "--", "sudo", "touch", "/dev/accel0")
    session.type("env", "apply", "tpu", "--on", "big")
    session.type(*verify)
    on(session, 1, "sudo setsid -f sleep 600 < /dev/accel0 > /dev/null 2>&1; sleep 0.5")
    told = json.loads(session.type(*verify, "--json", status=3).stdout)["error"]
    assert told["details"]["columns"] == ["chip holders"]
    assert "worker 1 has pid " in told["message"]
    assert " of root (sleep 600) since 20" in told["message"]
    mend(session, [each["hint"] for each in told["details"]["differences"]])
    session.type(*verify)


HOLDER = """
import fcntl, glob, time
lock = open("/var/lib/dpkg/lock-frontend", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
open("/tmp/held", "w").close()
until = time.time() + 60
while time.time() < until and not any("is held by" in open(log).read()
                                      for log in glob.glob("/home/*/.tpuctl/runs/provision-*/*/stderr.log")):
    time.sleep(0.1)
time.sleep(14)
"""
"""Holds the lock of dpkg until that was noticed, and longer than a client waits before it says so."""


def deb(folder: Path, name: str, version: str) -> dict[str, str]:
    """A package of Debian without files in it, as base64, and what a repository says of it, by file name."""
    tree = folder / f"{name}-{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody\nDescription: tiny\n"
    (tree / "DEBIAN/control").write_text(control)
    package = folder / f"{name}.deb"
    subprocess.run([require_tool("dpkg-deb"), "--build", tree, package], check=True, capture_output=True)
    content = package.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    said = f"{control}Filename: ./{package.name}\nSize: {len(content)}\nSHA256: {digest}\n"
    return {
        package.name: base64.b64encode(content).decode(),
        "Packages": base64.b64encode(said.encode()).decode(),
    }


def test_packages_of_the_system_come_when_its_lock_is_free_and_come_back(
    session: Session, tmp_path: Path
) -> None:
    require_tool("apt-get")
    script = ["set -e; mkdir -p /srv/own; rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*"]
    script += [
        f"echo {text} | base64 -d > /srv/own/{name}" for name, text in deb(tmp_path, "tiny-os", "1.2").items()
    ]
    script += ['echo "deb [trusted=yes] file:/srv/own ./" > /etc/apt/sources.list']
    session.type("exec", "big", "--", "sudo", "bash", "-c", "\n".join(script))
    (session.work / "holder.py").write_text(HOLDER)
    session.type("cp", "holder.py", "big:/tmp/holder.py")
    holding = session.start("exec", "big", "--worker", "0", "--", "sudo", "python3", "/tmp/holder.py")
    on(session, 0, "until test -e /tmp/held; do sleep 0.1; done")
    session.project.add("system", {"system": "1.0"}, "os_packages: {tiny-os: '1.2'}")
    apply, verify = ("env", "apply", "system", "--on", "big"), ("env", "verify", "system", "--on", "big")
    told = " ".join(session.type(*apply).stderr.split())
    assert session.finish(holding).returncode == 0
    assert "/var/lib/dpkg/lock-frontend is held by " in told, told
    session.type(*verify)
    on(session, 0, "dpkg-query -W tiny-os | grep 1.2 && sudo dpkg --remove tiny-os")
    changed = json.loads(session.type(*verify, "--json", status=3).stdout)["error"]
    assert "worker 0 has changed package tiny-os" in changed["message"]
    mend(session, [each["hint"] for each in changed["details"]["differences"]])
    session.type(*verify)
    session.project.add("system", {"system": "1.0"}, "os_packages: {tiny-os: '9.9'}")
    assert "Version '9.9' for 'tiny-os' was not found" in session.type(*apply, status=3).stderr
