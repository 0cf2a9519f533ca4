"""What a host says of its hardware, read from a folder like that of its kernel."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.hooks import in_agent


def test_numa_nodes_and_interfaces_that_are_devices_are_counted(tmp_path: Path) -> None:
    for name in ("node0", "node1", "power"):
        (tmp_path / "node" / name).mkdir(parents=True)
    for name in ("ens8", "ens9"):
        (tmp_path / "net" / name / "device").mkdir(parents=True)
    for name in ("lo", "docker0"):
        (tmp_path / "net" / name).mkdir()
    code = (
        f"import json, machine; where = {str(tmp_path)!r}\n"
        "print(json.dumps([machine.numa_nodes(where + '/node'), machine.nics(where + '/net'),"
        " machine.numa_nodes(where + '/none')]))"
    )
    assert json.loads(in_agent(code, tmp_path)) == [2, 2, 0]
