"""Identifiers in the shapes the Cloud TPU API uses, from one seed."""

from __future__ import annotations

import random
import threading


class Ids:
    """Thread-safe; the same seed and the same order of calls give the same identifiers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def _hex(self, digits: int) -> str:
        with self._lock:
            return f"{self._random.getrandbits(digits * 4):0{digits}x}"

    def node_id(self) -> str:
        """`Node.id`: an int64, which JSON carries as a string."""
        with self._lock:
            return str(self._random.randrange(10**18, 9 * 10**18))

    def operation_id(self, now: float) -> str:
        """`operation-<ms epoch>-<13 hex>-<8 hex>-<8 hex>`, as real operation names look."""
        return f"operation-{int(now * 1000)}-{self._hex(13)}-{self._hex(8)}-{self._hex(8)}"

    def eid(self) -> str:
        """The `[EID: 0x…]` of error texts."""
        return f"0x{self._hex(16)}"

    def short(self) -> str:
        """Eight hex digits, for host names like `t1v-n-9472280f-w-0`."""
        return self._hex(8)
