"""Options that a run in a container cannot have."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.errors import UsageError
from tpuctl.model.run_spec import RunRequest
from tpuctl.runs.containers import check_container


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"var": {"PATH": "/opt/bin"}}, "--var PATH: a program in a container has the PATH of its image"),
        ({"var": {"UID": "1000"}}, "--var UID: "),
        ({"secret": {"SHELLOPTS": "env:X"}}, "--secret SHELLOPTS: "),
        ({"env": "jax-tpu"}, "--container and --env exclude each other"),
        ({"pull": "never"}, "--pull 'never' is unknown"),
    ],
)
def test_what_would_not_reach_its_program_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        check_container(RunRequest(script="x.py", container="image:1", **keys))
    assert refused.value.hint
