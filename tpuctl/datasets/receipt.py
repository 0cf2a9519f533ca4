"""Receipts of data: asked of a bucket or of a host, checked against a contract, kept in the store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from tpuctl.config.file import file_error
from tpuctl.config.load import read_text
from tpuctl.config.yaml_positions import parse_marked
from tpuctl.datasets.contract import Contract, DatasetSummary, check_contract, parse_contract
from tpuctl.datasets.pack import find_manifest, list_objects
from tpuctl.datasets.plan import MANIFEST, Manifest, parse_place
from tpuctl.datasets.plan import difference as shard_difference
from tpuctl.datasets.samples import ENDINGS, HEAD, Sample, choose_sample, read_sample
from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, TpuctlError, UsageError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.requests import TreeRequest
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.codec import to_data
from tpuctl.lib.input_files import read_file
from tpuctl.lib.names import is_slice_name
from tpuctl.lib.retry import patiently
from tpuctl.lib.text import counted
from tpuctl.model.cloud import ObjectInfo
from tpuctl.model.hosts import HostTarget
from tpuctl.model.receipt import DataCheck, DataDigest, Receipt, parse_receipt, receipt_name, sealed
from tpuctl.model.records import WITH_HOSTS, SliceRecord
from tpuctl.state.repository import Repository, get_slice, list_slices

RECEIPTS = Repository(Receipt, "receipts")

LISTED_MAX = 100_000
"""Objects or files of one receipt: they are listed again before each attempt, within the lease of a slice."""
TREE_S = 60.0
"""For a host that is asked outside of a step."""
FORM = "gs://BUCKET/PREFIX, a disk that is mounted, or SLICE:/PATH"


class TreePlace(Struct, frozen=True):
    """A tree on hosts of a slice: all have the same disk or bucket there, so one is asked."""

    slice_: SliceRecord
    path: str


def load_contract(path: Path) -> Contract:
    """The contract in a file. Raises BadConfigError with everything that is wrong in it, NotFoundError."""
    text = read_text(path)
    if text is None:
        raise NotFoundError(f"there is no file {path}", hint="--contract FILE")
    found, problems = parse_contract(parse_marked(text, str(path)))
    if found is None or problems:
        raise file_error(str(path), problems)
    return found


def take_receipt(services: Services, uri: str, contract: Contract | None) -> Receipt:
    """The receipt of data as it is now; its checks say what of the contract is met. Without one no content is
    read. Changes nothing."""
    if uri.startswith("gs://"):
        return _of_bucket(services, uri, contract)
    place = find_place(services, uri)
    agent = HostAgent(services.remote, services.agent_source)
    target = host_targets(services, place.slice_)[0]
    return ask_tree(agent, target, uri, place.path, contract, timeout_s=TREE_S)


def find_place(services: Services, uri: str) -> TreePlace:
    """Where the tree of a receipt is: a disk by its name, or a path of a slice. Raises UsageError."""
    name, colon, path = uri.partition(":")
    if not is_slice_name(name) or (colon and not path.startswith("/")):
        raise UsageError(f"{uri!r} is no place of data", hint=FORM)
    if colon:
        record = get_slice(services, name).record
    else:
        record, path = _with_disk(services, name)
    if record.incarnation is None or record.state not in WITH_HOSTS:
        raise UsageError(f"slice {record.name} is {record.state}", hint=f"tpuctl status {record.name}")
    return TreePlace(record, path.rstrip("/") or "/")


def _with_disk(services: Services, disk: str) -> tuple[SliceRecord, str]:
    for record in list_slices(services):
        for ref in record.spec.disks:
            if ref.name == disk and record.state in WITH_HOSTS:
                return record, ref.path
    raise UsageError(
        f"no slice has disk {disk}: hosts read what is on it", hint=f"tpuctl disk attach {disk} --to SLICE"
    )


def _of_bucket(services: Services, uri: str, contract: Contract | None) -> Receipt:
    place = parse_place(uri, whole_bucket=True)
    found = list_objects(services, place, limit=LISTED_MAX + 1)
    if not found:
        raise NotFoundError(f"there is nothing at {place}", hint=f"gcloud storage ls {place}")
    if len(found) > LISTED_MAX:
        hint = "tpuctl data pack DIR gs://BUCKET/PREFIX makes shards of small files"
        raise UsageError(f"{place} has more than {LISTED_MAX} objects", hint=hint)
    prefix = place.removeprefix("gs://").partition("/")[2]
    below = {info.name[len(prefix) :].lstrip("/"): info for info in found}
    sample, extra = None, []
    chosen = choose_sample(below)
    if contract is not None and chosen is not None:
        head = _head(services, f"{place}/{chosen}")
        sample = _sample(chosen, below[chosen].size, head, contract)
    if contract is not None and MANIFEST in below:
        extra = _pack_checks(find_manifest(services, place), below)
    digest = DataDigest(listing_digest(below), "listing")
    newest = max(info.generation for info in found)
    total = sum(info.size for info in found)
    return _receipt(place, digest, len(found), total, sample, contract, extra, kind="gcs", newest=newest)


def listing_digest(below: dict[str, ObjectInfo]) -> str:
    """SHA-256 over `[name, generation, crc32c, size]` of each object: lines of JSON in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(below):
        info = below[name]
        row = [name, info.generation, info.crc32c, info.size]
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def _head(services: Services, uri: str) -> bytes:
    def read() -> bytes:
        content = bytearray()
        for piece in services.objects.read_pieces(uri):
            content += piece
            if len(content) >= HEAD:
                break
        return bytes(content[:HEAD])

    return patiently(read, services.clock.sleep)


