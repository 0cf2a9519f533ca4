"""Parameters that only `make soak` tries."""

from __future__ import annotations

from typing import Any

import pytest


def soak(*values: Any, id: str | None = None) -> Any:
    """These values of a parametrized test; `make test` has a sample without them."""
    return pytest.param(*values, id=id, marks=pytest.mark.soak)
