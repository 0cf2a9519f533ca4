"""`grant`: what may be used without paying."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.lib.input_files import TEXT_LIMIT, read_file
from tpuctl.lib.options import Option, argument
from tpuctl.lib.text import counted

if TYPE_CHECKING:
    from tpuctl.money.grants import Grant

COLUMNS = (
    Column("zone", "ZONE", whole=True),
    Column("tier", "TIER"),
    Column("generation", "GENERATION"),
    Column("chips", "CHIPS", right=True),
    Column("ends", "LAST DAY"),
    Column("at_end", "THEN"),
)
Zone = Annotated[str, argument("ZONE", "Such as us-central2-b.")]
Tier = Annotated[str, argument("TIER", "spot, preemptible, on-demand or reserved.")]
Generation = Annotated[str, argument("GENERATION", "Such as v4 or v6e.")]
AtEnd = Annotated[str, Option("Its slices at the end: keep (they cost money), or down.", metavar="WHAT")]
Ends = Annotated[str | None, Option("Last day of the grant, YYYY-MM-DD.", metavar="DATE")]


def show(context: AppContext) -> None:
    """List the grants."""
    from tpuctl.lib.codec import to_data
    from tpuctl.money.coverage import list_grants

    rows = [to_data(found) for found in list_grants(context)]
    context.console.table(rows, COLUMNS, empty="no grants: creates need --pay")


def import_(
    context: AppContext,
    file: Annotated[str, argument("FILE", "The letter as text; - reads stdin.")],
    ends: Ends = None,
    at_end: AtEnd = "keep",
    dry_run: DryRun = False,
) -> None:
    """Add the grants of a TPU Research Cloud letter.

    Lines such as `64 spot Cloud TPU v6e chips in zone us-east1-d` are found anywhere in the text. `for 30 days`
    is counted from today.
    """
    from msgspec.structs import replace

    from tpuctl.lib.codec import to_data
    from tpuctl.model.shipped_files import load_accelerators
    from tpuctl.money.coverage import keep_grant
    from tpuctl.money.grants import AtEnd as AtEndChoice
    from tpuctl.money.letters import days_granted, parse_trc_letter, to_grants, unread_lines

    last_day = _check_day(ends)
    letter, types = _read(file), load_accelerators().types
    days = days_granted(letter) if last_day is None else None
    grants = to_grants(parse_trc_letter(letter, types, datetime.now(UTC).date()))
    if not grants:
        raise UsageError(
            f"no grant found in {file}",
            hint="a line looks like: 64 spot Cloud TPU v6e chips in zone us-east1-d",
        )
    then = _check_at_end(at_end)
    wanted = [replace(found, ends=last_day or found.ends, at_end=then) for found in grants]
    before = _known(context)
    if not dry_run:
        for found in wanted:
            keep_grant(context, found)
    context.console.table([to_data(found) for found in wanted], COLUMNS)
    for found in wanted:
        _print_changes(context, before.get(found.name), found, dry_run=dry_run)
    for line in unread_lines(letter, types):
        hint = "record it with `tpuctl grant add CHIPS TIER GENERATION ZONE`"
        context.console.caveat(f"not understood: {line!r}; {hint}")
    if days is not None:
        context.console.caveat(
            f"the letter says for {days} days: counted from today; --ends YYYY-MM-DD gives another last day"
        )
    if any(found.ends is None for found in wanted):
        context.console.say("the letter gives no last day; add --ends YYYY-MM-DD")
    if any(found.at_end is AtEndChoice.KEEP for found in wanted):
        context.console.say(
            "THEN keep: slices go on after the last day and cost money; `--at-end down` takes them down"
        )


def add(
    context: AppContext,
    chips: Annotated[int, argument("CHIPS", "How many chips.", minimum=1)],
    tier: Tier,
    generation: Generation,
    zone: Zone,
    ends: Ends = None,
    at_end: AtEnd = "keep",
    dry_run: DryRun = False,
) -> None:
    """Add one grant.

    It replaces the one for the same zone, tier and generation.
    """
    from msgspec.structs import replace

    from tpuctl.lib.names import check_zone_name
    from tpuctl.money.coverage import keep_grant

    found = replace(
        _grant(check_zone_name(zone), tier, generation, chips, _check_day(ends)),
        at_end=_check_at_end(at_end),
    )
    old = _known(context).get(found.name)
    if not dry_run:
        keep_grant(context, found)
    would = "would keep " if dry_run else ""
    context.console.say(f"{would}{_in_words(found)}")
    _print_changes(context, old, found, dry_run=dry_run)


def rm(context: AppContext, tier: Tier, generation: Generation, zone: Zone, dry_run: DryRun = False) -> None:
    """Remove one grant.

    Slices that it covers stay.
    """
    from tpuctl.money.coverage import GRANTS

    name = _grant(zone, tier, generation, 0, None).name
    there = GRANTS.generation(context, name)
    if not there:
        raise NotFoundError(f"no grant for {tier} {generation} in {zone}", hint="tpuctl grant show")
    if not dry_run:
        GRANTS.delete(context, name, there)
    context.console.say(f"{'would remove' if dry_run else 'removed'} {GRANTS.key(name)}")


def _known(context: AppContext) -> dict[str, Grant]:
    from tpuctl.money.coverage import list_grants

    return {found.name: found for found in list_grants(context)}


def _print_changes(context: AppContext, old: Grant | None, found: Grant, *, dry_run: bool) -> None:
    """What the grant takes the place of, and that it covers nothing where its last day is past."""
    if old is not None and old != found:
        context.console.say(f"{'it would replace' if dry_run else 'replaces'} {_in_words(old)}")
    if found.ends is not None and found.ends < date.fromtimestamp(context.store.now()).isoformat():
        context.console.warn(
            f"{found.ends} is past: {found.tier} {found.generation} in {found.zone} is not covered"
        )


def _in_words(grant: Grant) -> str:
    what = counted(grant.chips, f"{grant.tier} {grant.generation} chip")
    return f"{what} in {grant.zone}, until {grant.ends or 'further notice'}"


def _grant(zone: str, tier: str, generation: str, chips: int, ends: str | None) -> Any:
    from tpuctl.model.cloud import Tier as TierName
    from tpuctl.model.shipped_files import load_accelerators
    from tpuctl.money.grants import Grant

    if tier not in set(TierName):
        raise UsageError(f"{tier!r} is not a tier", hint=f"one of {', '.join(TierName)}")
    known = load_accelerators().generations
    if generation not in known:
        raise UsageError(f"no generation called {generation}", hint=f"one of {', '.join(known)}")
    return Grant(zone, TierName(tier), generation, chips, ends)


def _check_at_end(word: str) -> Any:
    from tpuctl.money.grants import AtEnd as Choice

    if word not in set(Choice):
        raise UsageError(f"--at-end {word!r} is not known", hint=f"--at-end {' or '.join(Choice)}")
    return Choice(word)


def _check_day(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise UsageError(f"--ends {text!r} is not a date", hint="--ends 2026-12-31") from error


def _read(file: str) -> str:
    if file == "-":
        text = sys.stdin.buffer.read(TEXT_LIMIT + 1)
        if len(text) > TEXT_LIMIT:
            raise UsageError(f"what stdin holds is larger than {TEXT_LIMIT >> 10} KiB", hint="the letter alone")
        return text.decode("utf-8", "replace")
    try:
        return read_file(Path(file)).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", hint="tpuctl grant import LETTER, or - for stdin"
        ) from error
