"""Where something can be mounted, as a path says it."""

from __future__ import annotations

import pytest

from tpuctl.errors import UsageError
from tpuctl.lib.mount_paths import check_apart, check_place, why_no_place

GOOD = [
    "/data",
    "/mnt/x",
    "/mnt/my data",
    "/home/ada/x",
    "/home/ada/.cache/hf",
    "/root/x",
    "/opt/d",
    "/srv/a/b",
]
BAD = [
    "",
    "data",
    "./data",
    "../data",
    "~/data",
    "/",
    "//mnt/data",
    "/mnt/data/",
    "/mnt//data",
    "/mnt/./data",
    "/mnt/../etc",
    "/mnt/da\nta",
    "/mnt/da:ta",
    "/mnt/" + "x" * 1024,
    "/mnt",
    "/tmp",
    "/home",
    "/home/ada",
    "/home/ada/.ssh",
    "/home/ada/.tpuctl/work",
    "/root",
    "/root/.ssh/x",
    *(f"/{top}" for top in ("etc", "usr", "bin", "lib", "boot", "dev", "proc", "sys", "run", "var")),
    "/etc/ssh",
    "/usr/local/data",
    "/dev/shm/data",
    "/proc/1/root",
    "/var/lib/data",
]


@pytest.mark.parametrize("path", GOOD)
def test_a_place(path: str) -> None:
    assert not why_no_place(path)
    assert check_place(path, field="path", what="disk", hint="") == path


@pytest.mark.parametrize("path", BAD)
def test_no_place(path: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_place(path, field="path", what="disk", hint="--path /mnt/data")
    assert "is no place for a disk: " in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.hint == "--path /mnt/data"


@pytest.mark.parametrize("path", ["/mnt/a", "/mnt/a/b/c", "/mnt"])
def test_paths_lie_beside_each_other(path: str) -> None:
    with pytest.raises(UsageError, match="disk one is at /mnt/a"):
        check_apart(path, {"/srv/b": "disk two", "/mnt/a": "disk one"}, field="disk", hint="")


def test_a_longer_name_is_another_place() -> None:
    check_apart("/mnt/ab", {"/mnt/a": "disk one", "/mnt/abc": "disk two"}, field="disk", hint="")
