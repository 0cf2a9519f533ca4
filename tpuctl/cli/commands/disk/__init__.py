"""`tpuctl disk`: persistent disks, from the first format to a copy on every host."""

from __future__ import annotations

from tpuctl.cli.app import new_group
from tpuctl.cli.commands.disk.attach import attach, detach, mount, repair, umount
from tpuctl.cli.commands.disk.change import gc, resize, rm, throughput
from tpuctl.cli.commands.disk.clone import clone, create, snapshot
from tpuctl.cli.commands.disk.ls import ls, show

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
