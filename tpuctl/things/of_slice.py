"""What a slice asks of its hosts: one protocol for all kinds of things, which are rows of `slices/things.py`.

A domain (`disks`, `mounts`, `envs`) says by it what a user may ask, what changes by that, what hosts need for
it and how it is told of later. `slices` knows no kind: it takes the rows in their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from tpuctl.config.settings import Config
from tpuctl.engine.services import Services
from tpuctl.model.records import SliceRecord
from tpuctl.model.refs import EnvironmentRef
from tpuctl.model.slice_spec import SliceRequest, SliceSpec

if TYPE_CHECKING:
    from tpuctl.hosts.facts import FactsReply
    from tpuctl.hosts.provision import Kind
    from tpuctl.things.driver import Rows

    class Revisitable(Kind, Protocol):
        """What hosts may lose while they live."""

        @property
        def column(self) -> str:
            """Its column in the host's row of a manifest."""
            ...

        def promise(self, row: Mapping[str, str]) -> Mapping[str, Any]:
            """What a host whose `row` says that it is there has to have until a program starts."""
            ...

        def trouble(self, facts: FactsReply) -> str:
            """What is wrong with it on this host, in words; empty where all is as asked."""
            ...


Specs = tuple[SliceSpec, ...]
"""A slice as it is wanted, in each zone in which it may be."""


class Asked(Struct, frozen=True):
    """What a user asks of the slice `name`, which may be there: then it is `known`. With `fleet`,
    that file says all."""

    request: SliceRequest
    config: Config
    name: str
    known: SliceRecord | None = None
    fleet: str = ""
    environment: EnvironmentRef | None = None
    """What the name of an environment stands for."""


class ThingChange(Struct, frozen=True):
    """What a slice is to have otherwise: `value` is its field of the spec from now on. `names` are for a
    journal, `said` is what will be on hosts, and `told` what a fleet file has that the slice has not. `adds`:
    hosts have to get something."""

    field: str
    option: str
    value: Any
    names: str
    said: str
    told: str
    adds: bool = True


class ThingOfSlice(ABC):
    """One kind of thing, as slices ask for it; it is called where a slice has it, or is to have it."""

    @abstractmethod
    def resolve(self, services: Services, asked: Asked, specs: Specs) -> Specs:
        """The specifications with what is asked, beside what the slice has. Raises UsageError."""

    @abstractmethod
    def change(self, known: SliceSpec, wanted: SliceSpec) -> ThingChange | None:
        """What becomes another one when a slice is wanted so, if anything. What is not said stays. Pure."""

    @abstractmethod
    def kinds(self, services: Services, record: SliceRecord, asked_by: str) -> Sequence[Kind]:
        """What is asked of each host. `asked_by` names who asks: failures of others are not its own."""

    def attach(self, services: Services, record: SliceRecord, deadline: float) -> None:
        """What the cloud has to do before hosts can have it, if anything. Raises PendingError while that goes
        on, TpuctlError for what only a person can change."""
        del services, record, deadline

    def reached(self, services: Services, record: SliceRecord, rows: Rows) -> None:
        """Its hosts say in `rows` that they have it."""
        del services, record, rows

    def lost(self, services: Services, record: SliceRecord) -> Collection[str]:
        """Of what it stands for what is gone for ever, though hosts may not see it."""
        del services, record
        return ()

    def manifest(self, services: Services, record: SliceRecord, rows: Rows) -> list[dict[str, Any]]:
        """What the manifest of a run says of it; `rows` is what was seen on the hosts."""
        del services, record, rows
        return []
