"""What `mount bench` says of hosts, and of all together; its program runs for real, on hosts in memory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.jobs import bring_up
from tests.support.memory.process import Process, Steps
from tests.support.memory.services import MemoryPlace
from tpuctl.model.refs import MountRef
from tpuctl.model.shipped_files import read_template
from tpuctl.mounts.bench import bench_mount
from tpuctl.mounts.follow import remember
from tpuctl.state.repository import get_slice

REF = MountRef("bucket", "/mnt/b", "train", "d")


@pytest.mark.parametrize("read_only", [False, True])
def test_each_host_and_all_together_and_what_failed_and_nothing_is_left(
    tmp_path: Path, read_only: bool
) -> None:
    place = MemoryPlace()
    objects, bad = place.objects, 1

    def python(process: Process) -> Steps:
        asked = (yield from process.read_all()).decode()
        [mode, name] = re.findall(r'"(write|read)", "/mnt/b/([^"]*)"', asked)[-1]
        (tmp_path / name).touch()
        if mode == "write":
            objects.write(f"{REF.source}/{name}", b"")
        else:  # gcsfuse has what this machine uploaded
            (tmp_path / name).write_bytes(bytes(1 << 20))
        broken = mode == "read" and process.host is place.hosts.all()[bad]
        where = tmp_path / "nowhere" if broken else tmp_path
        program = [sys.executable, "-I", "-S", "-"]
        sent = asked.replace("/mnt/b", str(where))
        process.print(subprocess.run(program, input=sent, capture_output=True, text=True, check=True).stdout)
        yield 0.0
        return 0

    try:
        services = place.machine()
        bring_up(services, "big")
        remember(services, "big", replace(REF, read_only=read_only))
        record = get_slice(services, "big").record
        place.hosts.programs["python3 -I -S -"] = python
        found = bench_mount(
            services, record, REF.path, read_template("mount_bench.py"), size_mib=1, timeout_s=60.0
        )
    finally:
        place.close()
    good, other = found["hosts"][0], found["hosts"][bad]
    assert good["errors"] == []
    assert other["errors"] == ["read: No such file or directory"]
    assert found["errors"] == 1
    assert good["read_gb_s"] >= found["read_gb_s"] > 0 == other["read_gb_s"]
    if read_only:
        assert found["write_gb_s"] is good["write_gb_s"] is None
    else:
        slowest = min(good["write_gb_s"], other["write_gb_s"])
        assert found["write_gb_s"] == pytest.approx(2 * slowest)
    assert not objects.list("gs://bucket/")
