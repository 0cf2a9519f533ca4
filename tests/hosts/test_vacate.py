"""What a host decides before a disk leaves it; by the agent's own modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"


def in_agent(code: str, *given: Any) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\ngiven = json.loads(sys.argv[1])\n{code}", json.dumps(given)],
        env={**os.environ, "PYTHONPATH": str(AGENT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def disk(name: str, label: str = "", path: str = "") -> dict[str, str]:
    return {"name": name, "label": label, "path": path}


MASTER, COPY = disk("data", "data", "/mnt/data"), disk("data-g1", "data")
ASSIGNED: dict[str, Any] = {
    "its label": ([disk("a", "a"), disk("b", "b")], {"8:16": "a", "8:32": "b"}, {}, {"8:16": "a", "8:32": "b"}),
    "no label is nobody's": ([disk("a", "a"), disk("raw")], {"8:16": "a", "8:32": ""}, {}, {"8:16": "a"}),
    "a master by its mount, the copy is left": (
        [MASTER, COPY],
        {"8:16": "data", "8:32": "data"},
        {"/mnt/data": "8:32"},
        {"8:32": "data", "8:16": "data-g1"},
    ),
    "both unmounted": ([MASTER, COPY], {"8:16": "data", "8:32": "data"}, {}, {}),
    "one more than is listed": ([MASTER], {"8:16": "data", "8:32": "data"}, {"/mnt/data": "8:16"}, {}),
    "mounted there is another": (
        [MASTER],
        {"8:16": "data", "8:32": ""},
        {"/mnt/data": "8:32"},
        {"8:16": "data"},
    ),
}


@pytest.mark.parametrize("case", ASSIGNED)
def test_a_device_is_a_disk_only_where_that_is_certain(case: str) -> None:
    listed, labels, at, wanted = ASSIGNED[case]
    code = "import disk_names; print(json.dumps(disk_names.assign(*given)))"
    assert in_agent(code, listed, labels, at) == wanted


def mount(number: int, parent: int, path: str, device: str = "0:30", **more: Any) -> dict[str, Any]:
    return {"id": number, "parent": parent, "path": path, "device": device, "fs": "ext4", "options": [], **more}


def test_what_lies_in_a_file_system_goes_with_it_and_nothing_else() -> None:
    layers = ["rw", "lowerdir=/usr:/mnt/data/low", "upperdir=/x"]
    mounts = [
        mount(1, 0, "/"),
        mount(2, 1, "/mnt/data", "8:16"),
        mount(3, 2, "/mnt/data/in"),
        mount(4, 3, "/mnt/data/in/deep"),
        mount(5, 1, "/mnt/data-2"),
        mount(6, 1, "/srv", "8:16"),
        mount(7, 1, "/over", fs="overlay", options=layers),
        mount(8, 1, "/other", fs="overlay", options=["lowerdir=/mnt/data-2"]),
    ]
    code = "import vacate_root; print(json.dumps([each['id'] for each in vacate_root.depending(*given)]))"
    assert in_agent(code, mounts, ["8:16"]) == [2, 3, 4, 6, 7]
