"""`tpuctl disk`: persistent disks, from the first format to a copy on every host."""

from __future__ import annotations

from tpuctl.cli.app import new_group
from tpuctl.cli.commands.disk.attach import attach, detach
from tpuctl.cli.commands.disk.clone import clone, snapshot
from tpuctl.cli.commands.disk.create import create
from tpuctl.cli.commands.disk.gc import gc
from tpuctl.cli.commands.disk.ls import ls, show
from tpuctl.cli.commands.disk.mount import mount, umount
from tpuctl.cli.commands.disk.repair import repair
from tpuctl.cli.commands.disk.resize import resize
from tpuctl.cli.commands.disk.rm import rm
from tpuctl.cli.commands.disk.throughput import throughput

__all__ = ["app"]

app = new_group("Develop on a disk, clone it, train on all hosts.")


for _verb in (
    create,
    ls,
    show,
    attach,
    detach,
    mount,
    umount,
    snapshot,
    clone,
    resize,
    throughput,
    repair,
    gc,
    rm,
):
    app.command(_verb.__name__, json=True, quiet=_verb.__name__ not in {"ls", "show", "resize"})(_verb)
