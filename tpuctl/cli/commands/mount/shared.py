"""What the commands of `tpuctl mount` share: the slice and the path."""

from __future__ import annotations

from typing import Annotated

from tpuctl.lib.options import Option, argument

On = Annotated[str | None, Option("The slice; optional if you have just one.", metavar="SLICE")]
At = Annotated[str, argument("PATH", "Where it is mounted.")]
