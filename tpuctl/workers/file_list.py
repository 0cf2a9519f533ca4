"""The list that a worker sends of what lies at a path: entries of a tree. None of it is trusted.

Names are relative to what was asked for, which itself has the name "".
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.errors import TpuctlError
from tpuctl.hosts.protocol import MalformedReplyError
from tpuctl.transfer.frames import MAX_WORDS, NoteReader
from tpuctl.transfer.tree import MAX_NAME, Entry, TreeFolder, TreeLink, parse_entry

MAX_ENTRIES = 1_000_000
"""How many files, links and directories one copy back takes, from all its workers: their lists are kept in
memory, about half a gigabyte for so many."""
MAX_LIST_BYTES = 256 << 20
"""And how long those lists may be: 256 bytes for an entry, where usual ones have 60 to 120."""
MAX_UNREAD = 100
"""Of so many a worker says the names."""


class UnreadFile(Struct, frozen=True):
    """Something that could not be copied, and why."""

    name: str
    why: str


class FileSurvey(Struct, frozen=True):
    """What lies there: `left_out` counts sockets, pipes and devices, `unread_count` what could not be read, of
    which `unread` names some."""

    entries: tuple[Entry, ...]
    left_out: int
    unread: tuple[UnreadFile, ...]
    unread_count: int


class ListLimits(Struct, frozen=True):
    """What the list of one worker may come to."""

    entries: int
    size_bytes: int


def limits_of(workers: int) -> ListLimits:
    """The share of each of `workers`."""
    return ListLimits(MAX_ENTRIES // max(1, workers), MAX_LIST_BYTES // max(1, workers))


class SurveyReader:
    """Bytes in, a survey out; what a login script prints before it is passed over.

    Keeps no more than its limits allow, whatever comes.
    """

    def __init__(self, limits: ListLimits) -> None:
        self._limits = limits
        self._read_bytes = 0
        self._notes = NoteReader()
        self._entries: list[Entry] = []
        self._survey: FileSurvey | None = None

    def feed(self, data: bytes) -> None:
        """MalformedReplyError for what is no list; TpuctlError for one that is too long, leaves the target, or
        is a refusal."""
        self._read_bytes += len(data)
        if self._read_bytes > self._limits.size_bytes:
            raise too_many(self._limits.entries)
        for note in self._notes.read(data):
            if isinstance(note, bytes):
                raise MalformedReplyError("the host sent no list of files, but their content")
            self._take(note)

    def survey(self) -> FileSurvey:
        """All of it. MalformedReplyError where its end never came."""
        if self._survey is None:
            raise MalformedReplyError("the host did not send its whole list of files")
        return self._survey

    def _take(self, note: Mapping[str, Any]) -> None:
        try:
            rows = note.get("entries", ())
            if len(self._entries) + len(rows) > self._limits.entries:
                raise too_many(self._limits.entries)
            self._entries += [parse_entry(row) for row in rows]
            if "surveyed" in note:
                self._survey = self._ended(note)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise MalformedReplyError(f"not a list of files: {error}") from error

    def _ended(self, data: Mapping[str, Any]) -> FileSurvey:
        if data["surveyed"] != len(self._entries):
            raise ValueError("entries are missing")
        unread = tuple(UnreadFile(str(name)[:MAX_NAME], str(why)[:MAX_WORDS]) for name, why in data["unread"])
        _check(self._entries)
        kept = tuple(entry for entry in self._entries if not _leads_out(entry))
        outward = [
            UnreadFile(entry.path, f"a link out of what is copied, to {entry.target[:MAX_WORDS]}")
            for entry in self._entries
            if isinstance(entry, TreeLink) and _leads_out(entry)
        ]
        count = max(len(unread), int(data["unread_count"])) + len(outward)
        return FileSurvey(kept, int(data["left_out"]), (*unread, *outward)[:MAX_UNREAD], count)


def too_many(limit: int) -> TpuctlError:
    """The refusal of a list with more than `limit` entries."""
    return TpuctlError(
        f"too many files there: {MAX_ENTRIES:,} are copied at once from all workers, {limit:,} from each; copy "
        "parts of it, from fewer workers with --worker, or one archive that `tpuctl exec` makes there with tar"
    )


def describe_missing(names: Sequence[UnreadFile], count: int) -> str:
    """What was not copied, by name as far as it goes, and that all the rest was."""
    if count == 1 and not names[0].name:
        return f"not copied: {names[0].why}"
    shown = ", ".join(f"{_short(each.name)!r} ({each.why})" for each in names[:5])
    more = f" and {count - min(5, len(names))} more" if count > min(5, len(names)) else ""
    return f"not copied: {shown}{more}; everything else is there"


def _short(name: str) -> str:
    return name if len(name) <= 150 else f"{name[:60]}…{name[-60:]}"


def _check(found: Sequence[Entry]) -> None:
    """Refuses names that lead out of the target, and what lies behind a file or a link."""
    kinds: dict[str, Entry] = {}
    for entry in found:
        parts = entry.path.split("/") if entry.path else []
        if any(part in ("", ".", "..") for part in parts):
            raise TpuctlError(f"refused: the host sent a file that leaves the target: {entry.path!r}")
        if entry.path in kinds:
            raise TpuctlError(f"refused: the host sent {entry.path!r} twice")
        kinds[entry.path] = entry
    for entry in found:  # each directory is an entry, too, so that one step up is enough
        if entry.path and not isinstance(kinds.get(posixpath.dirname(entry.path)), TreeFolder):
            raise TpuctlError(f"refused: the host sent a file that lies in no directory: {entry.path!r}")


def _leads_out(entry: Entry) -> bool:
    """A link to somewhere else, which is never made here: it would mean another place, or lead writes away."""
    if not isinstance(entry, TreeLink):
        return False
    end = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.target))
    return not entry.path or entry.target.startswith("/") or end.split("/")[0] == ".."
