"""The keeper of a mount where it decides by itself; tests/e2e/test_mounts.py has it at work on hosts."""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import build_package
from tpuctl.model.shipped_files import read_template


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("keeper") / "keeper.py"
    file.write_bytes(read_template("mount_keeper.py"))
    return runpy.run_path(str(file))


def test_nothing_is_mounted_over_files_and_none_is_removed(keeper: dict[str, Any], tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "file").write_text("kept")
    for path, said, look in (
        (there, "is not empty", "ls -lA"),
        (there / "file", "is not a directory", "ls -ld"),
    ):
        with pytest.raises(keeper["Refused"], match=said) as refused:
            keeper["check_point"](str(path))
        assert refused.value.on_host == f"{look} {path}"
    assert (there / "file").read_text() == "kept"
    keeper["check_point"](str(tmp_path / "new" / "place"))
    assert list((tmp_path / "new" / "place").iterdir()) == []


def test_a_cache_that_may_outgrow_its_disk_is_refused(keeper: dict[str, Any], tmp_path: Path) -> None:
    keeper["check_cache"]({"cache": [str(tmp_path / "cache"), 1]})
    keeper["check_cache"]({"cache": [str(tmp_path / "cache"), -1]})
    keeper["check_cache"]({"cache": None})
    with pytest.raises(keeper["Refused"], match="may grow to") as refused:
        keeper["check_cache"]({"cache": [str(tmp_path / "other/cache"), 1 << 40]})
    assert "--cache-dir" in refused.value.hint
    assert not (tmp_path / "other").exists()


def test_a_program_with_another_checksum_is_refused(keeper: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "gcsfuse").write_bytes(b"not what was asked for")
    wanted = hashlib.sha256(b"what was asked for").hexdigest()
    with pytest.raises(keeper["Refused"], match=wanted[:16]):
        keeper["install_program"](str(tmp_path / "gcsfuse"), wanted)


def test_a_package_is_unpacked_and_one_without_gcsfuse_refused(
    keeper: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = keeper["install_program"]
    monkeypatch.setitem(install.__globals__, "PROGRAMS", str(tmp_path / "programs"))
    (tmp_path / "program").write_text("#!/bin/sh\n")
    package = build_package(tmp_path, str(tmp_path / "program"), "3.11.3")
    sha256 = hashlib.sha256(package.read_bytes()).hexdigest()
    path = install(str(package), sha256)
    assert path == str(tmp_path / "programs" / sha256[:16] / "usr/bin/gcsfuse")
    assert "3.11.3" in subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    assert install("not needed again", sha256) == path

    (tmp_path / "empty/DEBIAN").mkdir(parents=True)
    (tmp_path / "empty/DEBIAN/control").write_text("Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x\n")
    subprocess.run(["dpkg-deb", "-b", str(tmp_path / "empty"), str(tmp_path / "x.deb")], check=True)
    with pytest.raises(keeper["Refused"], match="no usr/bin/gcsfuse"):
        install(str(tmp_path / "x.deb"), hashlib.sha256((tmp_path / "x.deb").read_bytes()).hexdigest())
    assert os.listdir(tmp_path / "programs") == [sha256[:16]]


@pytest.mark.parametrize(
    ("said", "inside", "found"),
    [
        ("gcsfuse version 3.11.3 (Go version go1.26)", "", "3.11.3"),
        ("gcsfuse version v3.5.0", "", "3.5.0"),
        ("gcsfuse version unknown", "\tgithub.com/googlecloudplatform/gcsfuse/v3\tv3.5.0\th1:x", "3.5.0"),
        ("gcsfuse version unknown", "\tgithub.com/googlecloudplatform/gcsfuse/v3\t(devel)", "unknown"),
    ],
)
def test_a_gcsfuse_of_another_version_is_refused(
    keeper: dict[str, Any], tmp_path: Path, said: str, inside: str, found: str
) -> None:
    program = tmp_path / "gcsfuse"
    program.write_text(f"#!/bin/sh\necho '{said}'\n#{inside}\n")
    program.chmod(0o755)
    if found == "3.5.0":
        with pytest.raises(keeper["Refused"], match=r"is 3\.5\.0, not 3\.11\.3") as refused:
            keeper["check_version"](str(program), "3.11.3")
        assert refused.value.hint.startswith("TPUCTL_GCSFUSE=")
    else:
        assert keeper["check_version"](str(program), "3.11.3") == found


def test_only_what_a_server_keeps_is_unmounted(keeper: dict[str, Any], tmp_path: Path) -> None:
    assert keeper["unmount"](str(tmp_path)) == ""
    assert "is mounted on /proc" in keeper["unmount"]("/proc")
    assert os.path.ismount("/proc")
    with pytest.raises(keeper["Refused"], match="not by tpuctl"):
        keeper["clear_foreign"]("/proc")


@pytest.mark.parametrize(
    ("line", "said", "refused"),
    [
        (
            "Error: mount: SetUpBucket: GetStorageLayout: InvocationID: 1, with error: rpc error: "
            "code = PermissionDenied desc = a@b has no access",
            "code = PermissionDenied desc = a@b has no access",
            True,
        ),
        ("Error: BucketHandle: googleapi: Error 403: a@b has no access", "Error 403: a@b has no access", True),
        ("Error: BucketHandle: googleapi: Error 503: again", "Error 503: again", False),
        ("Error: fusermount3: not found", "Error: fusermount3: not found", False),
    ],
)
def test_a_bucket_that_refuses_is_no_matter_of_trying_again(
    keeper: dict[str, Any], tmp_path: Path, line: str, said: str, refused: bool
) -> None:
    (tmp_path / "log").write_text(f"earlier Error\n{line}\nbye\n")
    detail = keeper["last_line"](str(tmp_path / "log"), 0)
    assert detail == said
    status = {"at": 2.0, "digest": "d", "state": "restarting", "detail": detail}
    (tmp_path / "status.json").write_text(json.dumps(status))
    with pytest.raises(keeper["Refused"] if refused else RuntimeError, match=re.escape(said)) as raised:
        keeper["wait"](str(tmp_path), {"digest": "d", "denied": "the role"}, 1.0)
    assert getattr(raised.value, "hint", "") == ("the role" if refused else "")


def test_what_dies_again_and_again_is_mounted_less_often(
    keeper: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dict.fromkeys(("path", "bucket", "digest", "program", "version"), "x")
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    made, waited = keeper["Keeper"](str(tmp_path)), list[float]()
    monkeypatch.setattr(made, "sleep", waited.append)
    for _ in range(8):
        made.pause("gcsfuse died")
    assert waited == [0, 1, 3, 7, 15, 31, 300, 300]
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["detail"][:34]) == ("failed", "gcsfuse died; it was mounted 8 tim")


def test_a_process_is_known_by_its_number_and_when_it_was_started(keeper: dict[str, Any]) -> None:
    mine = keeper["identity"](os.getpid())
    assert keeper["alive"](mine)
    assert not keeper["alive"]([mine[0], mine[1] + 1])
    assert not keeper["alive"](None)


def test_systemd_leaves_gcsfuse_alone_when_it_starts_the_keeper_again() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(read_template("tpuctl-mount.service").decode())
    service = unit["Service"]
    assert (service["KillMode"], service["Restart"], service["ExecStart"]) == ("process", "always", "@COMMAND@")
