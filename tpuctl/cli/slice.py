"""`up`, `down`, `ls`, `status`: slices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.app import invocation
from tpuctl.cli.capacity import NOTHING_SAID, Capacity, read_script, with_capacity
from tpuctl.cli.completing import slice_names
from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.options import AllUsers, Confirm, DryRun, Json, OwnSlice, Quiet, Timeout, Yes
from tpuctl.cli.slice_status import fleet_cells, status_lines
from tpuctl.errors import DeniedError, InterruptedByUserError, TpuctlError, TransientError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.core.acquisition import SliceChoice
    from tpuctl.core.grants import Grant
    from tpuctl.core.records import Limits, SliceRecord, SliceSpec
    from tpuctl.core.wishes import SliceWish

FLEET = (
    Column("name", "NAME", give=2),
    Column("type", "TYPE"),
    Column("zone", "ZONE"),
    Column("tier", "TIER"),
    Column("hosts", "HOSTS", right=True),
    Column("state", "STATE"),
    Column("cloud", "CLOUD", give=3),
    Column("age", "AGE", right=True),
    Column("hour", "$/HOUR", right=True),
    Column("user", "USER", give=1),
)


@with_capacity
def up(
    ctx: typer.Context,
    accelerator: Annotated[
        str | None,
        typer.Argument(
            metavar="[ACCELERATOR]",
            help="Accelerator type, such as v4-32; v4 with --topology.",
            autocompletion=slice_names,
        ),
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name; the type if left out.")] = None,
    capacity: Capacity = NOTHING_SAID,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Ask for it and return at once.")] = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Bring a slice up and wait until every host answers.

    Creates the request, waits for capacity, then checks every host over SSH. The same command again means the
    same slice and changes nothing once it is ready.
    """
    with open_context(ctx) as context:
        began = context.store.now()
        record = wanted_slice(context, capacity.wish(accelerator), name, dry_run=dry_run)
        if record is None:
            return
        invocation(ctx).if_interrupted = (
            f"slice {record.name} is still wanted and may cost money: `tpuctl up {record.name}` waits on, "
            f"`tpuctl down {record.name}` gives it up"
        )

        def ask_again() -> None:
            wanted_slice(context, capacity.wish(accelerator), name, dry_run=False)

        try:
            _bring_up(context, record, ask_again, wait=not no_wait, timeout=timeout)
        except (DeniedError, TransientError) as error:
            raise after_refused_login(context, record, error, first=record.created_at >= began) from error


def after_refused_login(
    context: AppContext, record: SliceRecord, error: TpuctlError, *, first: bool
) -> TpuctlError:
    """What became of the request when credentials were refused, or when nothing answered: a command that failed
    before anything was sent leaves nothing that a later pass would create; what was wanted stays wanted."""
    from tpuctl.workflows.intents import withdraw_if_unsent

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
    from tpuctl.core.acquisition import SliceChoice, name_of
    from tpuctl.core.naming import check_slice_name
    from tpuctl.core.wishes import limits_of
    from tpuctl.workflows.documents import find_slice
    from tpuctl.workflows.intents import check_same, is_wanted, request_slice
    from tpuctl.workflows.payment import list_grants
    from tpuctl.workflows.quotas import check_side_quotas

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
    from tpuctl.core.records import Desired

    return known.desired is Desired.UP and known.owner == context.user


def _warn_of_version(context: AppContext, spec: SliceSpec) -> None:
    from tpuctl.core.acquisition import version_doubt
    from tpuctl.resources import load_accelerators

    found = load_accelerators().types.get(spec.accelerator_type)  # None for a shape of one's own
    doubt = "" if found is None else version_doubt(found, spec.runtime_version)
    if doubt:
        context.console.warn(doubt)


def settle_slice(
    context: AppContext, wish: SliceWish, grants: Sequence[Grant], script: bytes | None
) -> SliceChoice:
    """What a wish amounts to. Raises UsageError, with the key it is about in its details."""
    from tpuctl.core.wishes import slice_choice
    from tpuctl.resources import load_accelerators
    from tpuctl.workflows.offers import Named, beyond_tables

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
        from tpuctl.resources import load_accelerators
        from tpuctl.workflows.payment import quote

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
        from tpuctl.core.acquisition import internal_note

        if self._script is not None:
            self._context.store.put_blob(self._script)
        self._context.console.say(self.line)
        if not self.places[0].external_ips:
            self._context.console.say(internal_note(self.places[0]))