def _pack_checks(manifest: Manifest | None, below: dict[str, ObjectInfo]) -> list[DataCheck]:
    """A pack of ours is also checked against its own manifest, by what the bucket says of the shards."""
    if manifest is None:
        return []
    if not manifest.complete:
        return [DataCheck("pack", False, "the pack is not complete: tpuctl data pack")]
    for row in manifest.shards:
        info = below.get(row.name)
        wrong = "it is missing" if info is None else shard_difference(row, info.size, info.crc32c)
        if wrong is not None:
            return [DataCheck("pack", False, f"{row.name}: {wrong}")]
    said = f"{counted(manifest.shard_count, 'shard')}, {counted(manifest.samples, 'sample')}"
    return [DataCheck("pack", True, said)]


def ask_tree(
    agent: HostAgent, target: HostTarget, uri: str, path: str, contract: Contract | None, *, timeout_s: float
) -> Receipt:
    """The receipt of a tree on one host. Raises TpuctlError where the host does not say."""
    endings = tuple(ENDINGS) if contract is not None else ()
    request = TreeRequest(path, LISTED_MAX, endings, HEAD)
    [reply] = agent.ask([target], request, timeout_s=timeout_s)
    if reply.value is None:
        where = f"{path} on worker {target.worker} of {target.slice_name}"
        kind = NotFoundError if reply.error == "not-found" else TpuctlError
        hint = f"tpuctl exec --worker {target.worker} {target.slice_name} -- ls {path}"
        raise kind(f"{where}: {reply.message}", hint=hint)
    found = reply.value
    sample = None
    if found.sample is not None and contract is not None:
        sample = _sample(found.sample.name, found.sample.size, found.sample.head, contract)
    digest = DataDigest(found.sha256, "tree")
    return _receipt(uri, digest, found.files, found.bytes, sample, contract, [], kind="disk", path=path)


def _sample(name: str, size: int, head: bytes, contract: Contract) -> Sample:
    return read_sample(name, size, head, dtype=contract.dtype, header_bytes=contract.header_bytes)


def _receipt(
    uri: str,
    digest: DataDigest,
    objects: int,
    size: int,
    sample: Sample | None,
    contract: Contract | None,
    extra: Sequence[DataCheck],
    *,
    kind: str,
    newest: int | None = None,
    path: str = "",
) -> Receipt:
    contract = contract or Contract()
    checks = check_contract(contract, DatasetSummary(objects, size, digest.value, sample))
    return sealed(
        Receipt(
            uri=uri,
            kind=kind,
            digest=digest,
            objects=objects,
            bytes=size,
            generation_max=newest,
            path=path,
            sample=sample.name if sample is not None else "",
            contract=contract.said(),
            checks=(*extra, *checks),
        )
    )


def refuse_unmet(receipt: Receipt) -> None:
    """Raises TpuctlError where the data does not meet its contract."""
    wrong = [each for each in receipt.checks if each.met is False]
    if wrong:
        said = "; ".join(f"{each.field}: {each.detail}" for each in wrong)
        raise TpuctlError(
            f"{receipt.uri} does not meet its contract: {said}",
            hint="put the data right, or the contract",
            details={"checks": to_data(wrong)},
        )


def keep_receipt(services: Services, receipt: Receipt) -> None:
    """The newest receipt of its URI in the store."""
    RECEIPTS.overwrite(services, receipt_name(receipt.uri), receipt)


def find_receipt(services: Services, word: str) -> Receipt:
    """The receipt that `URI[=FILE]` names: the one in the file, else the newest one in the store. Raises
    UsageError."""
    uri, equals, file = word.partition("=")
    uri = uri.rstrip("/") if uri.startswith("gs://") else uri
    if equals:
        try:
            content = read_file(Path(file))
        except OSError as error:
            raise UsageError.of(
                "data", f"{file} cannot be read: {error.strerror}", "--data URI=FILE"
            ) from error
        found = parse_receipt(content, file)
        if found.uri != uri:
            raise UsageError.of(
                "data", f"{file} is the receipt of {found.uri}, not of {uri}", f"--data {found.uri}={file}"
            )
    else:
        stored = RECEIPTS.record(services, receipt_name(uri))
        if stored is None:
            hint = f"tpuctl data receipt {uri} --contract FILE"
            raise UsageError.of("data", f"there is no receipt of {uri}", hint)
        found = stored
    unmet = next((each for each in found.checks if each.met is False), None)
    if unmet is not None:
        raise UsageError.of("data", f"the receipt of {uri} says that {unmet.field} is not met", None)
    return found
