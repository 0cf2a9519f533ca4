"""Parameters that only CI tries, and those that only `make soak` does."""

from __future__ import annotations

from typing import Any

import pytest


def long(*values: Any, id: str | None = None) -> Any:
    """These values of a parametrized test; `make test` has a sample without them, CI has them, too."""
    return pytest.param(*values, id=id, marks=pytest.mark.long)


def soak(*values: Any, id: str | None = None) -> Any:
    """These values of a parametrized test; `make test` and CI have a sample without them."""
    return pytest.param(*values, id=id, marks=pytest.mark.soak)
