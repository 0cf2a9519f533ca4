"""Reads everything that can keep tpuctl from working; `doctor.checks` judges it.

Three rounds, each with its own limit of time: this machine and its credentials, then the APIs, then the regions
that turned out to matter. A read that fails does not affect the others.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tpuctl.disks.unused import UnusedDisks, unused_disks
from tpuctl.doctor.facts import DoctorFacts, PlannedUse, SharedStore, StoreRecords
from tpuctl.doctor.quotas import named_needs
from tpuctl.doctor.store import STORE_PERMISSIONS
from tpuctl.engine.ports import Machine
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.inventory.listing import apis_in_use
from tpuctl.inventory.reap import TpuSurvey, survey
from tpuctl.lib.names import region_of
from tpuctl.lib.parallel import Reading, read_all
from tpuctl.lib.programs import call
from tpuctl.lib.text import counted
from tpuctl.model.accelerators import Catalog
from tpuctl.model.cloud import Api
from tpuctl.model.facts import KeyFacts, StoreFacts, ToolFacts
from tpuctl.model.records import Desired, RunRecord, SliceRecord
from tpuctl.model.roles import FleetUse, asked_permissions
from tpuctl.money.coverage import GRANTS
from tpuctl.money.quota_report import read_holdings
from tpuctl.state.repository import DISKS, readable_runs, readable_slices
from tpuctl.watch.cycle import watchdog_health
from tpuctl.watch.pause import paused_why

LOCAL_TIMEOUT_S = 15.0
API_TIMEOUT_S = 25.0
REGION_TIMEOUT_S = 15.0

Progress = Callable[[str], None]


def check_up(
    services: Services,
    machine: Machine,
    wanted: PlannedUse,
    catalog: Catalog,
    on_progress: Progress = lambda _: None,
) -> DoctorFacts:
    """Reads all facts, within a minute in all; `on_progress` is told what is being read."""
    on_progress("this machine and its store")
    store = read_all({"store": machine.store}, timeout_s=LOCAL_TIMEOUT_S)["store"]
    local = read_all(_looks_at_this_machine(services, machine, catalog, store), timeout_s=LOCAL_TIMEOUT_S)
    on_progress("the project's APIs, permissions and quotas")
    buckets = {f"bucket {name}": partial(services.project_api.bucket_place, name) for name in wanted.buckets}
    looks: dict[str, Callable[[], Any]] = {
        "services": services.project_api.list_services,
        "permissions": partial(services.project_api.granted_permissions, asked_permissions()),
        "project": services.project_api.project_info,
        "network": partial(services.project_api.network, wanted.network),
        "firewall": partial(services.project_api.firewall, wanted.network),
        "tpu_quotas": partial(services.project_api.tpu_quotas, Api.TPU),
        "holdings": partial(read_holdings, services, catalog, Api.TPU),
        "survey": partial(_survey, services, store),
        "unused_disks": partial(_unused_disks, services, store),
        **buckets,
        **_looks_at_shared(services, wanted),
        **_looks_at_compute(services, catalog, wanted, local["records"].value),
    }
    seen = _ask(looks, local["credentials"], API_TIMEOUT_S)
    zones = _zones(wanted, local["records"], seen)
    on_progress(f"quotas in {counted(len(zones), 'zone')}")
    regions = _ask(
        {
            region: partial(services.project_api.region_quotas, region)
            for region in sorted(set(map(region_of, zones)))
        },
        local["credentials"],
        REGION_TIMEOUT_S,
    )
    named = {key: reading for key, reading in seen.items() if " " not in key}
    return DoctorFacts(
        wanted=wanted,
        catalog=catalog,
        now=services.clock.now(),
        store=store,
        regions=regions,
        buckets={name: seen[f"bucket {name}"] for name in wanted.buckets},
        shared=_shared(wanted, seen),
        **local,
        **named,
    )


def _looks_at_this_machine(
    services: Services, machine: Machine, catalog: Catalog, store: Reading[StoreFacts]
) -> dict[str, Callable[[], Any]]:
    """By fields of `DoctorFacts`, as the other looks."""
    return {
        "credentials": machine.credentials,
        "keys": machine.key,
        "tools": machine.tools,
        "watch": machine.watchdog,
        "records": partial(_read_records, services, catalog, store),
        "clock_ahead": services.project_api.clock_ahead,
    }


def _looks_at_compute(
    services: Services, catalog: Catalog, wanted: PlannedUse, records: StoreRecords | None
) -> dict[str, Callable[[], Any]]:
    """The pool of Compute Engine, where something that is named may be made by it."""
    if not any(Api.COMPUTE in need.apis for need in named_needs(wanted, records)):
        return {}
    return {
        "compute_quotas": partial(services.project_api.tpu_quotas, Api.COMPUTE),
        "compute_holdings": partial(read_holdings, services, catalog, Api.COMPUTE),
    }


def _looks_at_shared(services: Services, wanted: PlannedUse) -> dict[str, Callable[[], Any]]:
    """Each may be denied alone."""
    if wanted.store is None:
        return {}
    api, bucket = services.project_api, wanted.store.split("/")[2]
    return {
        "store place": partial(api.bucket_place, bucket),
        "store settings": partial(api.bucket_settings, bucket),
        "store permissions": partial(api.bucket_permissions, bucket, STORE_PERMISSIONS),
    }


def _shared(wanted: PlannedUse, seen: Mapping[str, Reading[Any]]) -> SharedStore | None:
    if wanted.store is None:
        return None
    bucket, _, prefix = wanted.store.removeprefix("gs://").partition("/")
    return SharedStore(bucket, prefix, seen["store place"], seen["store settings"], seen["store permissions"])


def _ask(
    looks: Mapping[str, Callable[[], Any]], credentials: Reading[Any], timeout_s: float
) -> dict[str, Reading[Any]]:
    """Without credentials nothing is asked: every answer would be the same."""
    if credentials.error is not None:
        error = TpuctlError("no working credentials")
        return dict.fromkeys(looks, Reading(error=error))
    return read_all(looks, timeout_s=timeout_s)


def _survey(services: Services, store: Reading[StoreFacts]) -> TpuSurvey:
    return survey(services) if _is_there(store) else TpuSurvey((), ())


def _unused_disks(services: Services, store: Reading[StoreFacts]) -> UnusedDisks:
    return unused_disks(services) if _is_there(store) else UnusedDisks()


def _is_there(store: Reading[StoreFacts]) -> bool:
    """Whether there is a store yet: reading facts does not create one. Raises where it cannot be used."""
    if store.value is None or not store.value.usable:
        raise TpuctlError("the store is not opened in the state in which it is")
    return store.value.exists


def _read_records(services: Services, catalog: Catalog, store: Reading[StoreFacts]) -> StoreRecords:
    """Opens the store only if that can work, and does not make one."""
    if store.value is None or not store.value.usable:
        raise TpuctlError("the store is not opened in the state in which it is")
    if not store.value.exists:
        return StoreRecords()
    all_slices, damaged_slices = readable_slices(services)
    all_runs, damaged_runs = readable_runs(services)
    slices = [record for record in all_slices if record.desired is Desired.UP]
    # Those on clusters are kept up there: they need no watchdog, and no secrets from here.
    runs = [run for run in all_runs if not run.state.final and run.cluster is None]
    grants, damaged_grants = GRANTS.readable(services)
    records = StoreRecords(
        grants=tuple(grants),
        zones=tuple(dict.fromkeys(record.spec.zone for record in slices)),
        apis=_apis(catalog, slices),
        used_apis=apis_in_use(all_slices),
        wanted=len(slices) + len(runs),
        damaged=(*damaged_slices, *damaged_runs, *damaged_grants),
        uses=_uses(services, runs),
    )
    return replace(records, health=watchdog_health(services), paused=paused_why(services))


def _apis(catalog: Catalog, slices: Sequence[SliceRecord]) -> dict[tuple[str, str], frozenset[Api]]:
    found: dict[tuple[str, str], frozenset[Api]] = {}
    for spec in (record.spec for record in slices):
        kind = catalog.find(spec.accelerator_type)
        if kind is not None:
            place = (spec.zone, kind.generation)
            found[place] = found.get(place, frozenset()) | {spec.api}
    return found


def _uses(services: Services, runs: Sequence[RunRecord]) -> frozenset[FleetUse]:
    """What the fleet does that not every fleet does."""
    secrets = any(reference.startswith("sm://") for run in runs for reference in run.spec.secrets.values())
    disks = bool(DISKS.names(services))
    return frozenset({*([FleetUse.DISKS] if disks else []), *([FleetUse.SECRETS] if secrets else [])})


def _zones(wanted: PlannedUse, records: Reading[StoreRecords], seen: Mapping[str, Reading[Any]]) -> list[str]:
    """Where quotas matter: settings, grants, slices, and whatever is held."""
    found = [*wanted.zones]
    if records.value is not None:
        found += [grant.zone for grant in records.value.grants] + list(records.value.zones)
    held = (seen[name].value or () for name in ("holdings", "compute_holdings") if name in seen)
    found += [each.resource.location for holdings in held for each in holdings]
    return list(dict.fromkeys(found))


LIBRARIES = ("google-cloud-tpu", "google-cloud-compute", "google-cloud-storage", "google-auth", "paramiko")


def list_tools(*, needs_ssh: bool, needs_gcloud: bool = False) -> tuple[ToolFacts, ...]:
    """`needs_ssh`, `needs_gcloud`: the way to the hosts leads through this machine's own."""
    from tpuctl import __version__

    return (
        ToolFacts("tpuctl", __version__, "this"),
        ToolFacts("python", platform.python_version(), "runs tpuctl"),
        *(_library(name) for name in LIBRARIES),
        ToolFacts(
            "ssh",
            _version(["ssh", "-V"]),
            "`tpuctl ssh` and jump_host need it",
            needed=needs_ssh,
            fix="sudo apt-get install openssh-client",
        ),
        ToolFacts(
            "gcloud",
            _version(["gcloud", "--version"]),
            "logging in, iap, and most of the commands that mend things",
            needed=needs_gcloud,
            fix="https://cloud.google.com/sdk/docs/install",
        ),
    )


def _library(name: str) -> ToolFacts:
    try:
        version: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = None
    return ToolFacts(name, version, "tpuctl needs it", needed=True, fix=f"pip install {name}")


def _version(words: list[str]) -> str | None:
    """The first thing in a program's answer that looks like a version; None when it is not installed."""
    if shutil.which(words[0]) is None:
        return None
    try:
        done = call(words)
    except TpuctlError:
        return "of unknown version"
    found = re.search(rb"\d+(?:\.\d+)+\w*", done.stdout + done.stderr)
    return found.group().decode() if found else "of unknown version"


def inspect_key(path: Path) -> KeyFacts:
    """The SSH key as a file; whether it holds a key is for `ssh/keys.py` to say."""
    try:
        return KeyFacts(str(path), path.stat().st_mode & 0o7777)
    except FileNotFoundError:
        return KeyFacts(str(path))
    except OSError as error:
        return KeyFacts(str(path), error=error.strerror or str(error))
