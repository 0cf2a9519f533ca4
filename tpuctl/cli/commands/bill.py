"""`bill`: everything in the project that can cost money."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.lib.options import Flag, Option

if TYPE_CHECKING:
    from tpuctl.money.bill import Bill, BillLine

EXIT_PAID = 1
EXIT_UNREAD = 3
NOTHING = "nothing found that can cost money"

COLUMNS = (
    Column("kind", "WHAT"),
    Column("name", "NAME", give=2),
    Column("location", "LOCATION", whole=True),
    Column("user", "USER", give=3, drop=2),
    Column("payer", "PAYS"),
    Column("hour", "$/HOUR", right=True),
    Column("month", "$/MONTH", right=True, drop=1),
    Column("detail", "DETAIL", give=4, most=1),
)


def bill(
    context: AppContext,
    receipt: Annotated[
        str | None,
        Option(
            "Also write a receipt: what was read, when and by whom (.yaml or .json).",
            flags=(Flag("--output"), Flag("--receipt")),
            short="-o",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """List everything in the project that can cost money.

    Searches all locations, whoever created it. Exit status 0: nothing costs money. 1: something does. 3: not
    everything could be read.
    """
    from tpuctl.model.shipped_files import load_accelerators, load_other_prices
    from tpuctl.money.bill import with_notes
    from tpuctl.money.bill_report import bill_data, bill_of

    path = None if receipt is None else _check_receipt(receipt)
    catalog, prices = load_accelerators(), load_other_prices()
    unwanted = _unwanted(context)
    found = with_notes(bill_of(context, context.inventory, catalog, prices), unwanted)
    data = bill_data(context, found, context.config.require_project(), catalog, prices)
    if path is not None:
        _write_new(path, data)
        context.console.say(f"receipt written to {path}")
    if context.console.json_mode:
        context.console.data(data)
    else:
        _show(context, found, data)
        for (zone, name), said in unwanted.items():
            context.console.warn(f"{name} in {zone}: {said}")
    if not found.zero:
        from tpuctl.money.bill import Payer

        raise typer.Exit(EXIT_PAID if found.of(Payer.YOU) else EXIT_UNREAD)


def _unwanted(context: AppContext) -> dict[tuple[str, str], str]:
    """TPUs of this user that no slice wants, with what deletes them. The bill itself says what is unread."""
    from tpuctl.inventory.reap import survey
    from tpuctl.inventory.resources import Fate

    try:
        found = survey(context).of(Fate.DELETE)
    except TpuctlError:
        return {}
    return {(each.found.location, each.found.name): f"no slice wants it: {each.command}" for each in found}


def _show(context: AppContext, found: Bill, data: dict[str, Any]) -> None:
    from tpuctl.money.bill import Payer

    console = context.console
    order = (Payer.YOU, Payer.GRANT, Payer.NOBODY)
    rows = [_row(line) for payer in order for line in found.of(payer)]
    nothing = "what could be read holds nothing that can cost money" if found.unread else NOTHING
    console.table(rows, COLUMNS, empty=nothing)
    for each in found.unread:
        console.caveat(f"not read: {each.what}: {each.why}")
    for hint in dict.fromkeys(each.hint for each in found.unread if each.hint):
        console.caveat(f"what was not read may cost money; fix: {hint}")
    if rows:
        console.say(_total(found))
    for used in found.on_clusters:
        price = "no known price" if used.usd_per_hour is None else f"about ${used.usd_per_hour:.2f} per hour"
        cost = f"{price}, paid with the cluster's nodes"
        seen = f"as seen last at {used.changed}; `tpuctl status {used.run}` looks again"
        console.say(f"run {used.run} uses {used.detail}, on {used.cluster}: {cost} ({seen})")
    if found.per_hour:
        console.say(f"prices: TPUs: {data['prices']['tpu']}; others: {data['prices']['other']}")


def _total(found: Bill) -> str:
    from tpuctl.model.prices import HOURS_PER_MONTH
    from tpuctl.money.bill import Payer

    lists = {words: found.of(Payer(payer)) for payer, words in _WORDS.items()}
    counts = [f"{len(lines)} {words}" for words, lines in lists.items() if lines]
    text = ", ".join(counts) or "nothing"
    if found.per_hour:
        text += f"; about ${found.per_hour:.2f} per hour, ${found.per_hour * HOURS_PER_MONTH:.2f} per month"
    if found.unpriced:
        text += f", and {found.unpriced} without a known price"
    return text


_WORDS = {"you": "to be paid", "grant": "covered by a grant", "nobody": "free as it stands"}


def _row(line: BillLine) -> dict[str, Any]:
    from tpuctl.model.prices import HOURS_PER_MONTH
    from tpuctl.money.bill import Payer

    unknown = "" if line.payer is not Payer.YOU else "?"
    known = line.per_hour is not None and line.payer is Payer.YOU
    return {
        "kind": str(line.resource.kind),
        "name": line.resource.name,
        "location": line.resource.location,
        "detail": line.detail,
        "user": line.resource.user,
        "payer": str(line.payer),
        "hour": f"{line.per_hour:.4f}" if known else unknown,
        "month": f"{(line.per_hour or 0) * HOURS_PER_MONTH:.2f}" if known else unknown,
    }


def _check_receipt(name: str) -> Path:
    """A receipt is proof of one moment: an older one is never overwritten. Raises UsageError."""
    from tpuctl.lib.output_files import check_output

    path = Path(name)
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise UsageError(f"-o {name}: the name must end in .yaml or .json", hint="-o bill.yaml")
    return check_output(path, "-o", kind="receipt", overwrite=None)


def _write_new(path: Path, data: dict[str, Any]) -> None:
    from tpuctl.lib.output_files import write_output_text

    if path.suffix == ".json":
        import json

        text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    else:
        import yaml

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    write_output_text(path, "-o", text, fresh=True)
