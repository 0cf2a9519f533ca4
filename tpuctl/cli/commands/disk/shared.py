"""What the commands of `tpuctl disk` share: options, the table of rules, a disk in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tpuctl.disks.rules import DiskRules

DiskName = Annotated[str, typer.Argument(metavar="DISK", help="Name of the disk.")]
To = Annotated[
    str | None, typer.Option("--to", metavar="SLICE", help="The slice; optional if you have just one.")
]
Path = Annotated[
    str,
    typer.Option(
        "--path", metavar="DIR", help="Where it is mounted; /mnt/DISK if left out.", show_default=False
    ),
]
For = Annotated[
    str,
    typer.Option(
        "--for",
        metavar="ACCELERATOR",
        help="What it is for, where no slice says it: v6e-16, or a generation such as v6e.",
        show_default=False,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="RULE", help="Continue although this rule refuses; repeatable.", show_default=False
    ),
]
Unmount = Annotated[
    bool,
    typer.Option(
        "--unmount", help="Unmount the file system meanwhile instead of freezing it; nothing may be open there."
    ),
]


def rules_of(allow: list[str] | None) -> DiskRules:
    from tpuctl.disks.rules import DiskRules
    from tpuctl.model.shipped_files import load_disk_rules

    return DiskRules(load_disk_rules(), allow or ())
