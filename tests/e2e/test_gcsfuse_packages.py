"""gcsfuse from packages, on an isolated host: apt with a signed repository, and a .deb out of the store."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_mounts import on
from tests.support.hosts import wait_until
from tests.support.packages import build_package, build_repository
from tests.support.require import require_gcsfuse, require_isolated_hosts, require_tool
from tests.support.session import Session, open_session
from tpuctl.model.shipped_files import load_mount_table, read_template
from tpuctl.mounts.rules import MountRules

UP = ("up", "v4-8", "big", "--spot", "--pay", "--zone", "us-central2-b")
VERSION = MountRules(*load_mount_table()).pinned
HOLD = """
import fcntl, time
names = ("apt/lists/lock", "apt/lists/partial/lock", "dpkg/lock-frontend", "dpkg/lock")
held = [open("/var/lib/" + name, "w") for name in names]
for file in held:
    fcntl.lockf(file, fcntl.LOCK_EX)
open("/tmp/held", "w").close()
time.sleep(3600)
"""
"""As apt-daily does after boot."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def package() -> Iterator[Path]:
    """In a folder of this machine that hosts see: their /tmp is their own."""
    folder = Path(tempfile.mkdtemp(prefix="tpuctl-packages-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        yield build_package(folder, require_gcsfuse(), VERSION)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    require_isolated_hosts()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.type(*UP)
        yield made


@pytest.mark.long
def test_a_package_of_the_repository_is_put_beside_what_the_host_has(session: Session, package: Path) -> None:
    """The host's package tool is at work, its key of Google is an old one, and it has a gcsfuse of its own."""
    require_tool("apt-get")
    folder = package.parent
    kept = build_repository(folder, package, VERSION)
    (folder / "install.sh").write_bytes(read_template("gcsfuse_install.sh"))
    (folder / "hold.py").write_text(HOLD)
    install = f"sudo sh {folder}/install.sh {VERSION} file://{folder}/apt"
    own = "printf '#!/bin/sh\necho gcsfuse version 9.9.9' | sudo tee /usr/bin/gcsfuse"
    on(session, 0, f"{own}; sudo chmod +x /usr/bin/gcsfuse")
    on(
        session,
        0,
        "sudo mkdir -p /usr/share/keyrings; echo old | sudo tee /usr/share/keyrings/cloud.google.asc",
    )
    holder = session.start("exec", "big", "--", "sudo", "python3", f"{folder}/hold.py")
    wait_until(lambda: "held" in on(session, 0, "ls /tmp"))

    content = kept.read_bytes()
    kept.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "Hash Sum mismatch" in on(session, 0, f"{install} 2>&1; true")
    kept.write_bytes(content)
    assert f"gcsfuse version {VERSION}" in on(session, 0, f"{install} 2>&1")
    assert on(session, 0, f"{install} 2>&1") == on(
        session, 0, f"/opt/tpuctl-gcsfuse/{VERSION}/usr/bin/gcsfuse --version"
    )
    assert "9.9.9" in on(session, 0, "gcsfuse --version; ls /opt/tpuctl-gcsfuse /etc/apt/sources.list.d")
    assert "tmp" not in on(session, 0, "ls /opt/tpuctl-gcsfuse")
    holder.kill()

    session.type("mount", "add", "gs://sim-bucket:/mnt/apt")  # nothing is fetched: it has the pinned version
    said = on(session, 0, "ls -d .tpuctl/runs/provision-big/*/gcsfuse*; echo a > /mnt/apt/a; cat /mnt/apt/a")
    assert said == "a\n"
    program = on(session, 0, "sudo readlink /proc/$(pgrep -f '[g]csfuse.*/mnt/apt$')/exe")
    assert program.startswith(f"/opt/tpuctl-gcsfuse/{VERSION}/")


def test_a_package_out_of_the_store_is_unpacked_and_mounts(session: Session, package: Path) -> None:
    session.environ["TPUCTL_GCSFUSE"] = str(package)
    session.type("mount", "add", "gs://sim-bucket:/mnt/deb")
    assert on(session, 0, "echo b > /mnt/deb/b; cat /mnt/deb/b") == "b\n"
    program = on(session, 0, "sudo readlink /proc/$(pgrep -f '[g]csfuse.*/mnt/deb$')/exe")
    assert program.startswith("/opt/tpuctl-gcsfuse/")
