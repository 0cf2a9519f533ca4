"""Tools that some tests need: absent means skip, unless this run says that it has them."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

VARIABLE = "TPUCTL_REQUIRE"


def require_tool(name: str, path: str | None = None) -> str:
    """The tool's path. Skips without it, but fails when `TPUCTL_REQUIRE` (comma list) names it."""
    found = shutil.which(name, path=path)
    if found is not None:
        return found
    if name in os.environ.get(VARIABLE, "").split(","):
        pytest.fail(f"{VARIABLE} names {name}, and it is not on {path or 'PATH'}")
    pytest.skip(f"{name} is not on {path or 'PATH'}")


def require_gcsfuse() -> str:
    """The real gcsfuse of the pinned version, where .ci/run builds it, or the one on PATH."""
    from tpuctl.model.shipped_files import load_mount_table

    pinned = load_mount_table()[0]["gcsfuse"]["pinned"]
    built = Path.home() / ".cache" / "tpuctl-tests" / f"gcsfuse-{pinned}"
    return require_tool("gcsfuse", f"{built}:{os.environ.get('PATH', os.defpath)}")


def require_torch_xla() -> str:
    """A Python that has PyTorch/XLA, 4 GB that only a person fetches; its tests run it on the CPU."""
    python = Path.home() / ".cache" / "tpuctl-tests" / "torch-xla" / "bin" / "python"
    if not python.exists():
        made = "uv venv ~/.cache/tpuctl-tests/torch-xla; uv pip install torch==2.9.0 torch_xla==2.9.0"
        pytest.skip(f"needs {python}: {made}")
    return str(python)


def require_isolated_hosts() -> None:
    """Skips where isolated hosts are not possible, but fails when `TPUCTL_REQUIRE` names `isolated`."""
    from tpuctl.errors import UsageError
    from tpuctl.sim.hosts.isolated.requirements import check_possible

    try:
        check_possible()
    except UsageError as error:
        if "isolated" in os.environ.get(VARIABLE, "").split(","):
            pytest.fail(f"{VARIABLE} names isolated, and {error.message}")
        pytest.skip(error.message)


def require_heeded_immutability(folder: Path) -> None:
    """Skips where files of the folder can be written by who has them open although they are immutable: not
    ext4, or no CAP_LINUX_IMMUTABLE. Simulated disks there keep some of what real ones lose."""
    from tpuctl.sim.hosts.files import set_immutable

    probe = folder / "probe"
    try:
        with probe.open("wb", buffering=0) as file:
            set_immutable(probe, True)
            file.write(b"x")
    except PermissionError:
        return
    finally:
        set_immutable(probe, False)
        probe.unlink(missing_ok=True)
    pytest.skip(f"{folder} is on a file system that lets immutable files be written")


def can_grow_ext4() -> bool:
    """Whether an ext4 can grow while it is mounted: ioctl_ext4 asks for CAP_SYS_RESOURCE (capabilities(7))."""
    rows = Path("/proc/self/status").read_text().splitlines()
    effective = next(int(row.split()[1], 16) for row in rows if row.startswith("CapEff:"))
    return bool(effective & 1 << 24)


def require_index() -> None:
    """Skips by name where the package index cannot be reached."""
    try:
        socket.create_connection(("pypi.org", 443), timeout=5).close()
    except OSError as error:
        pytest.skip(f"needs the package index pypi.org: {error}")
