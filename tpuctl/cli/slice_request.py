"""A slice as asked for on the command line: resolved, offered with its price, and recorded as wanted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tpuctl.cli.context import AppContext
from tpuctl.cli.slice_options import read_script
from tpuctl.errors import TpuctlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.model.records import Limits, SliceRecord, SliceSpec
    from tpuctl.money.grants import Grant
    from tpuctl.slices.options import SliceWish
    from tpuctl.slices.resolve import SliceChoice


def after_refused_login(
    context: AppContext, record: SliceRecord, error: TpuctlError, *, first: bool
) -> TpuctlError:
    """What became of the request when credentials were refused, or when nothing answered: a command that failed
    before anything was sent leaves nothing that a later pass would create; what was wanted stays wanted."""
    from tpuctl.slices.desired import withdraw_if_unsent

    if error.details.get("status") != 401 and not error.details.get("unsent"):
        return error
    if first and withdraw_if_unsent(context, record.name, error.message):
        told = "nothing was asked for; then the same command again"
    else:
        told = f"{record.name} stays wanted; `tpuctl down {record.name}` withdraws it"
    return type(error)(error.message, hint=f"{error.hint}; {told}", details=error.details)


def wanted_slice(
    context: AppContext, wish: SliceWish, name: str | None, *, dry_run: bool, run_id: str | None = None
) -> SliceRecord | None:
    """Checks what was asked and writes it down; None after a dry run."""
    from tpuctl.lib.names import check_slice_name
    from tpuctl.money.coverage import list_grants
    from tpuctl.money.quota_report import check_side_quotas
    from tpuctl.slices.desired import check_same, is_wanted, request_slice
    from tpuctl.slices.options import limits_of
    from tpuctl.slices.resolve import SliceChoice, name_of
    from tpuctl.state.repository import find_slice

    limits = limits_of(wish)
    script = read_script(wish, Path.cwd())
    known = _known_slice(context, wish, name)
    if known is None:
        choice = settle_slice(context, wish, list_grants(context), script)
        chosen = check_slice_name(name or name_of(choice.spec.accelerator_type, choice.spec.slices))
    else:
        choice, chosen = SliceChoice(known.spec, known.wished_zones), known.name
    # Whoever asks again for what is still wanted has agreed to the price before.
    pay = wish.pay or (known is not None and known.pay and _still_wanted(context, known))
    offer = SliceOffer(context, chosen, choice, pay=pay, script=script)
    _warn_of_version(context, choice.spec)
    _ = context.credentials

    def permit() -> None:
        offer.check()
        check_side_quotas(context, chosen, offer.places)

    if dry_run:
        found = find_slice(context, chosen)
        if found is not None and is_wanted(found.record):
            check_same(found.record, choice.spec, choice.zones if len(choice.zones) > 1 else ())
            _show_wanted(context, found.record)
            return None
        permit()
        _show_dry_run(context, chosen, choice.spec, offer.line, limits)
        return None

    def permit_and_say() -> None:
        permit()
        offer.accept()

    return request_slice(
        context,
        chosen,
        choice.spec,
        pay=pay,
        run_id=run_id,
        zones=choice.zones,
        limits=limits,
        permit=permit_and_say,
    )


def _still_wanted(context: AppContext, known: SliceRecord) -> bool:
    """Whether nobody took it down since this user asked for it."""
    from tpuctl.model.records import Desired

    return known.desired is Desired.UP and known.owner == context.user


def _warn_of_version(context: AppContext, spec: SliceSpec) -> None:
    from tpuctl.model.data import load_accelerators
    from tpuctl.slices.resolve import version_doubt

    found = load_accelerators().types.get(spec.accelerator_type)  # None for a shape of one's own
    doubt = "" if found is None else version_doubt(found, spec.runtime_version)
    if doubt:
        context.console.warn(doubt)


def settle_slice(
    context: AppContext, wish: SliceWish, grants: Sequence[Grant], script: bytes | None
) -> SliceChoice:
    """What a wish amounts to. Raises UsageError, with the key it is about in its details."""
    from tpuctl.model.data import load_accelerators
    from tpuctl.slices.offers import Named, beyond_tables
    from tpuctl.slices.options import slice_choice

    now, config = context.clock.now(), context.config
    flex = (wish.tier or config.tier) == "flex-start"
    named = Named(wish.accelerator or config.accelerator or "", wish.topology, flex=flex)
    catalog, doubts = beyond_tables(context, load_accelerators(), named, wish.zone or config.zone, grants)
    choice = slice_choice(wish, config, catalog, grants, now=now, script=script)
    for doubt in doubts:
        context.console.warn(doubt)
    return choice


class SliceOffer:
    """What a slice costs in each place where it may be. `beside` are slices about to be wanted, too."""

    def __init__(
        self,
        context: AppContext,
        name: str,
        choice: SliceChoice,
        *,
        pay: bool,
        script: bytes | None,
        beside: Mapping[str, SliceSpec] | None = None,
    ) -> None:
        from tpuctl.model.data import load_accelerators
        from tpuctl.money.coverage import quote

        self._context = context
        self._pay = pay
        self._script = script
        self.places = [replace(choice.spec, zone=zone) for zone in choice.zones]
        catalog = load_accelerators()
        self._quotes = [quote(context, catalog, name, place, beside) for place in self.places]

    @property
    def line(self) -> str:
        return "\n  or ".join(quote.line for quote in self._quotes)

    def check(self) -> None:
        """Raises NotCoveredError unless grants cover every place, or the user agreed to pay."""
        for quote in self._quotes:
            quote.permit(pay=self._pay)()

    def accept(self) -> None:
        """Keeps what the request refers to, and says what it costs and needs."""
        from tpuctl.slices.resolve import internal_note

        if self._script is not None:
            self._context.store.put_blob(self._script)
        self._context.console.say(self.line)
        if not self.places[0].external_ips:
            self._context.console.say(internal_note(self.places[0]))


def _known_slice(context: AppContext, wish: SliceWish, name: str | None) -> SliceRecord | None:
    """The slice that `up NAME` means, as it was asked for before; None for an accelerator type.

    Raises UsageError when flags would make it another one.
    """
    from tpuctl.model.data import load_accelerators
    from tpuctl.model.records import Desired
    from tpuctl.slices.options import SliceWish
    from tpuctl.state.repository import find_slice

    if name is not None or wish.accelerator is None:
        return None
    loaded = find_slice(context, wish.accelerator)
    if loaded is None:
        return None
    again = SliceWish(
        accelerator=wish.accelerator, pay=wish.pay, ttl=wish.ttl, stop_when_idle=wish.stop_when_idle
    )
    if load_accelerators().find(wish.accelerator) is not None:  # a slice that is called like its type
        return loaded.record if wish == again and loaded.record.desired is Desired.UP else None
    if wish != again:
        record = loaded.record
        raise UsageError(
            f"{record.name} is a slice, which comes up as it was asked for before",
            hint=f"tpuctl up {record.name}; with flags: tpuctl up {record.spec.accelerator_type} {record.name}",
        )
    return loaded.record


def _show_dry_run(context: AppContext, name: str, spec: SliceSpec, line: str, limits: Limits) -> None:
    from tpuctl.lib.codec import to_data
    from tpuctl.slices.lifetime import describe_limits

    if context.console.json_mode:
        facts = {"name": name, "spec": to_data(spec), "limits": to_data(limits), "summary": line}
        context.console.data({"dry_run": True, **facts})
        return
    ends = describe_limits(limits)
    context.console.sentence(f"would ask for {line}{f'; it goes {ends}' if ends else ''}")


def _show_wanted(context: AppContext, record: SliceRecord) -> None:
    """A slice that is there, or on its way: nothing more would be asked for, unless it was lost meanwhile."""
    if context.console.json_mode:
        context.console.data({"dry_run": True, "name": record.name, "state": str(record.state), "wanted": True})
        return
    told = f"{record.name} is wanted already and {record.state}: would wait until it is ready"
    context.console.sentence(f"{told}")
