"""When this process last saw slices alive. Kept in memory: the store holds decisions, not measurements."""

from __future__ import annotations


class Sightings:
    """By slice and the number of its incarnation: the newest moment, by the store's clock, at which the cloud
    showed it READY or one of its hosts answered."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], float] = {}

    def saw(self, slice_name: str, incarnation: int, at: float) -> None:
        key = (slice_name, incarnation)
        self._seen[key] = max(at, self._seen.get(key, at))

    def last(self, slice_name: str, incarnation: int) -> float | None:
        return self._seen.get((slice_name, incarnation))
