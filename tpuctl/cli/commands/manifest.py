"""`tpuctl manifest`: the record of a run."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.cli.completion import run_ids
from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import Overwrite
from tpuctl.errors import NotFoundError, TpuctlError, UsageError
from tpuctl.lib.options import Flag, Option, argument
from tpuctl.lib.text import counted

if TYPE_CHECKING:
    from tpuctl.model.records import RunRecord

Source = Annotated[
    str, argument("[RUN]", "Id of the run, or a file with a manifest; the newest run if left out.")
]


class ManifestFormat(StrEnum):
    """What `export` writes."""

    BUNDLE = "bundle"
    SLSA = "slsa"
    MLFLOW = "mlflow"
    ROCRATE = "rocrate"


DIFFERENCES = (
    Column("section", "SECTION"),
    Column("key", "KEY", give=1),
    Column("left", "", give=2),
    Column("right", "", give=2),
)


def show(
    context: AppContext,
    source: Source = "last",
    attempt: Annotated[int | None, Option("With this attempt alone.", metavar="N")] = None,
) -> None:
    """Show what ran, where, with which versions, and how it ended.

    `show` may be left out. docs/tasks/manifests.md says what is in it; manifests/run.schema.json is its schema.
    """
    from tpuctl.provenance.parts import load_source

    found, record = load_source(context, source)
    if attempt is not None:
        rows = [row for row in found["attempts"] if row["number"] == attempt]
        if not rows:
            raise _no_attempt(found, record, attempt)
        found = {**found, "attempts": rows}
    if context.console.json_mode:
        context.console.data(found)
        return
    import yaml

    from tpuctl.lib.codec import to_data
    from tpuctl.provenance.manifest import typed

    ordered = to_data(typed(found))
    context.console.line(yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True).rstrip())


def diff(
    context: AppContext,
    left: Annotated[str, argument("RUN", "A run, or a file.")],
    right: Annotated[str, argument("OTHER", "Another.", complete=run_ids)],
) -> None:
    """Show in what two runs differ, by section.

    Of hosts, disks and mounts the last attempts are compared.
    """
    from msgspec.structs import replace

    from tpuctl.lib.codec import to_data
    from tpuctl.provenance.compare import ABSENT, compare
    from tpuctl.provenance.parts import load_source

    one, other = load_source(context, left)[0], load_source(context, right)[0]
    rows = [to_data(each) for each in compare(one, other)]
    if context.console.json_mode:
        context.console.data(rows)
        return
    titles = (one["run"]["id"], other["run"]["id"])
    columns = (
        *DIFFERENCES[:2],
        *(replace(c, title=t) for c, t in zip(DIFFERENCES[2:], titles, strict=True)),
    )
    shown = [{key: ABSENT if value is None else value for key, value in row.items()} for row in rows]
    context.console.table(shown, columns, empty=f"{titles[0]} and {titles[1]} ran the same")


def verify(context: AppContext, source: Source = "last") -> None:
    """Check that a manifest is as it was written.

    Compares the digest of each part, and reads the code and the environment that it names, which must be in the
    store. Ends with status 1 where anything was changed or is missing.
    """
    from tpuctl.provenance.parts import load_source
    from tpuctl.provenance.verify import verify_manifest

    found, record = load_source(context, source)
    name = found["run"]["id"]
    wrong = verify_manifest(context, found, sealed=record is not None and record.state.final)
    if wrong:
        raise TpuctlError(
            f"the manifest of run {name} does not hold: {'; '.join(wrong)}",
            details={"run": name, "problems": wrong},
        )
    digest = found["chain"][-1]
    facts = {"run": name, "parts": len(found["chain"]), "sha256": digest}
    said = f"run {name}: {counted(len(found['chain']), 'part')} as written, sha256 {digest}"
    context.console.sentence(said, facts)


def export(
    context: AppContext,
    source: Source = "last",
    as_: Annotated[
        ManifestFormat,
        Option(
            "The form: an in-toto statement, an MLflow run, a crate, or all that it needs.",
            flags=(Flag("--as"),),
        ),
    ] = ManifestFormat.BUNDLE,
    to: Annotated[
        str | None,
        Option(
            "Where to; stdout if left out.", flags=(Flag("--output"), Flag("--to")), short="-o", metavar="FILE"
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a manifest for others, or with all it needs.

    `bundle` is a tar with the manifest, the code and the environment: `tpuctl rerun FILE` does the run again
    where the store is out of reach. The other forms are one JSON document by the schema of SLSA 1, of MLflow's
    REST API, or of RO-Crate 1.2. An earlier export of the same form is replaced, any other file with
    --overwrite.
    """
    from tpuctl.cli.console import render_json
    from tpuctl.lib.output_files import check_output, write_output_text
    from tpuctl.provenance.bundle import begins_bundle, write_bundle
    from tpuctl.provenance.export import FORMATS, begins_export
    from tpuctl.provenance.manifest import typed
    from tpuctl.provenance.parts import load_source

    found, _ = load_source(context, source)
    if as_ is ManifestFormat.BUNDLE:
        if to is None:
            raise UsageError(
                "a bundle is written to a file, and none is named", hint=f"-o {found['run']['id']}.tar"
            )
        path = check_output(to, "-o", kind="bundle", ours=begins_bundle, overwrite=overwrite)
        count = write_bundle(context.store, found, path)
        context.console.say(f"wrote {to}: the manifest and {counted(count, 'content')}")
        return
    made = FORMATS[as_.value](typed(found), found)
    if to is None:
        context.console.data(made)
        return
    ours = partial(begins_export, as_.value)
    path = check_output(to, "-o", kind=f"export as {as_.value}", ours=ours, overwrite=overwrite)
    write_output_text(path, "-o", render_json(made) + "\n")
    context.console.say(f"wrote {to}")


def _no_attempt(found: dict[str, Any], record: RunRecord | None, attempt: int) -> NotFoundError:
    name = found["run"]["id"]
    begun = record.attempt.number if record and record.attempt else len(found["attempts"])
    if not 1 <= attempt <= begun:
        has = f"it has {counted(begun, 'attempt')}" if begun else "it has not begun"
        return NotFoundError(f"run {name} has no attempt {attempt}: {has}", hint="tpuctl runs")
    return NotFoundError(f"attempt {attempt} of run {name} goes on", hint=f"tpuctl attach {name}")
