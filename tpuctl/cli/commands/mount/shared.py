"""What the commands of `tpuctl mount` share: the slice and the path."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.lib.options import Option

On = Annotated[str | None, Option("The slice; optional if you have just one.", metavar="SLICE")]
At = Annotated[str, typer.Argument(metavar="PATH", help="Where it is mounted.")]
