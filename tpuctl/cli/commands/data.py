"""`tpuctl data`: many small files as tar shards in a bucket, files of the hub there, and receipts of data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Timeout
from tpuctl.datasets.stage import StageRequest
from tpuctl.lib.options import Option, argument

Uri = Annotated[str, argument("gs://BUCKET/PREFIX", "Where the pack is.")]
SHARDS = (
    Column("name", "SHARD"),
    Column("size", "SIZE", right=True),
    Column("files", "FILES", right=True),
    Column("samples", "SAMPLES", right=True),
    Column("crc32c", "CRC32C", give=1),
)
PACKS = (
    Column("uri", "PACK", give=1),
    Column("shards", "SHARDS", right=True),
    Column("files", "FILES", right=True),
    Column("content_bytes", "CONTENT", right=True),
    Column("state", "STATE"),
)


CHECKS = (
    Column("field", "FIELD"),
    Column("result", "", whole=True),
    Column("detail", "", give=1),
)


def pack(
    context: AppContext,
    folder: Annotated[str, argument("DIR", "The folder with the files.")],
    uri: Annotated[str, argument("gs://BUCKET/PREFIX", "Where to: empty, or the same pack begun earlier.")],
    shard_size: Annotated[int | None, Option("Size of a shard; 150.", metavar="MB", minimum=1)] = None,
    dry_run: DryRun = False,
) -> None:
    """Pack the files of a folder into tar shards in a bucket.

    The layout is that of webdataset: files that are called alike up to the first dot are one sample and stay
    together. The same command again sends what is missing or differs, and nothing else.
    """
    from tpuctl.datasets.pack import pack as pack_folder
    from tpuctl.datasets.plan import SHARD_MB

    with context.interruptible("the same command again sends only what is missing"):
        found = pack_folder(context, folder, uri, shard_mb=shard_size or SHARD_MB, dry_run=dry_run)
        context.emit.close()
        context.console.answer(found, found["said"])


def stage(context: AppContext, request: StageRequest, timeout: Timeout = None, dry_run: DryRun = False) -> None:
    """Bring files of the Hugging Face hub into a bucket, by a host.

    A run on worker 0, so no other run has the slice meanwhile. The revision is resolved once. The same command
    again goes on, and where all is there it compares checksums. Ends with a receipt.
    """
    from tpuctl.cli.following import follow_or_leave, goes_on
    from tpuctl.lib.codec import to_data
    from tpuctl.lib.text import counted, sized
    from tpuctl.runs.stage_run import find_staged, finish_stage, follow_stage, is_staged, prepare_stage
    from tpuctl.runs.submit import submit_run
    from tpuctl.slices.choose import resolve_slice

    if not is_staged(context, request, find_staged(context, request)):
        target = resolve_slice(context, request.on, flag="--on")
        submission = prepare_stage(context, context.config, request, target, Path.cwd())
        if dry_run:
            said = f"would bring {request.source} to {request.place}, by worker 0 of {target.name}"
            facts = {"source": str(request.source), "place": request.place, "slice": target.name}
            context.console.sentence(said, {"dry_run": True, **facts})
            return
        run = submit_run(context, submission, context.ids.new_id(), named=False)
        context.console.say(f"run {run.id} on {target.name}")
        if request.detach:
            follow_or_leave(context, run, detach=True, timeout=timeout)
            return
        with context.interruptible(goes_on(run.id)):
            follow_stage(context, run.id, context.deadline(timeout))
    record, receipt = finish_stage(context, request)
    context.emit.close()
    if context.console.json_mode:
        context.console.data(
            {"source": str(record.source), "commit": record.commit, "receipt": to_data(receipt)}
        )
        return
    size = f"{counted(len(record.files), 'file')}, {sized(sum(each.size for each in record.files))}"
    said = f"{request.place} has {record.source}: commit {record.commit[:12]}, {size}"
    context.console.sentence(f"{said}; receipt {receipt.digest.value[:12]}")


def verify(
    context: AppContext,
    uri: Uri,
    quick: Annotated[bool, Option("By the checksums that the bucket has, without reading the shards.")] = False,
) -> None:
    """Compare the shards of a pack with its manifest."""
    from tpuctl.datasets.verify import check_rows
    from tpuctl.datasets.verify import verify as verify_pack
    from tpuctl.lib.text import counted

    rows = verify_pack(context, uri, quick=quick)
    context.emit.close()
    bad = [row for row in rows if row["problem"] is not None]
    if bad and not context.console.json_mode:
        context.console.table(bad, (Column("shard", "SHARD"), Column("problem", "PROBLEM", give=1)))
    check_rows(context, uri, rows)
    if context.console.json_mode:
        context.console.data(rows)
    context.console.say(f"{counted(len(rows), 'object')} of {uri} as the manifest says")


def receipt(
    context: AppContext,
    uri: Annotated[str, argument("URI", "gs://BUCKET/PREFIX, a disk that is mounted, or SLICE:/PATH.")],
    contract: Annotated[Path | None, Option("What a program expects of it (YAML).", metavar="FILE")] = None,
) -> None:
    """Write a receipt of data: its digest, and its contract.

    The digest is over the listing of objects or files; of their contents only the beginning of one is read.
    What of the contract that shows is checked, the rest is stated. The store keeps the newest receipt of each
    URI, for `tpuctl run --data URI`. Data that does not meet its contract gets none: status 1.
    """
    from tpuctl.datasets.contract import Contract
    from tpuctl.datasets.receipt import keep_receipt, load_contract, refuse_unmet, take_receipt
    from tpuctl.lib.codec import to_data
    from tpuctl.lib.text import counted, sized

    said = load_contract(contract) if contract is not None else Contract()
    found = take_receipt(context, uri, said)
    console = context.console
    if found.checks and not console.json_mode:
        rows = [{"field": each.field, "result": each.result, "detail": each.detail} for each in found.checks]
        console.table(rows, CHECKS)
    refuse_unmet(found)
    keep_receipt(context, found)
    if console.json_mode:
        console.data(to_data(found))
        return
    what = f"{counted(found.objects, 'object' if found.kind == 'gcs' else 'file')}, {sized(found.bytes)}"
    console.sentence(f"{found.uri}: {what}, {found.digest.of} sha256 {found.digest.value}")


def ls(
    context: AppContext,
    uri: Annotated[str, argument("gs://BUCKET[/PREFIX]", "A pack, or what packs are below of.")],
) -> None:
    """List the shards of a pack, or the packs below a prefix."""
    from tpuctl.datasets.verify import list_packs
    from tpuctl.lib.text import counted, sized

    found, rows = list_packs(context, uri)
    if context.console.json_mode:
        context.console.data({"pack": found, "shards": rows} if found is not None else {"packs": rows})
        return
    if found is None:
        shown = [
            {
                **row,
                "content_bytes": sized(row["content_bytes"]),
                "state": "complete" if row["complete"] else "not complete",
            }
            for row in rows
        ]
        context.console.table(shown, PACKS, empty=f"no packs: tpuctl data pack DIR {uri.rstrip('/')}/NAME")
        return
    context.console.table([{**row, "size": sized(row["size"])} for row in rows], SHARDS)
    if not found["complete"]:
        hint = f"tpuctl data pack DIR {uri}"
        context.console.warn(f"not complete: {counted(found['shards'], 'shard')} in all; go on: {hint}")
