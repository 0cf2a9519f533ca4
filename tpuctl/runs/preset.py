"""What a run takes from its environment where nobody says otherwise. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.errors import UsageError
from tpuctl.model.run_spec import RunRequest
from tpuctl.runs.rules import check_processes


def with_preset(request: RunRequest, environment: PinnedEnvironment | None) -> RunRequest:
    """The request with the launch mode and the progress expression of its environment, where it names none
    itself. Raises UsageError where the launch mode does not go with the request."""
    spec = environment.spec if environment is not None else None
    own = request.progress if request.progress is not None else spec.progress if spec is not None else ""
    per = request.per or (spec.per if spec is not None else "") or "host"
    whole = replace(request, per=per, progress=own)
    if spec is None or request.per:
        return whole
    try:
        check_processes(whole)
    except UsageError as error:
        said = f"environment {spec.name} has per: {per}, and {error.message}"
        raise UsageError.of("per", said, "--per host, or another environment: tpuctl env ls") from error
    return whole
