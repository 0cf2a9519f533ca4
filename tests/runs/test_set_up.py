"""A run for which the project is not set up ends before it begins, with the command that mends it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, a_slice, a_spec
from tests.support.jobs import bring_up, run_to_end, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.memory.stand_ins import OTHER_PORT, USUAL_PORT
from tests.support.session import ROOT
from tpuctl.errors import DeniedError
from tpuctl.hosts.protocol import AccessReply, BucketAccess
from tpuctl.model import timeouts
from tpuctl.model.attempts import AttemptPhase, Cause
from tpuctl.model.firewall import Firewall, internal_rule, parse_rules
from tpuctl.model.records import RunState
from tpuctl.model.refs import MountRef
from tpuctl.model.run_spec import RestartPolicy
from tpuctl.model.shipped_files import read_agent
from tpuctl.runs.reconcile import advance_run
from tpuctl.runs.set_up import BucketUse, blame_access, used_buckets
from tpuctl.state.repository import get_run, save
from tpuctl.watch.reconciler import run_pass

HOUR = 3600.0
OPEN = {"name": "all", "allowed": [{"IPProtocol": "tcp"}], "sourceRanges": ["0.0.0.0/0"]}
RANGES = {"us-central2": ("10.152.0.0/20",)}
RULE = (
    "no firewall rule of network default lets hosts reach each other; mend it: gcloud compute firewall-rules "
    "create default-allow-internal --network=default --allow=tcp,udp,icmp --source-ranges=10.128.0.0/9 "
    "--project="
)
UNKNOWN = "; why is not known; mend it: look what `tpuctl doctor` says of network default"
ACCOUNT = "1-compute@developer.gserviceaccount.com"


class Rules:
    """What can be read of a project; `then` happens while it is."""

    def __init__(self, found: Firewall | None, then: Callable[[], object] = lambda: None) -> None:
        self._found = found
        self._then = then

    def firewall(self, _name: str) -> Firewall:
        self._then()
        if self._found is None:
            raise DeniedError("the rules of another project cannot be read")
        return self._found


@pytest.mark.parametrize(
    ("firewall", "told"),
    [
        (Firewall(RANGES, ()), RULE),
        (None, UNKNOWN),
        (Firewall({}, ()), UNKNOWN),
        (Firewall(RANGES, parse_rules([{**OPEN, "targetTags": ["some"]}])), UNKNOWN),
        (Firewall(RANGES, parse_rules([OPEN])), "allow it; mend it: ask who manages the firewall policies"),
    ],
    ids=["no rule", "unread rules", "no ranges", "for some", "policy"],
)
def test_hosts_that_do_not_reach_each_other_end_a_run_in_seconds(
    place: MemoryPlace, services: MemoryServices, firewall: Firewall | None, told: str
) -> None:
    place.hosts.programs["main.py"] = scripted(HOUR)
    place.hosts.filtered.add(USUAL_PORT)
    services.project_api = Rules(firewall)
    bring_up(services, "big")
    began = services.clock.now()
    run = run_to_end(services, "big", "meets nobody")
    assert services.clock.now() - began < 30
    assert (run.state, run.failures) == (RunState.FAILED, 0)
    assert run.attempt is not None
    assert (run.attempt.cause, run.attempt.number, run.attempt.started_at) == (Cause.NOT_SET_UP, 1, None)
    assert run.reason.startswith("worker 1 cannot reach worker 0 at ")
    assert f":{USUAL_PORT} (no answer in {timeouts.REACH_S} s)" in run.reason
    assert told in run.reason


@pytest.mark.parametrize(("per", "started"), [("chip", False), ("torchrun", False), ("host", True)])
def test_processes_of_several_hosts_need_ports_of_their_own(
    place: MemoryPlace, services: MemoryServices, per: str, started: bool
) -> None:
    place.hosts.programs["main.py"] = scripted(1.0)
    place.hosts.filtered.add(8479)
    services.project_api = Rules(Firewall(RANGES, ()))
    bring_up(services, "big")
    run = run_to_end(services, "big", f"meets by {per}", per=per)
    assert (run.attempt is not None and run.attempt.started_at is not None) is started
    told = ":8479 (no answer in 5 s; where libtpu has a process): no firewall rule of network default"
    assert (told in run.reason) is not started


def test_hosts_of_a_run_that_has_trained_get_time_to_reach_each_other(
    place: MemoryPlace, services: MemoryServices
) -> None:
    place.hosts.programs["main.py"] = scripted(HOUR)
    services.project_api = Rules(None)
    bring_up(services, "big")
    run = submit(services, "big", "trains on")

    def passes(number: int) -> None:
        for _ in range(number):
            place.clock.advance(60.0)
            run_pass(services)

    passes(2)
    assert get_run(services, run.id).record.state is RunState.RUNNING
    place.hosts.filtered.add(USUAL_PORT)
    place.world.preempt("big-1")
    passes(40)
    ended = get_run(services, run.id).record
    assert ended.attempt is not None
    assert (ended.state, ended.attempt.cause, ended.attempt.number) == (RunState.FAILED, Cause.NOT_SET_UP, 2)
    assert ended.attempt.suspect_since is not None
    assert ended.attempt.ending_since is not None
    assert ended.attempt.ending_since - ended.attempt.suspect_since >= timeouts.VERDICT_MAX_S


def test_a_connection_that_fails_once_ends_no_run(place: MemoryPlace, services: MemoryServices) -> None:
    place.hosts.programs["main.py"] = scripted(60.0)
    place.hosts.filtered.add(USUAL_PORT)
    services.project_api = Rules(Firewall(RANGES, ()), then=place.hosts.filtered.clear)
    bring_up(services, "big")
    run = run_to_end(services, "big", "meets in the end")
    assert run.attempt is not None
    assert (run.state, run.attempt.number, run.attempt.mend) == (RunState.SUCCEEDED, 1, "")


def test_a_first_worker_that_is_preempted_before_others_reach_it_is_a_preemption(
    place: MemoryPlace, services: MemoryServices
) -> None:
    def preempt() -> None:
        place.hosts.filtered.clear()
        place.world.preempt("big-1")

    place.hosts.programs["main.py"] = scripted(60.0)
    place.hosts.filtered.add(USUAL_PORT)
    services.project_api = Rules(Firewall(RANGES, ()), then=preempt)
    bring_up(services, "big")
    run = run_to_end(services, "big", "goes on elsewhere", policy=RestartPolicy(max_failures=0))
    assert run.attempt is not None
    assert (run.state, run.attempt.number, run.preemptions) == (RunState.SUCCEEDED, 2, 1)


def test_a_rule_is_not_blamed_where_some_hosts_get_through(
    place: MemoryPlace, services: MemoryServices
) -> None:
    place.hosts.programs["main.py"] = scripted(HOUR)
    services.project_api = Rules(Firewall(RANGES, ()))
    bring_up(services, "big", accelerator_type="v4-32", hosts=4, chips=16)
    place.hosts.filtered.add((USUAL_PORT, place.hosts.all()[2].hostname))
    began = services.clock.now()
    run = run_to_end(services, "big", "three of four")
    assert services.clock.now() - began >= timeouts.VERDICT_MAX_S
    assert run.attempt is not None
    assert run.attempt.cause is Cause.NOT_SET_UP
    assert run.reason.startswith("worker 2 cannot reach worker 0 at ")
    assert run.reason.endswith(UNKNOWN)


def test_a_suspicion_of_something_else_does_not_count(place: MemoryPlace, services: MemoryServices) -> None:
    place.hosts.programs["main.py"] = scripted(60.0)
    services.project_api = Rules(Firewall(RANGES, ()), then=place.hosts.filtered.clear)
    bring_up(services, "big")
    run = submit(services, "big", "was silent before")
    place.clock.advance(1.0)
    advance_run(services, run.id)
    stored = get_run(services, run.id)
    assert stored.record.attempt is not None
    old = replace(
        stored.record.attempt,
        state=AttemptPhase.PREPARING,
        started_at=None,
        suspect_since=services.store.now() - HOUR,
        suspect_why="workers 0-1 do not answer",
    )
    save(services, stored, replace(stored.record, state=RunState.PREPARING, attempt=old))
    place.hosts.filtered.add(USUAL_PORT)
    advance_run(services, run.id)
    again = get_run(services, run.id).record.attempt
    assert again is not None
    assert (again.state, again.suspect_since) == (AttemptPhase.PREPARING, services.store.now())
    assert again.mend.startswith("gcloud compute firewall-rules create")


def test_a_port_that_was_taken_is_named_where_another_is_closed(
    place: MemoryPlace, services: MemoryServices
) -> None:
    place.hosts.programs["main.py"] = scripted(HOUR)
    place.hosts.filtered.add(OTHER_PORT)
    place.hosts.taken_port = USUAL_PORT
    services.project_api = Rules(Firewall(RANGES, ()))
    bring_up(services, "big")
    run = run_to_end(services, "big", "meets elsewhere")
    assert f"; port 8476 of worker 0 is taken: workers meet at {OTHER_PORT}): no firewall rule" in run.reason


@pytest.mark.parametrize(
    ("network", "ranges", "told"),
    [
        ("mine", ["10.9.0.0/16", "10.200.0.0/20"], "--source-ranges=10.9.0.0/16,10.200.0.0/20 --project=p"),
        ("mine", [], "--source-ranges=10.128.0.0/9 --project=p"),
        ("projects/host/global/networks/mine", [], "--source-ranges=10.128.0.0/9 --project=host"),
    ],
)
def test_the_rule_is_for_the_networks_own_ranges_and_project(
    network: str, ranges: list[str], told: str
) -> None:
    rule = internal_rule(network, ranges, "p")
    create = "gcloud compute firewall-rules create mine-allow-internal --network=mine"
    assert rule == f"{create} --allow=tcp,udp,icmp {told}"


def test_buckets_are_those_of_checkpoints_written_mounts_and_packages() -> None:
    mounts = (MountRef("data", "/data", "p", read_only=True), MountRef("out", "/out", "p", "deep"))
    found = used_buckets(
        a_run(checkpoint_dir="gs://ckpt/run1"), a_slice(spec=replace(a_spec(), mounts=mounts)), "gs://wheels"
    )
    assert found == (
        BucketUse("ckpt", "run1/", write=True),
        BucketUse("out", "deep/", write=True),
        BucketUse("wheels", "", write=False),
    )
    assert used_buckets(a_run(), a_slice(), "") == ()


@pytest.mark.parametrize(
    ("found", "why", "hint"),
    [
        (
            BucketAccess("b", lacks=("storage.objects.create",)),
            f"account {ACCOUNT} has no storage.objects.create",
            "User",
        ),
        (BucketAccess("r", lacks=("storage.objects.get",)), "on gs://r", "roles/storage.objectViewer"),
        (BucketAccess("b", absent=True), "no bucket gs://b", "buckets create gs://b --location=us-central2"),
    ],
)
def test_a_refusal_names_account_and_role(found: BucketAccess, why: str, hint: str) -> None:
    uses = [BucketUse("b", "", write=True), BucketUse("r", "", write=False)]
    denied = blame_access(AccessReply(ACCOUNT, (BucketAccess("fine"), found)), uses, "us-central2-b")
    assert denied is not None
    assert why in denied.why
    assert hint in denied.hint
    assert blame_access(AccessReply(ACCOUNT, (BucketAccess("b"),)), uses, "us-central2-b") is None


# The agent itself.


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask_agent(verb: str, request: dict[str, Any], agent: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", agent, verb],
        input=json.dumps(request).encode() + b"\n",
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        check=True,
        timeout=30,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("agent") / "agent.pyz"
    path.write_bytes(read_agent())
    return str(path)


def test_who_answers_is_reached_also_with_a_refusal(agent: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = {"address": "127.0.0.1", "port": server.getsockname()[1], "seconds": 5}
        assert ask_agent("reach", listening, agent) == {"reached": True}
    assert ask_agent("reach", listening, agent) == {"reached": True}
    nowhere = {"address": "255.255.255.255", "port": 1, "seconds": 5}
    assert ask_agent("reach", nowhere, agent)["reached"] is False


def test_the_port_that_is_wanted_is_given_where_nobody_listens(agent: str, tmp_path: Any) -> None:
    asked = {"run": "r", "attempt": "1", "fence": 1, "bundle": None, "want_port": 0}
    wanted = free_port()
    home = {"HOME": str(tmp_path), "TPUCTL_COORDINATOR_PORT": str(wanted)}
    assert ask_agent("prepare", asked, agent, **home)["free_port"] == wanted
    with socket.create_server(("127.0.0.1", wanted)):
        taken = ask_agent("prepare", asked, agent, **home)
    assert taken["taken_port"] == wanted
    assert taken["free_port"] not in (wanted, 0)


class Bucket(BaseHTTPRequestHandler):
    """A metadata server and Cloud Storage in one, for who may do what `allowed` says, `below` a folder at
    least. What `seen` lists was tried with an object; `silent` of it was not answered. `there`: an object that
    may not be replaced."""

    allowed: frozenset[str] = frozenset()
    below: frozenset[str] = frozenset()
    seen: list[str]
    silent: str
    there: bool

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        if path.path.endswith("/email"):
            return self._answer(200, ACCOUNT.encode())
        if path.path.endswith("/token"):
            return self._answer(200, b'{"access_token": "t"}')
        if self.headers["Authorization"] != "Bearer t" or "/absent/" in path.path:
            return self._answer(404, b"")
        if path.path.endswith("/testPermissions"):
            granted = [each for each in parse_qs(path.query)["permissions"] if each in self.allowed]
            return self._answer(200, json.dumps({"permissions": granted}).encode())
        return self._try("list" if path.path.endswith("/o") else "get")

    def do_POST(self) -> None:
        self._try("create")

    def do_DELETE(self) -> None:
        self._try("delete")

    def _try(self, verb: str) -> None:
        self.seen.append(verb)
        if verb == self.silent:
            self.close_connection = True
            return
        if verb == "create" and self.there:
            self._answer(403, b"x does not have storage.objects.delete access to the object")
            return
        may = f"storage.objects.{verb}" in self.allowed | self.below
        self._answer(200 if may else 403, b"{}")

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def serving(
    allowed: set[str], below: set[str], *, silent: str = "", there: bool = False
) -> Iterator[tuple[str, list[str]]]:
    seen: list[str] = []
    said = {"allowed": frozenset(allowed), "below": frozenset(below), "silent": silent, "there": there}
    kind = type("Kind", (Bucket,), {**said, "seen": seen})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


ALL = {f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list")}
READ = {"storage.objects.get", "storage.objects.list"}
CREATE = {"storage.objects.create"}


@pytest.mark.parametrize(
    ("write", "allowed", "below", "lacks", "tried"),
    [
        (True, ALL, set(), set(), []),
        (True, set(), ALL, set(), ["create", "get", "list", "delete"]),
        (True, set(), set(), CREATE | READ, ["create", "delete"]),
        (True, READ, set(), CREATE, ["create", "delete"]),
        (True, CREATE | READ, set(), set(), []),
        (True, READ, CREATE, set(), ["create", "delete"]),
        (True, CREATE, ALL, set(), ["create", "get", "list", "delete"]),
        (True, CREATE, set(), READ, ["create", "get", "list", "delete"]),
        (False, READ, set(), set(), []),
        (False, set(), READ, set(), ["list"]),
        (False, set(), set(), READ, ["list"]),
    ],
    ids=[
        "all",
        "in its folder",
        "nothing",
        "reads",
        "no deletions",
        "adds there",
        "adds, and all there",
        "adds only",
        "read",
        "read there",
        "not read",
    ],
)
def test_what_a_bucket_does_not_grant_as_a_whole_is_tried(
    agent: str, write: bool, allowed: set[str], below: set[str], lacks: set[str], tried: list[str]
) -> None:
    with serving(allowed, below) as (where, seen):
        request = {"buckets": [{"bucket": "b", "prefix": "run1/", "write": write}], "seconds": 20}
        hosts = {"GCE_METADATA_HOST": where, "STORAGE_EMULATOR_HOST": f"http://{where}"}
        answer = ask_agent("bucket_access", request, agent, **hosts)
    [found] = answer["buckets"]
    assert (answer["account"], set(found["lacks"]), seen) == (ACCOUNT, lacks, tried)


def test_what_was_written_to_try_goes_also_where_reading_it_has_no_answer(agent: str) -> None:
    with serving(set(), ALL, silent="get") as (where, seen):
        request = {"buckets": [{"bucket": "b", "prefix": "run1/", "write": True}], "seconds": 20}
        hosts = {"GCE_METADATA_HOST": where, "STORAGE_EMULATOR_HOST": f"http://{where}"}
        assert ask_agent("bucket_access", request, agent, **hosts)["buckets"] == []
    assert (seen[0], seen[-1]) == ("create", "delete")


def test_an_object_of_an_earlier_try_that_cannot_be_replaced_is_no_refusal(agent: str) -> None:
    with serving(set(), CREATE | READ, there=True) as (where, _):
        request = {"buckets": [{"bucket": "b", "prefix": "run1/", "write": True}], "seconds": 20}
        hosts = {"GCE_METADATA_HOST": where, "STORAGE_EMULATOR_HOST": f"http://{where}"}
        assert ask_agent("bucket_access", request, agent, **hosts)["buckets"] == [{"bucket": "b", "lacks": []}]


def test_a_bucket_that_is_not_there_is_told_and_silence_is_not(agent: str) -> None:
    with serving(ALL, set()) as (where, _):
        request = {"buckets": [{"bucket": "absent", "prefix": "", "write": True}], "seconds": 20}
        hosts = {"GCE_METADATA_HOST": where, "STORAGE_EMULATOR_HOST": f"http://{where}"}
        assert ask_agent("bucket_access", request, agent, **hosts)["buckets"] == [
            {"bucket": "absent", "absent": True}
        ]
        hosts["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{free_port()}"
        assert ask_agent("bucket_access", request, agent, **hosts)["buckets"] == []
    assert ask_agent("bucket_access", request, agent, GCE_METADATA_HOST=where) == {}


def test_packages_that_a_bucket_refuses_name_account_and_role(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("env_install", ROOT / "templates" / "env_install.py")
    assert spec is not None
    assert spec.loader is not None
    installer: Any = module_from_spec(spec)
    spec.loader.exec_module(installer)
    with serving(set(), set()) as (where, _):
        monkeypatch.setenv("GCE_METADATA_HOST", where)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{where}")
        with pytest.raises(installer.Failed) as raised:
            installer.download("gs://wheels/a/b.whl", BytesIO())
    role = f"--member=serviceAccount:{ACCOUNT} --role=roles/storage.objectViewer"
    assert str(raised.value) == (
        "gs://wheels/a/b.whl: Cloud Storage answered 403; type: "
        f"gcloud storage buckets add-iam-policy-binding gs://wheels {role}"
    )
