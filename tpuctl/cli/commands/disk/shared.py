"""What the commands of `tpuctl disk` share: the table of rules, and which of them may be broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from tpuctl.lib.options import Option

if TYPE_CHECKING:
    from tpuctl.disks.rules import DiskRules

Allow = Annotated[list[str] | None, Option("Continue although this rule refuses; repeatable.", metavar="RULE")]


def rules_of(allow: list[str] | None) -> DiskRules:
    from tpuctl.disks.rules import DiskRules
    from tpuctl.model.shipped_files import load_disk_rules

    return DiskRules(load_disk_rules(), allow or ())