def _known_slice(context: AppContext, wish: SliceWish, name: str | None) -> SliceRecord | None:
    """The slice that `up NAME` means, as it was asked for before; None for an accelerator type.

    Raises UsageError when flags would make it another one.
    """
    from tpuctl.core.wishes import SliceWish
    from tpuctl.resources import load_accelerators
    from tpuctl.workflows.documents import find_slice

    if name is not None or wish.accelerator is None or load_accelerators().find(wish.accelerator) is not None:
        return None
    loaded = find_slice(context, wish.accelerator)
    if loaded is None:
        return None
    again = SliceWish(
        accelerator=wish.accelerator, pay=wish.pay, ttl=wish.ttl, stop_when_idle=wish.stop_when_idle
    )
    if wish != again:
        record = loaded.record
        raise UsageError(
            f"{record.name} is a slice, which comes up as it was asked for before",
            hint=f"tpuctl up {record.name}; with flags: tpuctl up {record.spec.accelerator_type} {record.name}",
        )
    return loaded.record


def _show_dry_run(context: AppContext, name: str, spec: SliceSpec, line: str, limits: Limits) -> None:
    from tpuctl.core.codec import to_data
    from tpuctl.core.idle import describe_limits

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


def _bring_up(
    context: AppContext,
    record: SliceRecord,
    ask_again: Callable[[], None],
    *,
    wait: bool,
    timeout: float | None,
) -> None:
    """`ask_again` writes the request down once more, for a slice that was removed behind its record's back."""
    from tpuctl.workflows.report import slice_status
    from tpuctl.workflows.slices import advance_slice, renew_if_removed, wait_for_slice

    deadline = None if timeout is None else context.clock.now() + timeout
    renew_if_removed(context, record.name, ask_again, patient=wait, deadline=deadline)
    if wait:
        wait_for_slice(context, record.name, deadline=deadline)
    else:
        from tpuctl.cli.follow import warn_if_unwatched

        advance_slice(context, record.name)
        warn_if_unwatched(context, f"slice {record.name}", detached=True)
    status_now = slice_status(context, record.name)
    if context.console.json_mode:
        context.console.data(status_now)
    else:
        context.console.say(f"{record.name} is {status_now['state']}: {status_now['cloud']}")


def down(
    ctx: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Names of the slices.", autocompletion=slice_names)
    ],
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Ask for the deletion and return.")] = False,
    timeout: Timeout = None,
    all_users: AllUsers = False,
    confirm_project: Confirm = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Delete slices, and wait until nothing is left in the cloud.

    Stops their runs and fetches the logs first.
    """
    from tpuctl.core.plan import waiting_words
    from tpuctl.workflows.documents import get_slice
    from tpuctl.workflows.fleet import take_down
    from tpuctl.workflows.ownership import check_owner
    from tpuctl.workflows.slices import ask_for_deletion, wait_until_gone

    with open_context(ctx) as context:
        records = [get_slice(context, name).record for name in names]
        check_owner(context, records, all_users=all_users)
        if all_users and not dry_run:
            confirm_all_users(context, confirm_project)
        if dry_run:
            _show_what_goes(context, records)
            return
        if not yes:
            confirm(context, _what_goes(context, names), yes=False)
        again = f"tpuctl down {' '.join(names)} --yes"
        context.shared.if_interrupted = (
            f"what is being deleted goes on: `{again}` waits for it and does the rest"
        )
        deadline = None if timeout is None else context.clock.now() + timeout
        left = {}
        for name in names:  # all are asked for before one is waited for
            take_down(context, name, wait=False, deadline=deadline, all_users=all_users)
            left[name] = ask_for_deletion(context, name, deadline=deadline)
        results = []
        for name, waits_for in left.items():
            if not no_wait:
                wait_until_gone(context, name, deadline=deadline)
            gone = not (no_wait and waits_for)
            context.console.say(f"{name}: {'gone' if gone else waiting_words(waits_for)}")
            results.append({"name": name, "gone": gone})
        if context.console.json_mode:
            context.console.data(results[0] if len(results) == 1 else results)


def _live_runs(context: AppContext, names: Sequence[str]) -> dict[str, list[str]]:
    """The runs that are not over, by slice."""
    from tpuctl.workflows.documents import readable_runs

    found: dict[str, list[str]] = {name: [] for name in names}
    for run in readable_runs(context)[0]:
        if run.slice_name in found and not run.state.final:
            found[run.slice_name].append(run.id)
    return found


def _what_goes(context: AppContext, names: Sequence[str]) -> str:
    """The question before slices are taken down, with the runs that would be lost."""
    whose = "its" if len(names) == 1 else "their"
    runs = [run for each in _live_runs(context, names).values() for run in each]
    stopped = f", and stop run{'s' if len(runs) > 1 else ''} {', '.join(runs)}" if runs else ""
    return f"delete {', '.join(names)} and everything on {whose} hosts{stopped}?"


def _show_what_goes(context: AppContext, records: list[SliceRecord]) -> None:
    runs = _live_runs(context, [record.name for record in records])
    rows = [
        {
            "name": record.name,
            "node": record.incarnation.cloud_name if record.incarnation else "",
            "zone": record.spec.zone,
            "state": str(record.state),
            "stops": ", ".join(runs[record.name]),
        }
        for record in records
    ]
    columns = (
        Column("name", "WOULD DELETE"),
        Column("node", "NODE"),
        Column("zone", "ZONE"),
        Column("state", "STATE"),
        Column("stops", "STOPS RUN", give=1),
    )
    context.console.table(rows, columns)


def confirm(context: AppContext, question: str, *, yes: bool) -> None:
    """Asks on a terminal; without one, refuses unless --yes was given."""
    if yes:
        return
    if context.console.json_mode or not context.console.interactive:
        raise UsageError(f"nobody is here to answer: {question}", hint="add --yes")
    if not typer.confirm(f"{context.console.mark}{question}", err=True):
        raise InterruptedByUserError("declined; nothing was changed")


def confirm_all_users(context: AppContext, typed: str | None) -> None:
    """Other people's work is at stake: the project id is typed, or said with --confirm. Raises UsageError."""
    project = context.config.require_project()
    if typed is None:
        if context.console.json_mode or not context.console.interactive:
            raise UsageError(
                f"--all-users acts on everybody's TPUs in {project}: that has to be said twice",
                hint=f"--all-users --confirm {project}",
            )
        question = f"{context.console.mark}this acts on other people's TPUs; type the project id to go on"
        typed = str(typer.prompt(question, err=True))
    if typed.strip() != project:
        raise UsageError(f"{typed!r} is not this project; nothing was changed", hint="tpuctl config show")


