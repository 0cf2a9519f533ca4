"""What the commands of `tpuctl mount` share: the slice and the path."""

from __future__ import annotations

from typing import Annotated

import typer

On = Annotated[
    str | None, typer.Option("--on", metavar="SLICE", help="The slice; optional if you have just one.")
]
At = Annotated[str, typer.Argument(metavar="PATH", help="Where it is mounted.")]
