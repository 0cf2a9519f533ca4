"""`tpuctl mount`: buckets as folders on every worker, the same everywhere."""

from __future__ import annotations

from tpuctl.cli.app import new_group
from tpuctl.cli.commands.mount.add import add, rm
from tpuctl.cli.commands.mount.bench import bench, cost
from tpuctl.cli.commands.mount.show import check, ls, show

__all__ = ["app"]

app = new_group("Mount buckets as folders on every worker.")


for _verb in (add, ls, show, check, bench, cost, rm):
    app.command(_verb.__name__, json=True, quiet=_verb in {add, bench, rm})(_verb)
