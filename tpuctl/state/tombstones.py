"""Slices that are gone for good: their records go, and one document keeps what must never be used again.

That is the number of the last incarnation, because names in the cloud are not used twice, and the fence of the
lease, because hosts refuse a lower one. The numbers are written before the record is removed, and whoever finds
no record reads them after that; so a name that comes back goes on counting, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.engine.ports import Store
from tpuctl.errors import ConflictError
from tpuctl.lib.codec import to_data
from tpuctl.model.records import SliceState
from tpuctl.state.gc_plan import Numbers, Retired
from tpuctl.state.repository import decode, load_run, load_slice, remove_unchanged

KEY = "retired"


def retired_numbers(store: Store, name: str) -> Numbers:
    """Where a slice whose record, or lease, was just found missing goes on counting."""
    return _read(store)[0].numbers.get(name, Numbers())


def find_expired(store: Store, after_s: float) -> tuple[str, ...]:
    """The slices that `retire` would remove now."""
    old, generation = _read(store)
    return old.watch(_gone(store), store.now()).ripe(store.now(), after_s) if generation else ()


def retire(store: Store, after_s: float) -> list[str]:
    """Notes which slices are gone, and removes the records of those that were left alone for `after_s` seconds.

    Returns their names. Any crash leaves a state from which the next call goes on.
    """
    old, generation = _read(store)
    new = old.watch(_gone(store), store.now())
    ripe = new.ripe(store.now(), after_s)
    leftover = _leftovers(store, old)
    new = new.keep_numbers({name: _numbers_of(store, name) for name in (*ripe, *leftover)})
    if new != old:
        try:
            store.put(KEY, to_data(new), if_generation=generation)
        except ConflictError:
            return []  # another machine does it
    removed = [name for name in ripe if remove_unchanged(store, f"slices/{name}", new.resting[name].generation)]
    for name in (*removed, *leftover):
        _remove_lease(store, name, new.numbers[name])
        idle = store.get(f"idle/{name}")
        if idle is not None:
            remove_unchanged(store, idle.key, idle.generation)
    return removed


def _read(store: Store) -> tuple[Retired, int]:
    """With the generation, 0 while there is none."""
    document = store.get(KEY)
    return (Retired(), 0) if document is None else (decode(Retired, document), document.generation)


def _gone(store: Store) -> Mapping[str, int]:
    """Slices that are gone and that no run still means, by the generation of their record.

    Raises for a record that cannot be read: then nothing is known.
    """
    runs = [load_run(document).record for document in store.list("runs/")]
    needed = {run.slice_name for run in runs if not run.state.final}
    stored = [load_slice(document) for document in store.list("slices/")]
    return {
        each.record.name: each.generation
        for each in stored
        if each.record.state is SliceState.GONE and each.record.name not in needed
    }


def _numbers_of(store: Store, name: str) -> Numbers:
    slice_, lease = store.get(f"slices/{name}"), store.get(f"leases/{name}")
    return Numbers(
        0 if slice_ is None else load_slice(slice_).record.last_incarnation,
        0 if lease is None else int(lease.data["fence"]),
    )


def _leftovers(store: Store, old: Retired) -> tuple[str, ...]:
    """Retired slices whose lease is still there: a crash came in between, or `reap` took it since."""
    keys = frozenset(store.list_keys())
    return tuple(
        name for name in sorted(old.numbers) if f"leases/{name}" in keys and f"slices/{name}" not in keys
    )


def _remove_lease(store: Store, name: str, numbers: Numbers) -> None:
    """Removes a lease that nobody holds and whose fence is kept."""
    lease = store.get(f"leases/{name}")
    if lease is None or int(lease.data["fence"]) > numbers.fence:
        return
    if not lease.data["owner"] or float(lease.data["expires"]) <= store.now():
        remove_unchanged(store, lease.key, lease.generation)
