"""A Linux of its own for what this kernel may not have, such as device-mapper, or does not let a container do,
such as growing an ext4 that is mounted: User-mode Linux, one process that boots in two seconds.

It sees the files of this machine read-only (hostfs), and disks that are files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

CACHE = Path.home() / ".cache" / "tpuctl-tests" / "uml"
"""Where .ci/run unpacks Debian's package user-mode-linux."""
MODULES = (
    "drivers/md/dm-mod",
    "drivers/md/md-mod",
    "drivers/md/linear",
    "drivers/md/raid0",
    "drivers/block/loop",
)
SAID = "said: "
INIT = """#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mount -t tmpfs tmp /run; mount -t tmpfs tmp /mnt
for each in {modules}; do insmod $each; done
{python} -c '
import json, sys
sys.path.insert(0, "{agent}")
print("{said}" + json.dumps(__import__("runpy").run_path("{program}")["found"]))'
echo o > /proc/sysrq-trigger
sleep 60
"""


def require_own_kernel() -> Path:
    """The program; skips by name where it is not."""
    for found in (shutil.which("linux.uml"), str(CACHE / "usr/bin/linux.uml")):
        if found and os.access(found, os.X_OK):
            return Path(found)
    fetched = f"apt-get download user-mode-linux && dpkg -x user-mode-linux_*.deb {CACHE}"
    return pytest.skip(f"linux.uml is not on PATH: {fetched}")


def run_in_own_kernel(
    program: Path, agent: Path, folder: Path, *, disks_mib: list[int], seconds: int = 600
) -> Any:
    """What `program`, a Python file that imports modules of `agent`, calls `found` in the end. The disks are
    empty, and block devices of major number 98 and minor 16, 32 and so on in it."""
    linux = require_own_kernel()
    modules = sorted((linux.parent.parent / "lib" / "uml" / "modules").glob("*"))
    assert modules, f"{linux} has no modules"
    init = folder / "init"
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    words = [str(modules[-1] / "kernel" / f"{each}.ko") for each in MODULES]
    text = INIT.format(modules=" ".join(words), python=python, agent=agent, said=SAID, program=program)
    init.write_text(text)
    init.chmod(0o755)
    options = ["mem=256M", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}", "quiet"]
    for number, size in enumerate(disks_mib, start=1):
        path = folder / f"disk-{number}"
        with path.open("wb") as file:
            file.truncate(size << 20)
        options.append(f"ubd{number}={path}")
    words = [str(linux), *options, "con0=fd:0,fd:1", "con=null", "ssl=null"]
    here = {**os.environ, "TMPDIR": str(folder)}
    kernel = subprocess.Popen(
        words, env=here, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        output, _ = kernel.communicate(timeout=seconds)
    finally:
        with suppress(ProcessLookupError):  # also the processes that are its processors
            os.killpg(kernel.pid, signal.SIGKILL)
    lines = output.decode(errors="replace").splitlines()
    said = [line.removeprefix(SAID) for line in lines if line.startswith(SAID)]
    assert said, "\n".join(lines[-40:])
    return json.loads(said[-1])
