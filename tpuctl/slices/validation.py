"""Values that stand for themselves: names, labels, metadata, sizes. Each check raises UsageError."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tpuctl.errors import UsageError, with_field
from tpuctl.lib.names import region_of
from tpuctl.model.secret_patterns import check_named, refusal
from tpuctl.model.shipped_files import load_secret_patterns
from tpuctl.model.slice_spec import SliceSpec

MAX_METADATA_VALUE = 256 * 1024
MAX_METADATA_TOTAL = 512 * 1024
"""Bytes; Compute Engine's limits (docs.cloud.google.com/compute/docs/metadata/setting-custom-metadata)."""
MIN_BOOT_DISK_GIB = 100
MAX_BOOT_DISK_GIB = 65_536
"""The images are for 100 GiB; Compute Engine has no larger disk than 64 TiB."""
MAX_DESCRIPTION = 512
"""Characters (google.cloud.tpu_v2.Node.description)."""
MAX_TAGS = 64
MAX_LABELS = 64
OWN_LABELS = 4
OWN_PREFIX = "tpuctl-"

_RFC1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
_METADATA_KEY = re.compile(r"[-_A-Za-z0-9]{1,128}")
_EMAIL = re.compile(r"[^@\s]+@[-a-z0-9.]+\.[a-z]+")
_NETWORK_PATH = re.compile(r"projects/[^/\s]+/global/networks/([^/\s]+)")
_SUBNETWORK_PATH = re.compile(r"projects/[^/\s]+/regions/([^/\s]+)/subnetworks/([^/\s]+)")
_RESERVATION_PATH = re.compile(r"projects/[^/\s]+/locations/([^/\s]+)/reservations/([^/\s]+)")

STARTUP_SCRIPT = "startup-script"
RESERVED_METADATA: Mapping[str, str] = {
    "ssh-keys": "tpuctl puts the keys of the enrolled machines there",
    STARTUP_SCRIPT: "use --startup-script FILE",
}
"""Metadata keys that cannot be set, and why."""
OS_LOGIN, OS_LOGIN_OFF = "enable-oslogin", "FALSE"
"""Said for every node that tpuctl makes: a node's own value counts before its project's
(docs.cloud.google.com/compute/docs/oslogin/set-up-oslogin)."""


def check_values(spec: SliceSpec, script: bytes | None) -> None:
    """All of them, in the zone of `spec`; `script` is the startup script. Raises UsageError, with the field."""
    with_field("network", lambda: _check_network(spec.network))
    with_field("subnetwork", lambda: _check_subnetwork(spec.subnetwork, spec.zone))
    with_field("service_account", lambda: _check_account(spec.service_account))
    with_field("slices", lambda: _check_slices(spec.slices))
    with_field("boot_disk", lambda: _check_boot_disk(spec.boot_disk_gib))
    with_field("reservation", lambda: _check_reservation(spec.reservation, spec.zone))
    with_field("description", lambda: _check_description(spec.description))
    with_field("network_tag", lambda: _check_tags(spec.tags))
    with_field("label", lambda: check_labels(spec.labels))
    with_field("metadata", lambda: check_named(load_secret_patterns(), "--metadata", spec.metadata))
    with_field("startup_script", lambda: _check_script(script))
    with_field("metadata", lambda: _check_metadata(spec.metadata, script))


def _check_description(text: str | None) -> None:
    if text is not None and len(text) > MAX_DESCRIPTION:
        raise UsageError(
            f"--description has {len(text)} characters; the API takes {MAX_DESCRIPTION}",
            hint="a shorter --description",
        )


def _check_network(network: str | None) -> None:
    path = _NETWORK_PATH.fullmatch(network or "")
    _check_name("--network", path[1] if path else network, "default, or projects/P/global/networks/N")


def _check_subnetwork(subnetwork: str | None, zone: str) -> None:
    path = _SUBNETWORK_PATH.fullmatch(subnetwork or "")
    _check_name(
        "--subnetwork", path[2] if path else subnetwork, "default, or projects/P/regions/R/subnetworks/S"
    )
    if path and path[1] != region_of(zone):
        raise UsageError(
            f"--subnetwork is in region {path[1]}, the slice in {region_of(zone)}",
            hint=f"a subnetwork of {region_of(zone)}",
        )


def _check_name(flag: str, name: str | None, example: str) -> None:
    if name is not None and not _RFC1035.fullmatch(name):
        raise UsageError(
            f"{flag} {name!r} is not a name: lower-case letters, digits and hyphens, a letter first",
            hint=f"{flag} {example}",
        )


