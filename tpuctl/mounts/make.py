"""Makes the bucket of a mount: in the region of its slice, nothing of it public, no soft delete."""

from __future__ import annotations

from tpuctl.engine.events import Note
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, InvalidRequestError, UsageError
from tpuctl.inventory.delete import find_owned
from tpuctl.inventory.ownership import Claim, check_ownership
from tpuctl.lib.names import label_value, region_of
from tpuctl.model.cloud import STORE_LABEL, USER_LABEL, CloudResource, ResourceKind
from tpuctl.model.facts import BucketSpec
from tpuctl.model.records import SliceRecord
from tpuctl.model.slice_spec import MountRef
from tpuctl.mounts.rules import MountRules


def plan_bucket(
    services: Services, rules: MountRules, ref: MountRef, record: SliceRecord, *, flat: bool
) -> BucketSpec | None:
    """The bucket to be made for `ref`; None where this store has made it. Raises ConflictError for one that
    somebody else has made, and UsageError for a slice that may be in several regions."""
    regions = sorted(set(map(region_of, record.requested_zones)))
    if len(regions) > 1:
        why = f"{record.name} may be in {' and '.join(regions)}, and a bucket is in one region"
        raise UsageError.of("create", why, f"gcloud storage buckets create gs://{ref.bucket} --location=REGION")
    labels = {STORE_LABEL: services.store.identity(), USER_LABEL: label_value(services.user)}
    hierarchical = rules.profile(ref.profile).hierarchical and not flat
    wanted = BucketSpec(ref.bucket, regions[0], labels, hierarchical)
    return None if _is_ours(services, wanted) else wanted


def make_bucket(services: Services, wanted: BucketSpec) -> None:
    """Raises ConflictError where somebody else has the name: those of buckets are one for all the world."""
    try:
        services.objects.create_bucket(wanted)
    except ConflictError as error:
        if _is_ours(services, wanted):
            return
        raise _taken(wanted.name) from error
    except InvalidRequestError as error:
        if not wanted.hierarchical:
            raise
        hint = "--flat makes one without a hierarchical namespace: folders are then renamed file by file"
        raise InvalidRequestError(error.message, hint=hint, details=error.details) from error
    services.emit(Note("", f"made {describe_bucket(wanted)}"))


def describe_bucket(wanted: BucketSpec) -> str:
    """In words."""
    more = ", with a hierarchical namespace" if wanted.hierarchical else ""
    return f"gs://{wanted.name} in {wanted.region}: uniform access, never public, no soft delete{more}"


def _is_ours(services: Services, wanted: BucketSpec) -> bool:
    """Whether it is there and has our label. Raises ConflictError for one without."""
    found = find_owned(services, CloudResource(ResourceKind.BUCKET, wanted.name, wanted.region))
    claim = Claim({STORE_LABEL: wanted.labels[STORE_LABEL]}, user=None)
    if found is not None and check_ownership(found, found, claim) is not None:
        raise _taken(wanted.name)
    return found is not None


def _taken(bucket: str) -> ConflictError:
    return ConflictError(
        f"bucket gs://{bucket} is there already, and not made by --create",
        hint="leave out --create, or choose another name: those of buckets are one for all the world",
    )
