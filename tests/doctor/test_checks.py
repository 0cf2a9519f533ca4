"""The rules of `doctor`, one set of facts at a time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import ZONE, a_node, a_queued
from tpuctl.disks.unused import UnusedDisks
from tpuctl.doctor.checks import (
    CHECKS,
    all_others,
    check_buckets,
    check_credentials,
    check_watchdog,
    examine,
)
from tpuctl.doctor.facts import DoctorFacts, PlannedUse, StoreRecords
from tpuctl.doctor.finding import Finding, fold_unread
from tpuctl.doctor.project import NEEDED_APIS, USEFUL_APIS
from tpuctl.doctor.quotas import side_findings
from tpuctl.errors import (
    SERVICE_DISABLED,
    DamagedRecordError,
    DeniedError,
    NotFoundError,
    TpuctlError,
    TransientError,
)
from tpuctl.inventory.reap import TpuSurvey
from tpuctl.inventory.resources import Fate, Judged
from tpuctl.lib.parallel import Reading
from tpuctl.model.cloud import Api, CloudResource, QueuedState, ResourceKind, Tier
from tpuctl.model.facts import BucketPlace, CredentialFacts, KeyFacts, StoreFacts, ToolFacts, WatchFacts
from tpuctl.model.firewall import Firewall, parse_rules
from tpuctl.model.quota import ComputeQuota, ProjectInfo, parse_tpu_quota
from tpuctl.model.roles import FleetUse, asked_permissions
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.money.grants import Grant
from tpuctl.money.quotas import ADDRESSES, HEALTH_CHECKS, INSTANCES, find_holdings
from tpuctl.watch.heartbeat import Health, Heartbeat, Verdict

CATALOG = load_accelerators()
NOW = 1_800_000_000.0
SPOT = "TPUV4sPreemptiblePodPerProjectPerZoneForTPUAPI"
ON_DEMAND = "TPUV4sPodPerProjectPerZoneForTPUAPI"
UNREAD: Reading[Any] = Reading(error=TransientError("no answer", hint="try again"))
GOOD = Health(Verdict.GOOD, "ada on desk makes passes", Heartbeat("m", "desk", "ada", "0.1", NOW, 1.0, 60.0))


def tpu_quotas(**limits: int) -> Reading[Any]:
    ids = {"spot": SPOT, "on_demand": ON_DEMAND}
    return Reading(tuple(parse_tpu_quota(ids[name], ZONE, limit) for name, limit in limits.items()))


INTERNAL = {"name": "inside", "allowed": [{"IPProtocol": "tcp"}], "sourceRanges": ["10.128.0.0/9"]}


def facts(**changes: Any) -> DoctorFacts:
    """Everything is well, for spot v4 in one zone."""
    values: dict[str, Any] = {
        "wanted": PlannedUse("p-roject", (ZONE,), "v4", Tier.SPOT, external_ips=True),
        "catalog": CATALOG,
        "now": NOW,
        "credentials": Reading(CredentialFacts("service_account", "/key.json", "a@p.iam.gserviceaccount.com")),
        "services": Reading(frozenset({*NEEDED_APIS, *USEFUL_APIS})),
        "permissions": Reading(frozenset(asked_permissions())),
        "project": Reading(ProjectInfo({}, (ComputeQuota(HEALTH_CHECKS, 75, 4),))),
        "tpu_quotas": tpu_quotas(spot=64),
        "holdings": Reading(()),
        "regions": {
            "us-central2": Reading(
                (ComputeQuota(ADDRESSES, 8, 2, "us-central2"), ComputeQuota(INSTANCES, 24, 2, "us-central2"))
            )
        },
        "clock_ahead": Reading(0.3),
        "survey": Reading(TpuSurvey((), ())),
        "unused_disks": Reading(UnusedDisks()),
        "keys": Reading(KeyFacts("/home/ada/key", 0o600)),
        "tools": Reading((ToolFacts("python", "3.11.7", "runs tpuctl"),)),
        "buckets": {},
        "network": Reading("default"),
        "firewall": Reading(Firewall({"us-central2": ("10.152.0.0/20",)}, parse_rules([INTERNAL]))),
        "store": Reading(StoreFacts("/store.sqlite", schema=1, known_schema=1)),
        "records": Reading(StoreRecords(health=GOOD, wanted=1)),
        "watch": Reading(WatchFacts(True, in_crontab=True, cron_runs=True)),
    }
    return DoctorFacts(**{**values, **changes})


def levels(found: Any) -> list[str]:
    return [str(each.level) for each in found]


def worst(**changes: Any) -> list[tuple[str, str]]:
    """(check, level) of all that is not ok."""
    return [(each.check, str(each.level)) for each in examine(facts(**changes)) if each.level != "ok"]


def tpu_quota(**changes: Any) -> list[Finding]:
    return [each for each in examine(facts(**changes)) if each.check == "tpu quota"]


V6E = PlannedUse("p-roject", ("us-east5-a",), "v6e", Tier.SPOT, external_ips=True, apis=(Api.TPU, Api.COMPUTE))
MACHINES = "PREEMPTIBLE-TPU-V6E-per-project-zone"
NODES = "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"


def pools(tpu: int, compute: int) -> dict[str, Reading[Any]]:
    limits = {"tpu_quotas": (NODES, tpu), "compute_quotas": (MACHINES, compute)}
    return {name: Reading((parse_tpu_quota(id, "us-east5-a", limit),)) for name, (id, limit) in limits.items()}


@pytest.mark.parametrize(
    ("apis", "made", "tpu", "compute", "found"),
    [
        ("both", (), 8, 0, [("ok", "v6e in us-east5-a: 0 of 8 used")]),
        (
            "both",
            (),
            0,
            8,
            [("warning", "with --api compute there is: spot v6e in us-east5-a of Compute Engine: 0 of 8")],
        ),
        ("both", (), 0, 0, [("problem", f"quota {NODES} is 0")]),
        (
            "compute",
            (),
            8,
            0,
            [("problem", f"v6e in us-east5-a of Compute Engine: quota {MACHINES} is 0, v6e-1 takes 1")],
        ),
        ("both", (Api.COMPUTE,), 0, 8, [("ok", "of Compute Engine: 0 of 8")]),
        ("both", (Api.TPU,), 0, 8, [("problem", NODES)]),
        ("both", (Api.TPU, Api.COMPUTE), 8, 0, [("ok", "us-east5-a: 0 of 8"), ("problem", MACHINES)]),
    ],
)
def test_each_api_has_a_pool_of_its_own(apis, made, tpu, compute, found):
    wanted = V6E if apis == "both" else replace(V6E, apis=(Api.COMPUTE,))
    by = {("us-east5-a", "v6e"): frozenset(made)} if made else {}
    records = Reading(StoreRecords(health=GOOD, wanted=1, apis=by))
    seen = tpu_quota(wanted=wanted, records=records, **pools(tpu, compute))
    assert levels(seen) == [level for level, _ in found]
    assert all(said in each.what for each, (_, said) in zip(seen, found, strict=True))


def test_instances_are_held_against_the_pool_of_compute_engine_alone():
    machines = a_node(zone="us-east5-a", accelerator_type="v6e-8", api=Api.COMPUTE, kind=ResourceKind.INSTANCE)
    held = Reading(find_holdings(CATALOG, [machines], []))
    wanted = replace(V6E, apis=(Api.COMPUTE,))
    [found] = tpu_quota(wanted=wanted, compute_holdings=held, **pools(8, 8))
    assert (found.level, "8 of 8 used" in found.what) == ("warning", True)
    [found] = tpu_quota(wanted=wanted, compute_quotas=UNREAD)
    assert (found.level, found.fix) == ("warning", "try again")


ON_TPU = Reading(StoreRecords(health=GOOD, used_apis=frozenset({Api.TPU})))
BROKEN = Reading(StoreRecords(health=GOOD, damaged=(DamagedRecordError("slices/x", "it is not JSON"),)))


@pytest.mark.parametrize(
    ("records", "level"),
    [
        (Reading(StoreRecords(health=GOOD)), "warning"),
        (Reading(StoreRecords(health=GOOD, used_apis=frozenset({Api.COMPUTE}))), "warning"),
        (ON_TPU, "problem"),
        (BROKEN, "problem"),
        (UNREAD, "problem"),
    ],
)
def test_the_tpu_api_may_be_off_only_where_no_slice_is_of_it_as_far_as_is_known(records, level):
    listed = Reading(frozenset({*NEEDED_APIS, *USEFUL_APIS} - {"tpu.googleapis.com"}))
    seen = examine(facts(wanted=replace(V6E, apis=(Api.COMPUTE,)), services=listed, records=records))
    assert [each.level for each in seen if each.check == "apis"] == [level]


def test_a_grant_is_judged_by_quotas_of_the_tpu_api_alone():
    by = {("us-east5-a", "v6e"): frozenset({Api.COMPUTE})}
    records = StoreRecords((Grant("us-east5-a", Tier.SPOT, "v6e", 8),), health=GOOD, apis=by)
    seen = tpu_quota(wanted=V6E, records=Reading(records), **pools(0, 8))
    assert levels(seen) == ["ok", "problem"]


def test_where_everything_is_well_nothing_is_found():
    assert worst() == []


@pytest.mark.parametrize(
    "field",
    [
        "survey",
        "unused_disks",
        "services",
        "permissions",
        "tpu_quotas",
        "clock_ahead",
        "keys",
        "tools",
        "store",
    ],
)
def test_what_could_not_be_read_is_a_warning_with_its_hint(field):
    found = [each for each in examine(facts(**{field: UNREAD})) if each.level != "ok"]
    assert levels(found) == ["warning"]
    assert found[0].what == "not checked: no answer"
    assert found[0].fix == "try again"


def test_what_one_thing_keeps_from_being_checked_is_told_in_one_line():
    without = Reading(error=TpuctlError("no working credentials"))
    names = ("services", "permissions", "project", "tpu_quotas", "holdings", "network", "firewall")
    found = examine(facts(**dict.fromkeys(names, without), regions={"us-central2": without}))
    (told,) = [each for each in fold_unread(found) if each.level != "ok"]
    assert (told.check, str(told.level)) == ("not checked", "warning")
    assert told.what == "apis, permissions, tpu quota, side quotas, os login, vpc: no working credentials"


def test_every_check_that_is_not_made_is_named():
    made = examine(facts())
    assert [each.check for each in all_others(made, "no project")] == ["settings"]
    (told,) = fold_unread(all_others([], "no project"))
    assert told.what == f"settings, {', '.join(check.name for check in CHECKS)}: no project"


def test_nothing_at_all_can_be_read():
    names = (
        *("credentials", "services", "permissions", "project", "tpu_quotas", "holdings", "clock_ahead"),
        *("keys", "tools", "store", "records", "watch"),
    )
    found = examine(facts(**dict.fromkeys(names, UNREAD), regions={"us-central2": UNREAD}))
    assert {each.check for each in found if each.level == "problem"} == {"credentials"}
    assert {str(each.level) for each in found} == {"problem", "warning", "ok"}


@pytest.mark.parametrize(
    ("credentials", "level", "said"),
    [
        (CredentialFacts("service_account", "/k", expires_at=NOW + 3000), "ok", "renewed by itself"),
        (CredentialFacts("token-file", "/t", renews=False), "warning", "within the hour"),
        (CredentialFacts("token-file", "/t", expires_at=NOW + 600, renews=False), "warning", "ends in 10 min"),
        (
            CredentialFacts("token-file", "/t", expires_at=NOW - 600, renews=False),
            "problem",
            "expired 10 min ago",
        ),
    ],
)
def test_credentials_are_judged_by_how_long_they_last(credentials, level, said):
    [found] = check_credentials(facts(credentials=Reading(credentials)))
    assert (found.level, said in found.what) == (level, True), found


def test_a_refusal_with_401_means_the_credentials_whatever_they_say():
    refused = Reading(error=DeniedError("no", details={"status": 401}))
    assert worst(services=refused)[0] == ("credentials", "problem")
    denied = Reading(error=DeniedError("no", details={"status": 403}))
    assert worst(services=denied) == [("apis", "warning")]


def test_an_api_that_refused_is_off_even_if_the_list_says_nothing():
    told = {"reason": SERVICE_DISABLED, "metadata": {"service": "compute.googleapis.com"}}
    found = worst(services=UNREAD, project=Reading(error=DeniedError("off", details=told)))
    assert ("apis", "problem") in found


def test_spot_without_quota_is_no_matter_for_on_demand():
    wanted = PlannedUse("p-roject", (ZONE,), "v4", Tier.ON_DEMAND, external_ips=True)
    assert worst(wanted=wanted, tpu_quotas=tpu_quotas(spot=0, on_demand=16)) == []
    assert worst(tpu_quotas=tpu_quotas(spot=0, on_demand=16)) == [("tpu quota", "problem")]


def test_grants_are_checked_too():
    records = StoreRecords((Grant("us-east1-d", Tier.SPOT, "v6e", 64),), health=GOOD)
    quota = parse_tpu_quota("TPUV6EPreemptiblePerProjectPerZoneForTPUAPI", "us-east1-d", 0)
    found = tpu_quota(records=Reading(records), tpu_quotas=Reading((*tpu_quotas(spot=64).value, quota)))
    assert levels(found) == ["ok", "problem"]
    assert "--dimensions=zone=us-east1-d" in (found[1].fix or "")


def test_a_zone_without_a_type_needs_quota_for_anything():
    wanted = PlannedUse("p-roject", (ZONE,), None, None, external_ips=True)
    assert levels(tpu_quota(wanted=wanted, tpu_quotas=tpu_quotas(spot=0, on_demand=8))) == ["ok"]
    assert levels(tpu_quota(wanted=wanted, tpu_quotas=tpu_quotas(spot=0))) == ["problem"]
    assert levels(tpu_quota(wanted=wanted, tpu_quotas=Reading(()))) == ["warning"]


def test_a_single_v3_needs_no_quota_for_pods():
    wanted = PlannedUse("p-roject", ("europe-west4-a",), "v3", Tier.ON_DEMAND, external_ips=True)
    pods = parse_tpu_quota("TPUV3sPodPerProjectPerZoneForTPUAPI", "europe-west4-a", 0)
    devices = parse_tpu_quota("TPUV3sPerProjectPerZoneForTPUAPI", "europe-west4-a", 16)
    assert levels(tpu_quota(wanted=wanted, tpu_quotas=Reading((pods, devices)))) == ["ok"]
    assert levels(tpu_quota(wanted=wanted, tpu_quotas=Reading((pods,)))) == ["problem"]


@pytest.mark.parametrize(
    ("serving", "training", "levels_of", "said"),
    [
        (4, 0, ["ok"], "0 of 4 used"),
        (0, 16, ["warning"], "v5litepod-1 takes 1; from v5litepod-16 on: 0 of 16 used"),
        (0, 0, ["problem"], "v5litepod-1 takes 1"),
    ],
)
def test_v5e_is_judged_by_the_quota_for_serving_and_by_that_for_training(serving, training, levels_of, said):
    zone = "us-west4-a"
    wanted = PlannedUse("p-roject", (zone,), "v5e", Tier.ON_DEMAND, external_ips=True)
    quotas = (
        parse_tpu_quota("TPUV5sLitepodPerProjectPerZoneForTPUAPI", zone, training),
        parse_tpu_quota("TPUV5sLitepodServingPerProjectPerZoneForTPUAPI", zone, serving),
    )
    found = tpu_quota(wanted=wanted, tpu_quotas=Reading(quotas))
    assert levels(found) == levels_of
    assert said in found[0].what


def test_full_quota_is_a_problem_only_where_dead_requests_fill_it():
    alive = Reading(find_holdings(CATALOG, [a_node()], []))
    dead = Reading(find_holdings(CATALOG, [], [a_queued(state=QueuedState.SUSPENDED)]))
    full = tpu_quotas(spot=16)
    assert levels(tpu_quota(tpu_quotas=full, holdings=alive)) == ["warning"]
    assert levels(tpu_quota(tpu_quotas=full, holdings=dead)) == ["problem"]
    assert levels(tpu_quota(tpu_quotas=full, holdings=UNREAD)) == ["warning"]


def region(*quotas: ComputeQuota) -> dict[str, Any]:
    return {"us-central2": Reading(quotas)}


@pytest.mark.parametrize(
    ("quota", "external", "expected"),
    [
        (ComputeQuota(ADDRESSES, 8, 8, "us-central2"), True, "problem"),
        (ComputeQuota(ADDRESSES, 8, 8, "us-central2"), False, "ok"),
        (ComputeQuota(INSTANCES, 8, 8, "us-central2"), True, "warning"),
        (ComputeQuota("CPUS", 8, 8, "us-central2"), True, "warning"),
    ],
)
def test_side_quotas_of_a_region(quota, external, expected):
    wanted = replace(facts().wanted, external_ips=external)
    found = side_findings(facts(wanted=wanted, regions=region(quota)))
    assert str(found[0].level) == expected


def test_how_many_hosts_the_side_quotas_allow_is_said():
    words = " ".join(each.what for each in side_findings(facts()))
    assert "6 more hosts with an address" in words
    assert "22 more hosts" in words
    assert "35 more slices at most" in words


@pytest.mark.parametrize(
    ("place", "zone", "near"),
    [
        (BucketPlace("US-CENTRAL2", "region"), "us-central2-b", True),
        (BucketPlace("US-CENTRAL1", "region"), "us-central2-b", False),
        (BucketPlace("US", "multi-region"), "us-east1-d", True),
        (BucketPlace("EU", "multi-region"), "us-east1-d", False),
        (BucketPlace("EU", "multi-region"), "europe-west4-a", True),
        (BucketPlace("ASIA", "multi-region"), "asia-northeast1-b", True),
        (BucketPlace("NAM4", "dual-region"), "us-east1-d", True),
        (BucketPlace("NAM4", "dual-region"), "us-east5-a", False),
        (BucketPlace("US", "dual-region", ("us-east1", "us-west1")), "us-central2-b", False),
        (BucketPlace("US", "dual-region", ("us-east1", "us-west1")), "us-east1-d", True),
    ],
)
def test_buckets_are_near_in_their_own_regions(place, zone, near):
    assert place.is_near(zone) is near


@pytest.mark.parametrize(
    ("zones", "level"),
    [
        (("us-central2-b",), "problem"),
        (("us-central2-b", "us-east1-d"), "warning"),
        (("us-east1-d",), "ok"),
        ((), "ok"),
    ],
)
def test_a_bucket_near_some_of_the_zones_is_only_a_warning(zones, level):
    wanted = PlannedUse(
        "p-roject", zones, "v4", Tier.SPOT, external_ips=True, buckets={"b": "checkpoint_bucket"}
    )
    found = check_buckets(facts(wanted=wanted, buckets={"b": Reading(BucketPlace("US-EAST1", "region"))}))
    assert levels(found) == [level]


def test_a_missing_bucket_is_a_problem_and_an_unreadable_one_is_not():
    wanted = PlannedUse(
        "p-roject", (ZONE,), "v4", Tier.SPOT, external_ips=True, buckets={"b": "checkpoint_bucket"}
    )
    gone = Reading[BucketPlace](error=NotFoundError("no such bucket"))
    assert levels(check_buckets(facts(wanted=wanted, buckets={"b": gone}))) == ["problem"]
    assert levels(check_buckets(facts(wanted=wanted, buckets={"b": UNREAD}))) == ["warning"]


STOPPED = Health(Verdict.STOPPED, "no watchdog has made a pass for 3 h; the last was desk")
NEVER = Health(Verdict.NEVER, "no watchdog has made a pass yet")
INSTALLED = WatchFacts(True, in_crontab=True, cron_runs=True)
NONE = WatchFacts(False, in_crontab=False, cron_runs=True)


@pytest.mark.parametrize(
    ("watch", "health", "wanted", "level", "said"),
    [
        (INSTALLED, GOOD, 1, "ok", "passes"),
        (NONE, GOOD, 1, "ok", "passes"),
        (INSTALLED, STOPPED, 0, "problem", "3 h"),
        (NONE, STOPPED, 1, "warning", "1 slice or run counts on one"),
        (NONE, NEVER, 2, "warning", "2 slices and runs count"),
        (NONE, NEVER, 0, "ok", "nothing needs one"),
        (replace(INSTALLED, in_crontab=False), GOOD, 1, "problem", "gone from the crontab"),
        (replace(INSTALLED, in_crontab=False, timer=True), GOOD, 1, "ok", "passes"),
        (replace(INSTALLED, cron_runs=False), GOOD, 1, "problem", "no cron daemon"),
        (replace(INSTALLED, cron_runs=None), GOOD, 1, "ok", "passes"),
    ],
)
def test_the_watchdog_by_its_schedule_and_its_heartbeats(watch, health, wanted, level, said):
    records = StoreRecords(health=health, wanted=wanted)
    [found] = check_watchdog(facts(watch=Reading(watch), records=Reading(records)))
    assert (str(found.level), said in found.what) == (level, True), found


def test_a_pause_is_said():
    records = StoreRecords(health=GOOD, wanted=1, paused="ada paused the fleet")
    [found] = check_watchdog(facts(records=Reading(records)))
    assert (found.level, found.fix) == ("warning", "tpuctl resume")


@pytest.mark.parametrize(
    ("store", "level", "said"),
    [
        (StoreFacts("/s", exists=False), "ok", "none yet"),
        (StoreFacts("/s", exists=False, writable=False), "problem", "not writable"),
        (StoreFacts("/s", schema=1, known_schema=1, writable=False), "problem", "cannot be written"),
        (StoreFacts("/s", schema=1, known_schema=2), "warning", "old schema 1"),
        (StoreFacts("/s", schema=3, known_schema=2), "problem", "this tpuctl is old"),
        (StoreFacts("/s", locked=True, holder="tpuctl run (pid 7)"), "problem", "locked by tpuctl run (pid 7)"),
        (StoreFacts("/s", damage="malformed"), "problem", "damaged"),
        (StoreFacts("/s", schema=1, known_schema=1, free_bytes=4096), "problem", "no room on the disk"),
        (StoreFacts("/s", schema=1, known_schema=1, read_only=True), "problem", "mounted read-only"),
    ],
)
def test_the_store(store, level, said):
    found = [each for each in examine(facts(store=Reading(store))) if each.check == "store"]
    assert [(str(each.level), said in each.what) for each in found] == [(level, True)], found


def test_a_missing_library_is_a_problem_and_a_missing_gcloud_a_warning():
    tools = (ToolFacts("paramiko", None, "needed", needed=True), ToolFacts("gcloud", None, "logging in"))
    assert worst(tools=Reading(tools)) == [("tools", "problem"), ("tools", "warning")]


def test_a_network_in_which_hosts_do_not_reach_each_other():
    bare = Reading(Firewall({"us-central2": ("10.152.0.0/20",), "us-east5": ("10.202.0.0/20",)}, ()))
    (found,) = [each for each in examine(facts(firewall=bare)) if each.level != "ok"]
    assert (found.check, str(found.level)) == ("vpc", "warning")
    assert "runs of several hosts stand still" in found.what
    assert found.fix == (
        "gcloud compute firewall-rules create default-allow-internal --network=default "
        "--allow=tcp,udp,icmp --source-ranges=10.128.0.0/9 --project=p-roject"
    )


def test_a_network_of_own_ranges_gets_a_rule_for_these():
    ranges = {"us-central2": ("10.0.0.0/20", "10.1.0.0/20"), "us-east5": ("10.9.0.0/20",)}
    (found,) = [each for each in examine(facts(firewall=Reading(Firewall(ranges, ())))) if each.level != "ok"]
    assert found.fix is not None
    assert "--source-ranges=10.0.0.0/20,10.1.0.0/20 " in found.fix


def test_rules_for_some_hosts_and_rules_that_cannot_be_read_are_no_problem():
    some = Reading(
        Firewall({"us-central2": ("10.152.0.0/20",)}, parse_rules([{**INTERNAL, "targetTags": ["a"]}]))
    )
    assert worst(firewall=some) == []
    assert worst(firewall=UNREAD) == [("vpc", "warning")]
    of_another = [
        each for each in examine(facts(firewall=Reading(error=DeniedError("no")))) if each.check == "vpc"
    ]
    assert [str(each.level) for each in of_another] == ["ok"]
    assert "not known if hosts reach each other" in of_another[0].what


def test_a_fleet_with_disks_and_secrets_needs_their_roles():
    plain = Reading(frozenset(asked_permissions(())))
    assert worst(permissions=plain) == []
    uses = Reading(StoreRecords(health=GOOD, wanted=1, uses=frozenset(FleetUse)))
    found = [each for each in examine(facts(permissions=plain, records=uses)) if each.level != "ok"]
    assert [str(each.level) for each in found] == ["warning", "warning"]
    assert [each.fix.rpartition("=")[2] for each in found if each.fix] == [
        "roles/compute.storageAdmin",
        "roles/secretmanager.secretAccessor",
    ]
    assert "compute.disks.create" in found[0].what


def test_a_tpu_that_no_slice_wants_is_told_with_what_deletes_it():
    plain, writing = (
        Judged(CloudResource(ResourceKind.NODE, name, ZONE), Fate.DELETE, "big was taken down", writes)
        for name, writes in (("big-1", ()), ("big-2", ("data",)))
    )
    wanted = Judged(CloudResource(ResourceKind.NODE, "big-3", ZONE), Fate.WANTED, "big is wanted")
    found = examine(facts(survey=Reading(TpuSurvey((plain, writing, wanted), ()))))
    told = [(each.what, each.fix) for each in found if each.check == "tpus"]
    assert told == [
        (f"no slice wants big-1 in {ZONE}: big was taken down", "tpuctl reap"),
        (f"no slice wants big-2 in {ZONE}: big was taken down", "tpuctl reap --force"),
    ]
