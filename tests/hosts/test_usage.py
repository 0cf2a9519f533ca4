"""How busy a host is: the agent's own module on this machine's /proc, and on one that lacks files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tpuctl.hosts.protocol import HostUsage

NETWORK = {"lo": 100, "eth0": 1, "docker0": 10}
AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"


def in_agent(code: str, **variables: str) -> Any:
    """What `code`, with the module `usage`, leaves in `found`."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, os, usage\n{code}\nprint(json.dumps(found))"],
        env={**os.environ, "PYTHONPATH": str(AGENT), "TPUCTL_HOST_MARK": "this-test", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_host_tells_how_busy_it_is_and_where_its_programs_tell_more() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"],
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "TPUCTL_HOST_MARK": "this-test",
            "TPU_RUNTIME_METRICS_PORTS": "8441,8442,no,99999,",
            "PYGRAIN_PROMETHEUS_PORT": "9432",
        },
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        try:
            told = in_agent("found = usage.usage({}, None)", ORBAX_PROMETHEUS_PORT="9433")
        finally:
            busy.kill()
    usage = HostUsage.parse(told, 3)
    assert (usage.worker, usage.cpus) == (3, os.cpu_count())
    assert usage.cpu_percent is not None
    assert 0 < usage.cpu_percent <= 100
    assert usage.memory_used is not None
    assert usage.memory_total is not None
    assert 0 < usage.memory_used < usage.memory_total
    assert None not in (usage.disk_read_s, usage.disk_written_s, usage.net_in_s, usage.net_out_s)
    assert usage.ports == (8441, 8442)
    assert sorted(usage.prometheus) == [9432, 9433]


def test_programs_of_another_host_of_the_machine_are_not_read() -> None:
    told = in_agent("found = usage.usage({}, None)", TPUCTL_HOST_MARK="other", TPU_RUNTIME_METRICS_PORTS="8450")
    assert told["ports"] == [8450]


def test_what_a_container_hides_is_unknown_and_not_zero() -> None:
    hidden = "\n".join(
        [
            "def lines_of(name):",
            "    if name != 'meminfo': raise PermissionError(name)",
            "    return ['MemTotal: 8 kB', 'HugePages_Total: 0', 'nonsense']",
            "usage.lines_of = lines_of",
            "found = usage.usage({}, None)",
        ]
    )
    usage = HostUsage.parse(in_agent(hidden), 0)
    assert usage == HostUsage(0, cpus=os.cpu_count() or 0, ports=usage.ports, prometheus=usage.prometheus)


@pytest.mark.parametrize(("cards", "told"), [(["eth0"], (1, 2)), ([], (11, 22))])
def test_bridges_and_containers_count_only_where_there_is_no_card(
    cards: list[str], told: tuple[int, int]
) -> None:
    rows = ["head", "head", *(f"{name}: {n} 0 0 0 0 0 0 0 {2 * n}" for name, n in NETWORK.items())]
    code = "\n".join(
        [
            f"usage.lines_of = lambda name: {rows!r}",
            f"usage.os.path.exists = {[f'/sys/class/net/{name}/device' for name in cards]!r}.__contains__",
            "found = usage.network_bytes()",
        ]
    )
    assert in_agent(code) == dict(zip(("net_in_s", "net_out_s"), told, strict=True))


def test_partitions_and_stacked_disks_count_once() -> None:
    rows = [
        "8 0 sda 1 0 100 0 1 0 10 0 0 0 0",
        "8 1 sda1 1 0 90 0 1 0 10 0 0 0 0",
        "7 0 loop0 1 0 7 0 1 0 7 0 0 0 0",
        "253 0 dm-0 1 0 50 0 1 0 5 0 0 0 0",
        "259 0 nvme0n1 1 0 2 0 1 0 3 0 0 0 0",
    ]
    code = "\n".join(
        [
            f"usage.lines_of = lambda name: {rows!r}",
            "whole = ['/sys/block/' + name for name in ('sda', 'nvme0n1', 'dm-0')]",
            "usage.os.path.exists = whole.__contains__",
            "found = usage.disk_bytes()",
        ]
    )
    assert in_agent(code) == {"disk_read_s": 102 * 512, "disk_written_s": 13 * 512}