def _check_account(account: str | None) -> None:
    if account is not None and not _EMAIL.fullmatch(account):
        hint = "--service-account NAME@PROJECT.iam.gserviceaccount.com"
        raise UsageError(f"--service-account {account!r} is not an address", hint=hint)


def _check_slices(slices: int) -> None:
    if slices < 1:
        raise UsageError(f"--slices {slices}: at least 1", hint="--slices 2")


def _check_boot_disk(size: int | None) -> None:
    if size is not None and not MIN_BOOT_DISK_GIB <= size <= MAX_BOOT_DISK_GIB:
        raise UsageError(
            f"--boot-disk {size} is not a size from {MIN_BOOT_DISK_GIB} to {MAX_BOOT_DISK_GIB} GiB",
            hint="--boot-disk 200",
        )


def _check_reservation(reservation: str | None, zone: str) -> None:
    path = _RESERVATION_PATH.fullmatch(reservation or "")
    name = path[2] if path else reservation
    _check_name("--reservation", name, "NAME, or projects/P/locations/ZONE/reservations/NAME")
    if path and path[1] != zone:
        raise UsageError(f"--reservation is in {path[1]}, the slice in {zone}", hint=f"--zone {path[1]}")


def _check_tags(tags: Sequence[str]) -> None:
    for tag in tags:
        _check_name("--network-tag", tag, "training")
    if len(set(tags)) != len(tags):
        raise UsageError("the same --network-tag is given twice", hint="give each once")
    if len(tags) > MAX_TAGS:
        raise UsageError(f"{len(tags)} tags; Compute Engine takes {MAX_TAGS}", hint="fewer --network-tag")


def check_labels(labels: Mapping[str, str]) -> None:
    """Raises UsageError for what is no label, is tpuctl's own, or holds a secret."""
    for key, value in labels.items():
        if key.startswith(OWN_PREFIX):
            raise UsageError(
                f"--label {key}: labels with {OWN_PREFIX} say who owns a resource and are set by tpuctl",
                hint="choose another name",
            )
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise UsageError(
                f"--label {key}={value}: lower-case letters, digits, - and _, at most 63, "
                "a letter first in the key",
                hint="--label team=vision",
            )
    if len(labels) > MAX_LABELS - OWN_LABELS:
        raise UsageError(f"{len(labels)} labels; {MAX_LABELS - OWN_LABELS} are left", hint="fewer --label")
    check_named(load_secret_patterns(), "--label", labels)


def _check_metadata(metadata: Mapping[str, str], script: bytes | None) -> None:
    for key, value in metadata.items():
        if key in RESERVED_METADATA:
            raise UsageError(f"--metadata {key} cannot be set", hint=RESERVED_METADATA[key])
        if key == OS_LOGIN and value.upper() != OS_LOGIN_OFF:
            raise UsageError(
                f"--metadata {key}={value}: with OS Login hosts ignore the keys that tpuctl gives them",
                hint=f"leave it out: every node that tpuctl makes has {OS_LOGIN}={OS_LOGIN_OFF}",
            )
        if not _METADATA_KEY.fullmatch(key):
            raise UsageError(
                f"--metadata {key!r}: letters, digits, - and _, at most 128", hint="--metadata K=V"
            )
        _check_size(f"--metadata {key}", value.encode())
    total = sum(len(key) + len(value.encode()) for key, value in metadata.items())
    if total + len(script or b"") > MAX_METADATA_TOTAL:
        raise UsageError(f"all metadata together is more than {MAX_METADATA_TOTAL >> 10} KiB", hint=_FETCH)


_FETCH = "let the script fetch the rest from a bucket"


def _check_size(what: str, value: bytes) -> None:
    if len(value) > MAX_METADATA_VALUE:
        raise UsageError(
            f"{what} has {len(value)} bytes; the metadata server takes {MAX_METADATA_VALUE >> 10} KiB",
            hint=_FETCH,
        )


def _check_script(script: bytes | None) -> None:
    if script is None:
        return
    _check_size("the startup script", script)
    try:
        text = script.decode()
    except UnicodeDecodeError:
        raise UsageError("the startup script is not UTF-8 text, as metadata must be", hint=_FETCH) from None
    if not text.strip():
        raise UsageError("the startup script is empty", hint="--startup-script FILE with `#!/bin/bash` first")
    found = load_secret_patterns().find(text)
    if found:
        raise refusal("the startup script", found, key="startup_script")
    if "\0" in text:
        raise UsageError("the startup script has a NUL character, which metadata cannot carry", hint=_FETCH)