def ls(
    ctx: typer.Context,
    mine: Annotated[bool, typer.Option("--mine", help="Only your own.")] = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """List the slices and all other TPUs of the project.

    STATE is what the store has, CLOUD what the API shows now.
    """
    from tpuctl.core.naming import label_value
    from tpuctl.core.standing import fold_remarks
    from tpuctl.workflows.pausing import paused_why
    from tpuctl.workflows.report import fleet_rows

    with open_context(ctx) as context:
        rows, unread = fleet_rows(context)
        if mine:
            rows = [row for row in rows if row["user"] in (context.user, label_value(context.user))]
        if unread:
            context.console.caveat(f"not read: {', '.join(unread)}; what is there is unknown")
        shown = rows if context.console.json_mode else [fleet_cells(row, context.clock.now()) for row in rows]
        alone = all(row["user"] == context.user for row in rows)
        columns = FLEET[:-1] if alone else FLEET
        context.console.table(shown, columns, empty="no slices; bring one up with `tpuctl up v4-8 --spot`")
        paused = paused_why(context)
        if paused:
            context.console.warn(f"{paused}; `tpuctl resume` lifts that")
        for text in fold_remarks([(row["name"], row["remark"]) for row in rows if row["remark"]]):
            context.console.warn(text)
        for state, advice in _ADVICE.items():
            count = sum(row["state"] == state for row in rows)
            if count:
                context.console.say(f"{count} {state}: {advice}")


_ADVICE = {
    "unmanaged": "made without tpuctl; `tpuctl adopt NAME` takes one over",
    "looks-like-ours": "named like a slice of ours, without labels; `tpuctl adopt NAME` takes it over",
    "unwanted": "no slice wants it; `tpuctl reap` deletes it",
}


def status(ctx: typer.Context, name: OwnSlice = None, json: Json = False) -> None:  # noqa: ARG001 - acts through its callback
    """Show one slice in full."""
    from tpuctl.workflows.costs import slice_cost
    from tpuctl.workflows.execute import resolve_slice
    from tpuctl.workflows.report import slice_status

    with open_context(ctx) as context:
        record = resolve_slice(context, name)
        facts = {**slice_status(context, record.name), **slice_cost(context, record)}
        if context.console.json_mode:
            context.console.data(facts)
            return
        workers = facts["workers"]
        context.console.fields(status_lines(facts, context.clock.now()))
        columns = (
            Column("worker", "WORKER", right=True),
            Column("address", "ADDRESS"),
            Column("hostname", "HOST"),
        )
        if workers:
            context.console.line()
            context.console.table(workers, columns)
        if facts["remark"]:
            context.console.warn(facts["remark"])
