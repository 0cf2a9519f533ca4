"""The seams between decisions and effects: what workflows may ask of hosts, the store, this machine and time;
`engine/cloud_ports.py` has those to the cloud.

Adapters implement these protocols and import nothing of each other; `cli/context.py` alone puts them together.
All methods raise subclasses of `TpuctlError` and nothing else for what the outside world does to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from tpuctl.lib.shell import Secret
from tpuctl.model.hosts import HostTarget

if TYPE_CHECKING:  # most commands need none of these, and every command imports this module
    from tpuctl.model.facts import CredentialFacts, KeyFacts, StoreFacts, ToolFacts, WatchFacts
    from tpuctl.model.hosts import RemoteResult

R = TypeVar("R")


class Clock(Protocol):
    """This machine's time. Seconds since the epoch; nothing else in tpuctl sleeps.

    It measures how long something takes here. What is written down to be compared later, by whichever machine,
    is `Store.now`: clocks of machines differ by minutes.
    """

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class Machine(Protocol):
    """This machine, as far as it can keep tpuctl from working. Reads only; every method may fail alone."""

    def credentials(self) -> CredentialFacts:
        """What the API is asked with, renewed if it can be. BadConfigError without any, DeniedError when the
        renewal is refused."""
        ...

    def key(self) -> KeyFacts: ...

    def tools(self) -> tuple[ToolFacts, ...]: ...

    def store(self) -> StoreFacts:
        """The store as it is, without making, migrating or changing it."""
        ...

    def watchdog(self) -> WatchFacts: ...


class Document(Struct, frozen=True):
    """One JSON document of the store. `generation` changes with every write and is never 0."""

    key: str
    generation: int
    data: Mapping[str, Any]


class StoredBlob(Struct, frozen=True):
    """A blob as it was listed. `written_at` by the store's own clock, as far as it is known (else None);
    `version` changes whenever it is written again."""

    sha256: str
    size: int
    version: int
    written_at: float | None


class Store(Protocol):
    """Decisions that outlive the process. Keys are slash-separated, e.g. `slices/big`; no operation spans two.

    Conflicts (another writer was first) raise ConflictError and change nothing.
    """

    def get(self, key: str) -> Document | None: ...

    def put(self, key: str, data: Mapping[str, Any], *, if_generation: int) -> Document:
        """Compare-and-set: `if_generation` 0 means the key must not exist."""
        ...

    def delete(self, key: str, *, if_generation: int) -> None: ...

    def list(self, prefix: str) -> list[Document]:
        """Documents whose key starts with `prefix`, sorted by key. Callers do not change them: they may be
        those that others were given."""
        ...

    def read_all(self, prefix: str, read: Callable[[Document], R]) -> Sequence[R]:
        """What `read` makes of each document that `list` gives, without all of them in memory. `read` depends
        on nothing else: for a document that did not change it may not be asked again."""
        ...

    def list_keys(self) -> Sequence[str]:
        """The keys of all documents and entries, sorted; costs pages, however much the documents hold."""
        ...

    def append(self, prefix: str, data: Mapping[str, Any]) -> str:
        """Adds an immutable entry under `prefix` and returns its key; keys sort in order of appending."""
        ...

    def remove_entries(self, keys: Sequence[str]) -> None:
        """Removes what `append` added, for good; what is not there is passed over. ConflictError for a key that
        no entry can have."""
        ...

    def put_blob(self, content: bytes) -> str:
        """Stores content under its sha256 (hex) and returns that. Storing it again only makes it young again:
        no pruning takes it for `timeouts.PRUNE_AFTER_LEAST_S`."""
        ...

    def get_blob(self, sha256: str) -> bytes:
        """NotFoundError if missing, TpuctlError if the content no longer matches its digest."""
        ...

    def put_blobs(self, contents: Iterable[bytes]) -> Sequence[str]:
        """`put_blob` of each, several at once where that is faster; the digests in the same order."""
        ...

    def young_blobs(self, digests: Sequence[str]) -> frozenset[str]:
        """Those blobs that are there and young (`timeouts.BLOB_FRESH_S`), so that who is about to refer to them
        need not store them again. An old one may be removed before the reference is written."""
        ...

    def list_blobs(self) -> Sequence[StoredBlob]:
        """All of them; raises rather than leave one out that could not be listed."""
        ...

    def remove_blob(self, blob: StoredBlob) -> bool:
        """Removes the blob unless it was written again since it was listed; says whether it is gone."""
        ...

    def clear_leftovers(self, before: float) -> int:
        """Removes files that crashes left half-written on this machine before that time; how many."""
        ...

    def now(self) -> float:
        """The store's own time, the same for all machines that use it. Every time in a record is of this clock
        and is compared with no other: leases, back-offs, doubts, graces, lifetimes."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other machines may use it, too."""
        ...

    def identity(self) -> str:
        """A short stable id of this store, valid as a label value."""
        ...


