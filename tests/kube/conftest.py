"""Kubernetes' own checks, in a program that begins once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kube.checker import Checker, crd_checker


@pytest.fixture(scope="session")
def kube_checker() -> Iterator[Checker]:
    with crd_checker() as checker:
        yield checker
