"""Public keys accepted for login, from `ssh-keys` metadata."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field

USER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class AcceptedKeys:
    """User name → key blobs in SSH wire format."""

    by_user: dict[str, frozenset[bytes]] = field(default_factory=dict)

    @classmethod
    def parse(cls, ssh_keys: str) -> AcceptedKeys:
        """Lines `USER:TYPE BASE64 [comment]`; others are skipped, as Google's guest agent does."""
        found: dict[str, set[bytes]] = {}
        for line in ssh_keys.splitlines():
            user, _, key = line.strip().partition(":")
            words = key.split()
            if not USER_NAME.fullmatch(user) or len(words) < 2:
                continue
            try:
                found.setdefault(user, set()).add(base64.b64decode(words[1], validate=True))
            except binascii.Error:
                continue
        return cls({user: frozenset(blobs) for user, blobs in found.items()})

    def accepts(self, user: str, blob: bytes) -> bool:
        return blob in self.by_user.get(user, frozenset())
