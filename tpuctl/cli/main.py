"""The console script."""

from __future__ import annotations

from tpuctl.cli.app import app


def main() -> None:
    """Runs the command line of this process and exits."""
    app(prog_name="tpuctl")
