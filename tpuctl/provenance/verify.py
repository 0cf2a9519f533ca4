"""Whether a manifest is as it was written, and whether what it refers to is still there."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, TpuctlError
from tpuctl.provenance.manifest import Row, verify_chain
from tpuctl.transfer.tree import list_blobs, parse_tree


def verify_manifest(services: Services, manifest: Row, *, sealed: bool) -> list[str]:
    """Everything that is wrong with a manifest, or with the code and the environment that it names: these are
    read whole. `sealed`: its run is over, so that it must have an end."""
    wrong = verify_chain(manifest)
    if sealed and manifest.get("end") is None:
        wrong.append("the run is over, and its manifest has no end")
    return [*wrong, *_lost_blobs(services, manifest)]


def _lost_blobs(services: Services, manifest: Row) -> Iterator[str]:
    code, environment = manifest["code"], manifest.get("environment")
    named = [("the uncommitted changes", code.get("diff_sha256"))]
    named += [("the environment", environment["spec_sha256"])] if environment else []
    try:
        tree = services.store.get_blob(code["bundle_sha256"])
        named += [("a file of the code", blob.sha256) for blob in list_blobs(parse_tree(tree))]
    except NotFoundError:
        yield f"the code is not in the store any more: {code['bundle_sha256']}"
    except (TpuctlError, ValueError) as error:
        yield f"the code was changed: {error}"
    for what, digest in dict.fromkeys(named):
        if digest is None:
            continue
        try:
            services.store.get_blob(digest)
        except NotFoundError:
            yield f"{what} is not in the store any more: {digest}"
        except TpuctlError as error:
            yield f"{what} was changed: {error.message}"
