"""Checks of the conformance table that are known not to be answered as the real API answers, and why."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[tuple[str, str], str] = {}
"""By name of the client and of the check."""
