"""Fingerprints of maps that only who knows what they were may change."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping

FINGERPRINT = "42WmSpB8rSM="
"""What the API shows for no labels."""


def fingerprint(labels: Mapping[str, str]) -> str:
    """Changes with the labels; who changes them must name it."""
    digest = hashlib.sha256(json.dumps(labels, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:8]).decode() if labels else FINGERPRINT