EventSink = Callable[[object], None]
"""Receives typed events of a workflow; `cli/live.py` draws them."""

OutputSink = Callable[[int, str, bytes], None]
"""Receives (worker, "stdout" or "stderr", chunk); called from one thread at a time."""

Stdin = bytes | Callable[[HostTarget], bytes | Iterable[bytes | None]]
"""What a command reads: the same for all workers, or made per worker, whole or in pieces as they are sent; None
for a piece says that there is nothing yet."""


class Input(Protocol):
    """What this process was given to read, for a command on a host."""

    def has_some(self) -> bool:
        """Whether there is something to read now; what comes later is not known yet."""
        ...

    def read(self) -> bytes | None:
        """Some of it, nothing at its end; None when there is nothing yet, after a short wait."""
        ...

    def note_taken(self, count: int) -> None:
        """So many bytes were really read on the host: what was not is put back, where that can be."""
        ...

    @property
    def lost(self) -> int:
        """How many bytes nobody read and nothing could put back."""
        ...


class Remedy(Struct, frozen=True):
    """What a command needs on a worker, and the command that brings it there."""

    exit_status: int
    said: bytes
    """With this exit status, and this last on stderr, a command says that it lacks it."""
    command: str
    stdin: bytes
    failed: str
    """For a person: that it could not be brought."""

    def is_for(self, exit_status: int | None, stderr: bytes) -> bool:
        """Whether a command that ended so needs it."""
        return exit_status == self.exit_status and stderr.endswith(self.said)

    def explain(self, exit_status: int, stderr: bytes) -> str:
        """Why it could not be brought."""
        said = stderr.decode(errors="replace").strip()[-400:]
        return f"{self.failed} (exit status {exit_status}) {said}".strip()


class Server(Struct, frozen=True):
    """A command that does `verb`, and then more, without being started anew: see `tpuctl/agent/serve.py`."""

    command: str
    verb: str
    remedied: str
    """A command that reads what a `Remedy` reads, does the same, and goes on as `command`."""


class RemoteCall(Struct, frozen=True):
    """One shell command for many workers. Who passes it on changes it by `msgspec.structs.replace`."""

    command: str | Callable[[HostTarget], str]
    stdin: Stdin = b""
    timeout_s: float | None = 20.0
    """None for as long as it takes."""
    sink: OutputSink | None = None
    """Gets the output as it arrives; without one the results hold it."""
    hold_stdin: bool = False
    """Keeps stdin open after the first bytes and sends a newline every 5 s: the session of the agent."""
    should_stop: Callable[[], bool] | None = None
    """When it turns true the call ends early, closing all channels."""
    end_within_s: float = 0.0
    """Then stdin is closed first, and a command has so long to end by itself; none if this is not given."""
    on_end: Callable[[RemoteResult], None] | None = None
    """Gets each result, without output, as soon as it is known, from the thread of the sink."""
    remedy: Remedy | None = None
    """Where the command lacks something, that is brought and the command runs once more: at once, whatever
    other workers do, and within the same time limit. If it cannot be brought, that end is the result, with the
    reason as `detail`."""
    server: Server | None = None
    """What may do the same as the command where `stdin` is short, on connections that last: for a call whose
    output is not passed on as it comes."""


