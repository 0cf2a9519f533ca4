"""Publishing: the pages as objects of a bucket, which says who may read them.

Several machines may write at once, and any may be killed at any point. Whoever reads sees whole pages whose
links lead to pages:

1. What is there is listed before the store is read, so that of two writers the later one knows more.
2. Pages that were not there come first: nothing leads to them yet. Then those that are another now, at last the
   index. Each is written over what was listed and nothing else. Time may run out after any of them: what was
   written longest ago comes first, so that all get their turn.
3. A page that nobody wants any more is deleted when all that led to it was written without it: the index notes
   it, and a later pass deletes it. Who wants it all the same writes it anew before anything leads to it: of
   that write and the deletion one is refused.

What a page was made of is noted on its object: the same is not written twice, and one list call knows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.lib.retry import patiently
from tpuctl.model.cloud import ObjectHeaders, ObjectInfo
from tpuctl.ui.static import INDEX, StaticPage, StaticSite

BROWSER = "https://storage.cloud.google.com"
"""Shows objects to who is logged in and may read them
(https://cloud.google.com/storage/docs/access-control/cookie-based-authentication)."""
FLEET, BASIS, LEFT = "tpuctl-fleet", "tpuctl-basis", "tpuctl-left"
"""Notes on an object: whose page it is, what it was made of; on the index, which pages will be deleted."""
LEFT_MAX = 50
"""Notes on an object have 8 KiB (https://cloud.google.com/storage/docs/metadata#custom-metadata)."""

PUBLIC = "anybody on the internet can read the pages at {place}"
UNKNOWN = "it is not known whether anybody on the internet can read the pages at {place}"


class Publication(Struct, frozen=True):
    """What became of it: names of pages. `refused` were written by somebody else meanwhile; for those in
    `later` there was no time."""

    address: str
    written: tuple[str, ...]
    same: int
    deleted: tuple[str, ...]
    refused: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    public: bool | None = False
    """Anybody on the internet can read it; None where that could not be found out."""


def publish(
    services: Services, place: str, *, dry_run: bool = False, deadline: float = math.inf
) -> Publication:
    """Brings the pages below `place` (`check_page_uri`) up to date, or says what that would write. After the
    `deadline` no further page is begun but the index; the first is written in any case, so that each pass
    comes further.

    Raises NotFoundError where there is no such bucket, DeniedError where it refuses us, and ConflictError where
    something is in the way that is no page of this fleet. Nothing was written then.
    """
    there, strange = _list_pages(services, place)
    site = StaticSite(services, f"{BROWSER}/{place.removeprefix('gs://')}/")
    others, index = list(site.others()), site.index()
    names = {INDEX, *(page.name for page in others)}
    _check_free(place, names & strange)
    noted = there[INDEX].metadata.get(LEFT, "").split() if INDEX in there else []
    lasting = there.keys() - set(noted)
    changed = [page for page in others if page.name not in lasting or _basis(there[page.name]) != page.basis]
    changed.sort(key=lambda page: there[page.name].updated if page.name in lasting else "")
    left = sorted(there.keys() - names)
    unwanted = [name for name in left if name in noted]
    address = f"{BROWSER}/{place.removeprefix('gs://')}/{INDEX}"
    public, same = services.objects.is_public(place.split("/")[2]), len(others) - len(changed)
    if dry_run:
        due = tuple(page.name for page in (*changed, index))
        return Publication(address, due, same, tuple(unwanted), public=public)
    writer = _Writer(services, place, there, site.written)
    refused: list[str] = []
    later: list[str] = []
    new = sum(page.name not in lasting for page in changed)
    complete = True
    for number, page in enumerate(changed):
        if number == new and (later or refused):
            complete = _are_there(services, place, names)
        if not complete or (number and services.clock.now() >= deadline):
            later.append(page.name)
        elif not writer.write(page):
            refused.append(page.name)
    # Whoever refused a page wrote it, or deleted it, and one for later may be new: nothing leads to what is not
    # there.
    if (later or refused) and not _are_there(services, place, names):
        (later or refused).append(INDEX)
    elif not writer.write(index, {LEFT: " ".join(left[:LEFT_MAX])}):
        refused.append(INDEX)
    if later or refused:
        unwanted = []
    deleted = [name for name in unwanted if services.clock.now() < deadline and writer.delete(name)]
    missed = {*refused, *later}
    written = tuple(page.name for page in (*changed, index) if page.name not in missed)
    return Publication(address, written, same, tuple(deleted), tuple(refused), tuple(later), public)


def _are_there(services: Services, place: str, names: AbstractSet[str]) -> bool:
    return names - {INDEX} <= _list_pages(services, place)[0].keys()


def _list_pages(services: Services, place: str) -> tuple[Mapping[str, ObjectInfo], AbstractSet[str]]:
    """The pages of this fleet that are there, and the names of what else looks like a page."""
    bucket, _, prefix = f"{place.removeprefix('gs://')}/".partition("/")
    uri, glob = f"gs://{bucket}/{prefix}", f"{prefix}*.html"
    try:
        listed = services.objects.list(uri, glob=glob)
    except NotFoundError as error:
        made = f"gcloud storage buckets create gs://{bucket} --public-access-prevention"
        raise NotFoundError(f"there is no bucket gs://{bucket} for pages", hint=made) from error
    found = {item.name.removeprefix(prefix): item for item in listed}
    fleet = services.store.identity()
    ours = {name: item for name, item in found.items() if item.metadata.get(FLEET) == fleet}
    return ours, found.keys() - ours.keys()


def _basis(info: ObjectInfo) -> str | None:
    return info.metadata.get(BASIS)


def _check_free(place: str, taken: AbstractSet[str]) -> None:
    if taken:
        raise ConflictError(
            f"{place}/{min(taken)} is there already, and no page of this fleet",
            hint="choose another prefix: --publish gs://BUCKET/PREFIX",
        )


class _Writer:
    """Writes over what was listed, and over nothing else."""

    def __init__(self, services: Services, place: str, there: Mapping[str, ObjectInfo], written: str) -> None:
        self._services, self._place, self._there, self._written = services, place, there, written

    def write(self, page: StaticPage, more: Mapping[str, str] | None = None) -> bool:
        """With `more` notes; False where somebody else was first."""
        content = page.render(self._written).encode("utf-8", "replace")
        notes = {FLEET: self._services.store.identity(), BASIS: page.basis, **(more or {})}
        headers = ObjectHeaders("text/html; charset=utf-8", cache_control="no-cache", metadata=notes)
        known = self._there.get(page.name)

        def once() -> None:
            uri, generation = f"{self._place}/{page.name}", known.generation if known is not None else 0
            self._services.objects.write(uri, content, if_generation=generation, headers=headers)

        return self._done(once)

    def delete(self, name: str) -> bool:
        """The same of a page that nobody wants."""
        uri, generation = f"{self._place}/{name}", self._there[name].generation
        return self._done(lambda: self._services.objects.delete(uri, if_generation=generation))

    def _done(self, call: Callable[[], None]) -> bool:
        try:
            patiently(call, self._services.clock.sleep)
        except ConflictError:
            return False
        return True
