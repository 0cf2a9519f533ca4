"""The real gcloud against the simulated cloud, beyond what `make conformance` types and checks.

Most is in CI alone: gcloud takes longer to start than all else that is done here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from tests.support.require import require_tool
from tests.support.typist import gcloud_typist
from tpuctl.cloud.tpu import GoogleCloud
from tpuctl.model.cloud import Tier
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.sim.server import control
from tpuctl.sim.server.environment import environment
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.server.options import SimOptions

ZONE = "us-central2-b"
VERSION = "tpu-ubuntu2204-base"

pytestmark = [pytest.mark.gcloud, pytest.mark.slow]


@dataclass(frozen=True)
class Gcloud:
    """gcloud with a home and a configuration of its own."""

    info: SimInfo
    home: Path
    binary: str

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "USER": "alice",
            "LANG": "C.UTF-8",
            **environment(self.info),
            "CLOUDSDK_CONFIG": str(self.home / "gcloud"),
        }
        return gcloud_typist(self.binary).type(("gcloud", *arguments), self.home, env, timeout_s=120)

    def ok(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, f"gcloud {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def tpu(self, *arguments: str) -> str:
        return self.ok("compute", "tpus", *arguments, f"--zone={ZONE}")

    def tpu_json(self, *arguments: str) -> Any:
        return json.loads(self.tpu(*arguments, "--format=json"))

    def remote(self, verb: str, *arguments: str) -> list[str]:
        """`tpu-vm ssh` or `scp`, its output in words; plain port 22 needs no flag.

        gcloud 528 puts its own chat about batch sizes on stdout.
        """
        port = self.info.ssh_port
        flag = [] if port == 22 else [f"--{verb}-flag={'-p' if verb == 'ssh' else '-P'} {port}"]
        lines = self.tpu("tpu-vm", verb, *arguments, *flag).splitlines()
        return [word for line in lines if not line.startswith("Using ") for word in line.split()]


@pytest.fixture(scope="module")
def gcloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gcloud]:
    binary = require_tool("gcloud")
    folder = tmp_path_factory.mktemp("g")
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    # gcloud would make this key itself, and talk about it on stdout.
    key = ["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-C", "alice", "-f", home / ".ssh/google_compute_engine"]
    subprocess.run(key, check=True)
    info = control.up(folder / "sim", SimOptions(delays="instant"))
    try:
        yield Gcloud(info, home, binary)
    finally:
        control.down(folder / "sim")


def create(gcloud: Gcloud, name: str, accelerator: str, *flags: str) -> None:
    gcloud.tpu("tpu-vm", "create", name, f"--accelerator-type={accelerator}", f"--version={VERSION}", *flags)


@pytest.fixture(scope="module")
def pair(gcloud: Gcloud) -> Iterator[str]:
    """A slice of two hosts, made and deleted by gcloud."""
    create(gcloud, "pair", "v4-16", "--spot", "--labels=team=a")
    yield "pair"
    gcloud.tpu("tpu-vm", "delete", "pair", "--quiet")
    assert [each["name"] for each in control.state(gcloud.info)["nodes"]] == []


@pytest.mark.long
def test_ssh_runs_on_one_worker_and_on_all(gcloud: Gcloud, pair: str) -> None:
    one = gcloud.remote("ssh", f"alice@{pair}", "--worker=1", "--command=echo ${HOSTNAME##*-}")
    both = gcloud.remote("ssh", f"alice@{pair}", "--worker=all", "--command=echo ${HOSTNAME##*-}")
    assert one == ["1"]
    assert sorted(both) == ["0", "1"]


@pytest.mark.long
def test_scp_copies_to_one_worker_to_all_and_back(gcloud: Gcloud, pair: str) -> None:
    (gcloud.home / "one.txt").write_text("one")
    (gcloud.home / "all.txt").write_text("all")
    gcloud.remote("scp", "one.txt", f"alice@{pair}:", "--worker=0")
    gcloud.remote("scp", "all.txt", f"alice@{pair}:", "--worker=all")
    seen = gcloud.remote("ssh", f"alice@{pair}", "--worker=1", "--command=ls")
    assert seen == ["all.txt"]
    gcloud.remote("scp", f"alice@{pair}:one.txt", "back.txt", "--worker=0")
    assert (gcloud.home / "back.txt").read_text() == "one"


@pytest.mark.long
def test_guest_attributes_show_each_host_key(gcloud: Gcloud, pair: str) -> None:
    text = gcloud.tpu("tpu-vm", "get-guest-attributes", pair)
    found = gcloud.tpu_json("tpu-vm", "get-guest-attributes", pair)
    assert "ssh-ed25519" in text
    keys = {each["worker_id"]: each["value"] for each in found if each["key"] == "ssh-ed25519"}
    assert sorted(keys) == [0, 1]
    assert len(set(keys.values())) == 2


@pytest.mark.soak
def test_guest_attributes_show_what_a_program_on_the_host_published(gcloud: Gcloud) -> None:
    create(gcloud, "beating", "v4-8")
    url = "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/guest-attributes/tpuctl/heartbeat"
    gcloud.remote("ssh", "alice@beating", f"--command=curl -sf -X PUT -d 7 -H 'Metadata-Flavor: Google' {url}")
    found = gcloud.tpu_json("tpu-vm", "get-guest-attributes", "beating", "--query-path=tpuctl/")
    assert [(each["namespace"], each["key"], each["value"]) for each in found] == [("tpuctl", "heartbeat", "7")]
    gcloud.tpu("tpu-vm", "delete", "beating")


@pytest.mark.soak
def test_a_stockout_is_an_error_with_the_clouds_own_words(gcloud: Gcloud) -> None:
    control.fault(gcloud.info, {"preset": "stockout", "name": "none"})
    done = gcloud.run(
        *("compute", "tpus", "tpu-vm", "create", "none", f"--zone={ZONE}"),
        *("--accelerator-type=v4-8", f"--version={VERSION}"),
    )
    assert done.returncode == 1
    assert f'There is no more capacity in the zone "{ZONE}"' in done.stderr.replace("\\", "")


def alpha(gcloud: Gcloud, *arguments: str, zone: str = ZONE) -> subprocess.CompletedProcess[str]:
    return gcloud.run("alpha", "compute", "tpus", "queued-resources", *arguments, f"--zone={zone}")


@pytest.mark.soak
def test_flex_start_of_the_alpha_track_says_for_how_long(gcloud: Gcloud) -> None:
    zone = "us-east5-a"
    done = alpha(
        gcloud,
        *("create", "flex", "--node-id=flex-node", "--accelerator-type=v6e-1"),
        *("--runtime-version=v2-alpha-tpuv6e", "--provisioning-model=flex-start", "--max-run-duration=4h"),
        "--valid-until-duration=6h",
        zone=zone,
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(alpha(gcloud, "describe", "flex", "--format=json", zone=zone).stdout)
    assert (shown["provisioningModel"], shown["runDuration"]) == ("FLEX_START", {"maxRunDuration": "14400s"})
    assert "validUntilDuration" in shown["queueingPolicy"]
    plain = gcloud.ok(
        *("compute", "tpus", "queued-resources", "describe", "flex", f"--zone={zone}", "--format=json")
    )
    assert "provisioningModel" not in json.loads(plain)
    assert alpha(gcloud, "delete", "flex", "--force", "--quiet", zone=zone).returncode == 0


@pytest.mark.soak
def test_several_nodes_come_from_one_request(gcloud: Gcloud) -> None:
    gcloud.tpu(
        *("queued-resources", "create", "multi", "--node-count=2", "--node-prefix=part", "--spot"),
        *("--type=v4", "--topology=2x2x1", f"--runtime-version={VERSION}", "--tags=lab"),
    )
    names = [each["name"].rsplit("/", 1)[-1] for each in gcloud.tpu_json("tpu-vm", "list")]
    assert [name for name in names if name.startswith("part-")] == ["part-0", "part-1"]
    shown = gcloud.tpu_json("tpu-vm", "describe", "part-1")
    assert (shown["acceleratorType"], shown["tags"], shown["multisliceNode"]) == ("v4-8", ["lab"], True)
    words = gcloud.remote(
        "ssh",
        "alice@part-1",
        "--command=curl -s -H Metadata-Flavor:Google "
        "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/attributes/tpu-env",
    )
    assert words[words.index("MEGASCALE_SLICE_ID:") + 1] == "'1'"
    assert words[words.index("MEGASCALE_NUM_SLICES:") + 1] == "'2'"
    gcloud.tpu("queued-resources", "delete", "multi", "--force", "--quiet")


def test_what_tpuctl_asks_for_is_what_gcloud_shows(gcloud: Gcloud) -> None:
    cloud = GoogleCloud("sim-project", gcloud.info.http, Credentials(token=gcloud.info.token))
    cloud.create_queued(
        "ours-1",
        SliceSpec(
            hosts=1,
            chips=4,
            zone=ZONE,
            accelerator_type="v4-8",
            runtime_version=VERSION,
            tier=Tier.SPOT,
            labels={"tpuctl-slice": "ours"},
            metadata={"startup-script": "true"},
            tags=("lab",),
            boot_disk_gib=200,
            valid_for_s=3600.0,
            slices=2,
        ),
    )
    shown = json.loads(alpha(gcloud, "describe", "ours-1", "--format=json").stdout)
    node = shown["tpu"]["nodeSpec"][0]["node"]
    assert (node["labels"], node["tags"]) == ({"tpuctl-slice": "ours"}, ["lab"])
    assert node["bootDiskConfig"] == {"diskSizeGb": "200"}
    assert shown["queueingPolicy"] == {"validUntilDuration": "3600s"}
    assert [each["nodeId"] for each in shown["tpu"]["nodeSpec"]] == ["ours-1-0", "ours-1-1"]
    assert alpha(gcloud, "delete", "ours-1", "--force", "--quiet").returncode == 0


@pytest.mark.soak
def test_managed_folders_are_created_listed_and_deleted(gcloud: Gcloud) -> None:
    gcloud.ok("storage", "buckets", "create", "gs://managed", "--uniform-bucket-level-access")
    gcloud.ok("storage", "managed-folders", "create", "gs://managed/a/", "gs://managed/a/b/")
    shown = json.loads(gcloud.ok("storage", "managed-folders", "list", "gs://managed", "--format=json"))
    assert [each["name"] for each in shown] == ["a/", "a/b/"]
    assert "bucket: managed" in gcloud.ok("storage", "managed-folders", "describe", "gs://managed/a/")
    (gcloud.home / "data.bin").write_bytes(b"x")
    gcloud.ok("storage", "cp", "data.bin", "gs://managed/a/b/data.bin")
    gcloud.ok("storage", "rm", "--recursive", "gs://managed/a")
    assert gcloud.ok("storage", "managed-folders", "list", "gs://managed", "--format=value(name)") == ""


@pytest.mark.soak
def test_a_disk_is_copied_resized_labelled_and_attached_as_the_documents_say(gcloud: Gcloud) -> None:
    zone = f"--zone={ZONE}"

    def disk(name: str) -> Any:
        return json.loads(gcloud.ok("compute", "disks", "describe", name, zone, "--format=json"))

    def attached() -> list[tuple[str, str]]:
        shown = gcloud.ok("compute", "tpus", "tpu-vm", "describe", "dev", zone, "--format=json")
        found = json.loads(shown).get("dataDisks", [])
        return [(each["sourceDisk"].rpartition("/")[2], each["mode"]) for each in found]

    gcloud.ok("compute", "disks", "create", "data", zone, "--size=20GB", "--type=pd-balanced")
    gcloud.ok("compute", "disks", "snapshot", "data", zone, "--snapshot-names=s-1", "--labels=a=b")
    gcloud.ok("compute", "disks", "create", "clone", zone, "--source-disk=data", "--type=pd-balanced")
    gcloud.ok("compute", "disks", "create", "back", zone, "--source-snapshot=s-1")
    assert (disk("clone")["sizeGb"], disk("back")["sizeGb"]) == ("20", "20")
    gcloud.ok("compute", "disks", "resize", "data", zone, "--size=30GB", "--quiet")
    assert disk("data")["sizeGb"] == "30"
    gcloud.ok("compute", "disks", "add-labels", "data", zone, "--labels=team=x")
    gcloud.ok("compute", "snapshots", "add-labels", "s-1", "--labels=team=x")
    assert disk("data")["labels"] == {"team": "x"}
    listed = gcloud.ok(
        "compute", "snapshots", "list", "--filter=labels.team=x", "--format=value(name,diskSizeGb)"
    )
    assert listed.split() == ["s-1", "20"]

    vm = ("--accelerator-type=v4-8", "--version=tpu-ubuntu2204-base")
    gcloud.ok("compute", "tpus", "tpu-vm", "create", "dev", zone, *vm)
    alpha = ("alpha", "compute", "tpus", "tpu-vm")
    gcloud.ok(*alpha, "attach-disk", "dev", zone, "--disk=data", "--mode=read-write")
    full = f"projects/sim-project/zones/{ZONE}/disks/clone"
    gcloud.ok("compute", "tpus", "tpu-vm", "update", "dev", zone, f"--attach-disk=source={full},mode=read-only")
    assert attached() == [("data", "READ_WRITE"), ("clone", "READ_ONLY")]
    [user] = disk("data")["users"]
    assert user.endswith("/instances/dev-w-0")
    in_use = gcloud.run("compute", "disks", "delete", "data", zone, "--quiet")
    assert in_use.returncode == 1
    assert "is already being used by" in in_use.stderr
    gcloud.ok(*alpha, "detach-disk", "dev", zone, "--disk=data")
    assert attached() == [("clone", "READ_ONLY")]
    assert "users" not in disk("data")
    gcloud.ok("compute", "tpus", "tpu-vm", "delete", "dev", zone, "--quiet")
    gcloud.ok("compute", "disks", "delete", "data", "clone", "back", zone, "--quiet")
    gcloud.ok("compute", "snapshots", "delete", "s-1", "--quiet")


@pytest.mark.soak
def test_gcloud_reads_the_quotas(gcloud: Gcloud) -> None:
    control.set_quotas(gcloud.info, {"IN_USE_ADDRESSES/us-east1": 8, "us-east1-d/v6e": 64})
    region = json.loads(gcloud.ok("compute", "regions", "describe", "us-east1", "--format=json"))
    assert {"metric": "IN_USE_ADDRESSES", "limit": 8.0, "usage": 0.0} in region["quotas"]
    project = json.loads(gcloud.ok("compute", "project-info", "describe", "--format=json"))
    assert {each["metric"] for each in project["quotas"]} == {"HEALTH_CHECKS", "SNAPSHOTS"}
    infos = json.loads(
        gcloud.ok(
            "beta", "quotas", "info", "describe", "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI",
            "--service=tpu.googleapis.com", f"--project={gcloud.info.project}", "--format=json",
        )
    )  # fmt: skip
    assert infos["dimensionsInfos"][0]["dimensions"] == {"zone": "us-east1-d"}
    asked = f"--project={gcloud.info.project}"
    gcloud.ok(
        "beta", "quotas", "preferences", "create", "--service=tpu.googleapis.com",
        "--quota-id=TPUV6EPreemptiblePerProjectPerZoneForTPUAPI", "--preferred-value=128",
        "--dimensions=zone=us-east1-d", asked, "--email=sim@tpuctl.invalid", "--preference-id=more",
    )  # fmt: skip
    made = json.loads(gcloud.ok("beta", "quotas", "preferences", "describe", "more", asked, "--format=json"))
    assert made["quotaConfig"]["stateDetail"] == "Quota request approved to 128"
    assert control.set_quotas(gcloud.info, {})["us-east1-d/v6e"] == 128
    assert infos["dimensionsInfos"][0]["details"]["value"] == "64"


def test_gcloud_has_an_account_and_asks_nobody_but_the_simulator(gcloud: Gcloud) -> None:
    folder = environment(gcloud.info)["CLOUDSDK_CONFIG"]
    listed = subprocess.run(
        [gcloud.binary, "auth", "list", "--format=value(account,status)"],
        env={"PATH": os.environ["PATH"], "HOME": str(gcloud.home), **environment(gcloud.info)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert listed.stdout.split() == ["sim@tpuctl.invalid", "*"], folder
    for words in (("logging", "read", "x"), ("iam", "service-accounts", "list"), ("pubsub", "topics", "list")):
        refused = gcloud.run(*words)
        assert refused.returncode != 0
        assert "simulated cloud does not implement" in refused.stderr
