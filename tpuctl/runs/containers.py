"""The container in which a run's program starts: what is refused of it, and what starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.containers.spec import parse_image
from tpuctl.errors import UsageError
from tpuctl.model.run_spec import RunRequest, RunSpec

MISSING, ALWAYS = "missing", "always"
IMAGES_OWN = {"PATH", "BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"}
"""What bash does not let anybody set, and where an image finds its programs."""


def check_container(request: RunRequest) -> None:
    """Raises UsageError for what a run in a container cannot have, and for options that are for one."""
    if request.pull not in (MISSING, ALWAYS):
        raise UsageError.of("pull", f"--pull {request.pull!r} is unknown", f"{MISSING} or {ALWAYS}")
    if request.container is None:
        for name, given in (("pull", request.pull != MISSING), ("privileged", request.privileged)):
            if given:
                raise UsageError.of(name, f"--{name} is for a run in a container", "--container IMAGE with it")
        return
    parse_image(request.container)
    if request.env is not None:
        why = "--container and --env exclude each other: its packages are those of the image"
        raise UsageError.of("env", why, "build them into the image, or leave out --container")
    for option, names in (("var", request.var), ("secret", request.secret)):
        for name in sorted(IMAGES_OWN.intersection(names)):
            why = f"--{option} {name}: a program in a container has the {name} of its image, or of its shell"
            raise UsageError.of(option, why, f"build it into the image, or start with: env {name}=… PROGRAM")


def start_in_container(spec: RunSpec, row: Mapping[str, str], paths: Sequence[str]) -> dict[str, Any] | None:
    """What the agent is told of the container; `row` is that of its host, `paths` are disks and mounts."""
    if spec.container is None:
        return None
    from tpuctl.containers.hosts import ENGINE, IMAGE_ID

    engine = row.get(ENGINE, "").partition(" ")[0]
    told = {"image": row.get(IMAGE_ID, ""), "engine": engine, "privileged": spec.privileged}
    return {**told, "binds": list(paths)}