class Remote(Protocol):
    """Commands on workers, many at once, over connections that are kept for the life of this object.

    A worker that fails does not stop or delay the others; results come in the order of `targets`.
    """

    def run(self, targets: Sequence[HostTarget], call: RemoteCall) -> list[RemoteResult]:
        """Runs the command on each worker. On Ctrl-C it ends, closing all channels."""
        ...

    def forward(
        self,
        resolve: Callable[[], HostTarget],
        remote_port: int,
        *,
        local_port: int = 0,
        report: Callable[[str], None],
    ) -> Forwarding:
        """A port of this machine's loopback that leads to one of a worker's; `local_port` 0 means any.

        `resolve` says for each connection which worker; a connection that fails is closed and reported.
        ConflictError if the local port cannot be used.
        """
        ...

    def read_host_keys(self, targets: Sequence[HostTarget], *, timeout_s: float = 10.0) -> list[str | None]:
        """The ssh-ed25519 keys that hosts show, believed without a proof; None where there is no answer
        in that time."""
        ...

    def rest(self) -> bool:
        """Closes connections that carry nothing, as hosts count a connection as use; whether some do carry
        something."""
        ...

    def close(self) -> None: ...


class Forwarding(Protocol):
    """A forwarded port, until it is closed."""

    @property
    def local_port(self) -> int: ...

    def close(self) -> None: ...


class SshEntries(Protocol):
    """What this machine's own `ssh` knows of slices, if the user asked for that."""

    def names(self) -> Collection[str]:
        """The slices of which it knows something."""
        ...

    def update(self, slice_name: str, targets: Sequence[HostTarget]) -> None:
        """The slice has these workers now; writes what was asked for before and is not so yet."""
        ...

    def remove(self, slice_name: str) -> None: ...


class IdSource(Protocol):
    """Unique ids; seedable in tests."""

    def new_id(self) -> str:
        """A sortable, lower-case id valid in a cloud resource name."""
        ...


class RateLimiter(Protocol):
    """The allowance of creates that all commands on this machine share."""

    def take(self) -> float:
        """Takes one create out of the allowance and returns 0, or the seconds to wait before asking again."""
        ...


class SecretResolver(Protocol):
    """Turns a stored secret reference (`env:VAR` or `file:PATH`) into its value, on this machine, now."""

    def resolve(self, reference: str) -> Secret: ...


class KeptLogs(Struct, frozen=True):
    """What is here of the output of one run: bytes, and when the last ones came (epoch seconds)."""

    run_id: str
    size: int
    written_at: float


class RunLogs(Protocol):
    """Output of workers on this machine, one file per worker, attempt and stream; its size is the offset up to
    which it was fetched."""

    def size(self, run_id: str, attempt: int, worker: int, stream: str) -> int: ...

    def set_aside(self, run_id: str) -> None:
        """Makes room for a new run: what is here of another one of that name, whose record was removed, would
        be taken for the beginning of its output."""
        ...

    def append(self, run_id: str, attempt: int, worker: int, stream: str, data: bytes) -> None: ...

    def write(self, run_id: str, attempt: int, worker: int, stream: str, offset: int, data: bytes) -> None:
        """Puts `data` where it belongs: two that fetch the same at once do no harm. Before an offset behind the
        end it leaves zeros."""
        ...

    def read(self, run_id: str, attempt: int, worker: int, stream: str, offset: int, limit: int) -> bytes:
        """What is behind `offset`, at most `limit` bytes."""
        ...

    def tail(self, run_id: str, attempt: int, worker: int, stream: str, limit: int) -> bytes:
        """Its last `limit` bytes; nothing where nothing was fetched."""
        ...

    def path(self, run_id: str, attempt: int, worker: int, stream: str) -> str: ...

    def has(self, run_id: str, attempt: int) -> bool: ...

    def list(self) -> list[KeptLogs]:
        """What is here, by run; also of runs that nobody knows any more."""
        ...

    def remove(self, run_id: str, at: float) -> None:
        """Removes the output of a run, and notes when."""
        ...

    def removed_at(self, run_id: str) -> float | None:
        """When its output was removed; None where it was not, or some came again from the store."""
        ...

    def list_removed(self) -> frozenset[str]:
        """The runs whose output was removed, as `removed_at` says."""
        ...
