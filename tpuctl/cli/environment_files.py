"""Where environment files are, and how the command line names them."""

from __future__ import annotations

from pathlib import Path


def environment_folder(start: Path | None = None) -> Path:
    """`envs/` beside the nearest `tpuctl.yaml`, else in the directory of the command."""
    from tpuctl.config.load import find_project_file
    from tpuctl.envs.load import FOLDER

    here = start or Path.cwd()
    project = find_project_file(here, Path.home())
    return (project.parent if project is not None else here) / FOLDER
