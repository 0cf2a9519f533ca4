"""Bring a slice up: resolve the request, say its price, write it down, wait until every host answers.

`up`, `run --up` and `apply` share this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tpuctl.config.settings import Config
from tpuctl.engine.events import Note, Warn
from tpuctl.engine.services import Services
from tpuctl.errors import DeniedError, NotFoundError, TpuctlError, TransientError, UsageError
from tpuctl.lib.input_files import read_file
from tpuctl.lib.names import check_slice_name
from tpuctl.lib.options import registry
from tpuctl.model.records import Desired, SliceRecord, SliceState
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceRequest, SliceSpec
from tpuctl.money.coverage import Quote, list_grants, quote
from tpuctl.money.grants import Grant
from tpuctl.money.quota_report import check_side_quotas
from tpuctl.slices.desired import check_same, is_wanted, request_slice, withdraw_if_unsent
from tpuctl.slices.offers import Named, beyond_tables
from tpuctl.slices.resolve import (
    WantedSlice,
    api_doubt,
    internal_note,
    name_of,
    resolve_limits,
    resolve_request,
    split_types,
    version_doubt,
)
from tpuctl.slices.things import find_changes, resolve_things
from tpuctl.state.repository import find_slice, get_slice
from tpuctl.things.of_slice import Asked

if TYPE_CHECKING:
    from tpuctl.envs.pinned import PinnedEnvironment

NO_ENVIRONMENT = "none"
"""Asks that a slice has no environment any more, where none of another name means that it stays as it is."""

_STEPS_TO_REQUEST = 5
"""A slice whose TPU is gone gets a new number first, and a later step sends the request."""


def resolve_wanted(
    services: Services,
    config: Config,
    request: SliceRequest,
    name: str | None,
    directory: Path,
    grants: Sequence[Grant] | None = None,
    fleet: str = "",
) -> WantedSlice:
    """The slice that a request comes to. Without a `name` it may be one that is there, by its name in the place
    of the accelerator. The path of a startup script is relative to `directory`; its environment is looked for
    from there. `fleet` names the fleet file that it stands in, if it does.

    Raises UsageError, with the field it is about in its details.
    """
    limits = resolve_limits(request)
    script = _read_script(request, directory)
    environment, without = _read_environment(config, request, directory)
    known = _known_slice(services, request, name)
    doubts: Sequence[str] = ()
    if known is not None:
        # Whoever requests again what is still wanted has agreed to the price before.
        agreed = known.pay and known.desired is Desired.UP and known.owner == services.user
        specs = tuple(replace(spec, **dict.fromkeys(without)) for spec in known.requested_specs)
        chosen, agreed, script = known.name, request.pay or agreed, None
    else:
        grants = list_grants(services) if grants is None else grants
        flex = (request.tier or config.tier) == "flex-start"
        named = Named(request.accelerator or config.accelerator or "", request.topology, flex, request.api)
        zones = request.zone or config.zone
        catalog = load_accelerators()
        if len(split_types(named.accelerator)) == 1:
            catalog, doubts = beyond_tables(services, catalog, named, zones, grants)
        specs = resolve_request(request, config, catalog, grants, now=services.clock.now(), script=script)
        chosen = check_slice_name(name or name_of([spec.accelerator_type for spec in specs], specs[0].slices))
        agreed = request.pay
    stored = find_slice(services, chosen)
    there = stored.record if stored is not None and stored.record.state is not SliceState.GONE else None
    if environment is not None:
        from tpuctl.envs.load import check_environment

        for kind in dict.fromkeys(spec.accelerator_type for spec in specs):
            check_environment(services, environment, kind)
    ref = environment.ref if environment is not None else None
    asked = Asked(request, config, chosen, there, fleet, ref)
    specs = resolve_things(services, asked, specs)
    for doubt in doubts:
        services.emit(Warn("", doubt))
    return WantedSlice(chosen, specs, agreed, script, limits, environment, config.gcsfuse, without)


def _read_environment(
    config: Config, request: SliceRequest, directory: Path
) -> tuple[PinnedEnvironment | None, tuple[str, ...]]:
    """The environment that is asked for, and the fields of what is to be there no more. Raises UsageError,
    BadManifestError."""
    if request.env is None:
        return None, ()
    if request.env == NO_ENVIRONMENT:
        return None, ("env",)
    from tpuctl.envs.load import load_environment

    try:
        return load_environment(config, request.env, directory), ()
    except NotFoundError as error:
        raise UsageError.of("env", error.message, error.hint) from error


def _known_slice(services: Services, request: SliceRequest, name: str | None) -> SliceRecord | None:
    """The slice that `up NAME` means, as it was requested before; None for an accelerator type.

    Raises UsageError when flags would make it another one.
    """
    word = request.accelerator
    if name is not None or word is None:
        return None
    stored = find_slice(services, word)
    if stored is None:
        return None
    in_place = [name for name, option in registry(SliceRequest).items() if option.in_place]
    again = SliceRequest(accelerator=word, **{name: getattr(request, name) for name in in_place})
    if load_accelerators().find(word) is not None:  # a slice that is called like its type
        return stored.record if request == again and stored.record.desired is Desired.UP else None
    if request != again:
        record = stored.record
        raise UsageError(
            f"{record.name} is a slice, which comes up as it was asked for before",
            hint=f"tpuctl up {record.name}; with flags: tpuctl up {record.spec.accelerator_type} {record.name}",
        )
    return stored.record


def _read_script(request: SliceRequest, directory: Path) -> bytes | None:
    if request.startup_script is None:
        return None
    try:
        return read_file(directory / Path(request.startup_script).expanduser())
    except (OSError, RuntimeError) as error:  # RuntimeError: ~nobody
        raise UsageError.of(
            "startup_script",
            f"--startup-script {request.startup_script}: {getattr(error, 'strerror', None) or error}",
            "the path of a script on this machine",
        ) from error


class Price:
    """What a slice costs in each zone in which it may be. `beside` are slices about to be wanted, too."""

    def __init__(
        self, services: Services, wanted: WantedSlice, beside: Mapping[str, SliceSpec] | None = None
    ) -> None:
        catalog = load_accelerators()
        self._pay = wanted.pay
        self._or = "\n  and at the same time " if wanted.spec.race else "\n  or "
        self._quotes: list[Quote] = [
            quote(services, catalog, wanted.name, spec, {**(beside or {}), **_asked_with(wanted, spec)})
            for spec in wanted.specs
        ]

    @property
    def line(self) -> str:
        return self._or.join(each.line for each in self._quotes)

    @property
    def uncovered(self) -> str:
        """Why no grant covers it; empty where grants cover every zone, or the user agreed to pay."""
        reasons = [each.coverage.reason for each in self._quotes if not each.coverage.covered]
        return reasons[0] if reasons and not self._pay else ""

    def check(self) -> None:
        """Raises NotCoveredError unless grants cover every zone, or the user agreed to pay."""
        for each in self._quotes:
            each.check(pay=self._pay)


def _asked_with(wanted: WantedSlice, spec: SliceSpec) -> Mapping[str, SliceSpec]:
    """The other places of a race, which are asked for at the same time: two types may draw on one grant."""
    others = [each for each in wanted.specs if each is not spec] if spec.race else []
    return {f"{wanted.name} as {each.accelerator_type} in {each.zone}": each for each in others}


def preview_slice(services: Services, wanted: WantedSlice) -> SliceRecord | Price | str:
    """The slice where it is wanted already, or what would be new on its hosts, in words; else what a request
    would cost.

    Raises as `request_wanted` does, though not for what nobody agreed to pay, and changes nothing.
    """
    _warn_of_version(services, wanted.spec)
    found = find_slice(services, wanted.name)
    if found is not None and is_wanted(found.record):
        check_same(found.record, wanted.specs)
        changes = find_changes(found.record.spec, wanted.spec, wanted.without)
        if changes:
            return f"{' and '.join(each.said for each in changes)} on the hosts of {wanted.name}"
        return found.record
    price = Price(services, wanted)
    check_side_quotas(services, wanted.name, [[spec] for spec in wanted.specs])
    return price


def request_wanted(
    services: Services,
    wanted: WantedSlice,
    *,
    run_id: str | None = None,
    fleet: str = "",
    sweep: str = "",
    quotas: bool = True,
) -> SliceRecord:
    """Writes down that a slice is wanted, once it is known who pays and that the quotas allow it.

    Raises NotCoveredError, QuotaError, or as `request_slice` does. `quotas` False: they were compared before.
    """
    _warn_of_version(services, wanted.spec)

    def admit() -> None:
        price = Price(services, wanted)
        price.check()
        if quotas:
            check_side_quotas(services, wanted.name, [[spec] for spec in wanted.specs])
        if wanted.script is not None:
            services.store.put_blob(wanted.script)
        store_for_hosts(services, wanted)
        services.emit(Note("", price.line))
        if not wanted.spec.external_ips:
            services.emit(Note("", internal_note(wanted.spec)))

    return request_slice(
        services,
        wanted.name,
        wanted.spec,
        pay=wanted.pay,
        run_id=run_id,
        zones=wanted.zones,
        race_specs=wanted.race_specs,
        fleet=fleet,
        sweep=sweep,
        limits=wanted.limits,
        admit=admit,
        bring=lambda: store_for_hosts(services, wanted),
        without=wanted.without,
    )


def store_for_hosts(services: Services, wanted: WantedSlice) -> None:
    """Brings what its hosts will get to where they get it."""
    if wanted.environment is not None:
        from tpuctl.envs.wheelhouse import store_environment

        store_environment(services, wanted.environment)
    if wanted.spec.mounts and wanted.gcsfuse is not None:
        from tpuctl.mounts.follow import store_program

        store_program(services, wanted.spec.mounts, wanted.gcsfuse)


def _warn_of_version(services: Services, spec: SliceSpec) -> None:
    found = load_accelerators().types.get(spec.accelerator_type)  # None for a shape of one's own
    if found is None:
        return
    for doubt in (api_doubt(spec, found), version_doubt(found.of_api(spec.api), spec.runtime_version)):
        if doubt:
            services.emit(Warn("", doubt))


def bring_up(
    services: Services, wanted: WantedSlice, *, since: float, wait: bool, deadline: float | None
) -> None:
    """Waits for a requested slice until every host answers, or with `wait` False until its request was sent.

    `since` is when this command began, in the store's time. Raises as `converge` does.
    """
    from tpuctl.slices.reconcile import renew_if_removed, wait_for_slice  # which brings all steps of slices

    name = wanted.name
    record = get_slice(services, name).record
    try:
        renew_if_removed(
            services, name, lambda: request_wanted(services, wanted), patient=wait, deadline=deadline
        )
        if wait:
            wait_for_slice(services, name, deadline=deadline)
        else:
            _send_request(services, name)
    except (DeniedError, TransientError) as error:
        raise after_refused_login(services, record, error, first=record.created_at >= since) from error


def _send_request(services: Services, name: str) -> None:
    from tpuctl.slices.reconcile import advance_slice

    for _ in range(_STEPS_TO_REQUEST):
        outcome, _ = advance_slice(services, name)
        state = get_slice(services, name).record.state
        if not outcome.acted or state not in {SliceState.REQUESTED, SliceState.LOST}:
            return


def after_refused_login(
    services: Services, record: SliceRecord, error: TpuctlError, *, first: bool
) -> TpuctlError:
    """What became of the request when credentials were refused, or when nothing answered: a command that failed
    before anything was sent leaves nothing that a later pass would create; what was wanted stays wanted.

    `first`: this command made the record.
    """
    if error.details.get("status") != 401 and not error.details.get("unsent"):
        return error
    if first and withdraw_if_unsent(services, record.name, error.message):
        rest = "nothing was asked for; then the same command again"
    else:
        rest = f"{record.name} stays wanted; `tpuctl down {record.name}` withdraws it"
    return type(error)(error.message, hint=f"{error.hint}; {rest}", details=error.details)
