"""Requests for more quota (`quotaPreferences` of the Cloud Quotas API), which the simulated Google grants.

Seen of the real service: the answer to a request says `reconciling` and that nothing is granted; seconds later
a program has decided, and `quotaConfig.stateDetail` says what. The simulated one never says no.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

from tpuctl.sim.wire.status import ApiError, Code, Json, failed_precondition, invalid_argument, not_found
from tpuctl.sim.wire.timestamps import rfc3339
from tpuctl.sim.world.iam import COMPUTE, PROJECT_NUMBER, TPU
from tpuctl.sim.world.quotas import (
    COMPUTE_QUOTA_IDS,
    PLENTY,
    Quotas,
    keys_of_tpu_quota,
    tpu_quota_of,
)
from tpuctl.sim.world.state import Kernel

_LEAST_PART = 0.9
"""Of what there is; who asks for less than that must say that it is meant."""


class QuotaPreferences:
    """What was asked for, and what became of it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def list(self) -> list[Json]:
        with self._kernel.lock:
            return copy.deepcopy(list(self._kernel.quota_preferences.values()))

    def get(self, id: str) -> Json:
        """Raises ApiError, NOT_FOUND."""
        with self._kernel.lock:
            found = self._kernel.quota_preferences.get(id)
            if found is None:
                raise not_found(_name(id))
            return copy.deepcopy(found)

    def create(self, id: str, asked: Json, *, unsafe: bool) -> Json:
        """There is one for each quota and place. Raises ApiError."""
        with self._kernel.lock:
            id = id or self._kernel.ids.short()
            known = self._kernel.quota_preferences
            same = [each for each in known.values() if _subject(each) == _subject(asked)]
            if id in known or same:
                name = _name(id) if id in known else same[0]["name"]
                raise ApiError(Code.ALREADY_EXISTS, f"Resource '{name}' already exists")
            now = rfc3339(self._kernel.clock.now())
            shown: Json = {
                each: asked[each]
                for each in ("dimensions", "service", "quotaId", "justification")
                if each in asked
            }
            made: Json = {"name": _name(id), **shown, "createTime": now}
            return self._ask(id, made, asked, unsafe=unsafe)

    def update(self, id: str, asked: Json, *, unsafe: bool, allow_missing: bool) -> Json:
        """Asks for another value. Raises ApiError."""
        with self._kernel.lock:
            known = self._kernel.quota_preferences.get(id)
            if known is None and allow_missing:
                return self.create(id, asked, unsafe=unsafe)
            if known is None:
                raise not_found(_name(id))
            return self._ask(id, known, {**known, **asked}, unsafe=unsafe)

    def _ask(self, id: str, shown: Json, asked: Json, *, unsafe: bool) -> Json:
        wanted = int((asked.get("quotaConfig") or {}).get("preferredValue", 0))
        keys: dict[str, int] = dict(_keys(self._kernel, asked))
        limits = [min(PLENTY, self._kernel.quotas.get(key, PLENTY)) * unit for key, unit in keys.items()]
        if wanted < min(limits, default=0) * _LEAST_PART and not unsafe:
            text = f"The quota override of {wanted} for {asked['quotaId']} decreases effective quota unsafely"
            raise failed_precondition(text)
        now = rfc3339(self._kernel.clock.now())
        config: Json = {"preferredValue": str(wanted), "grantedValue": "0", "traceId": self._kernel.ids.eid()}
        made = {**shown, "quotaConfig": config, "updateTime": now, "reconciling": True, "etag": now}
        self._kernel.quota_preferences[id] = made
        self._kernel.after(self._kernel.delays.quota_decision, lambda: self._grant(id, keys, wanted))
        return copy.deepcopy(made)

    def _grant(self, id: str, keys: Mapping[str, int], wanted: int) -> None:
        with self._kernel.lock:
            made = self._kernel.quota_preferences.get(id)
            if made is None or made["quotaConfig"]["preferredValue"] != str(wanted):
                return  # asked anew meanwhile
            for key, unit in keys.items():
                self._kernel.quotas[key] = wanted // unit
            made["quotaConfig"] |= {
                "grantedValue": str(wanted),
                "stateDetail": f"Quota request approved to {wanted}",
            }
            del made["reconciling"]


def _name(id: str) -> str:
    return f"projects/{PROJECT_NUMBER}/locations/global/quotaPreferences/{id}"


def _subject(asked: Json) -> tuple[str, str, str]:
    return asked.get("service", ""), asked.get("quotaId", ""), str(asked.get("dimensions") or {})


def _keys(kernel: Kernel, asked: Json) -> Iterator[tuple[str, int]]:
    """The keys of the limits that are meant, each with how many units of the quota one of its own is."""
    service, id = asked.get("service", ""), asked.get("quotaId", "")
    dimensions = asked.get("dimensions") or {}
    wanted = int((asked.get("quotaConfig") or {}).get("preferredValue", 0))
    if wanted < 0:
        raise invalid_argument(f"Invalid preferred_value: {wanted}")
    if service == TPU and (quota := tpu_quota_of(id)):
        if set(dimensions) - {quota.kind}:
            raise invalid_argument(f"Invalid dimensions for quota {id}: {dict(dimensions)}")
        places = Quotas(kernel).places(quota)
        place = dimensions.get(quota.kind)
        if place is not None and place not in places:
            raise invalid_argument(f"Invalid dimensions for quota {id}: {dict(dimensions)}")
        for each in places if place is None else (place,):
            yield from ((key, places[each]) for key in keys_of_tpu_quota(kernel.quotas, quota, each))
    elif service == COMPUTE and (keys := Quotas(kernel).keys_of_machines(id, dimensions)) is not None:
        if not keys:
            raise invalid_argument(f"Invalid dimensions for quota {id}: {dict(dimensions)}")
        yield from ((key, 1) for key in keys)
    elif service == COMPUTE and id in COMPUTE_QUOTA_IDS:
        metric, region = COMPUTE_QUOTA_IDS[id], dimensions.get("region", "")
        yield (f"{metric}/{region}" if region else metric), 1
    else:
        raise not_found(f"projects/{PROJECT_NUMBER}/locations/global/services/{service}/quotaInfos/{id}")
