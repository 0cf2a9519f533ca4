"""The metrics services of simulated hosts, read by ours over ssh and by Google's tpu-info."""

from __future__ import annotations

import errno
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.support.hosts import NODE, TIERS, Lab, open_lab, populate, require_tier
from tests.support.tpu_info import read_by_tpu_info
from tpuctl.errors import UsageError
from tpuctl.model.hosts import HostTarget
from tpuctl.sim.hosts.metrics_server import Devices, Load, MetricsServers, change_load, share
from tpuctl.ssh.remote import SshRemote
from tpuctl.telemetry.read import MetricsServices

if TYPE_CHECKING:
    from tpuctl.engine.ports import Remote

GIB = 1 << 30
FIRST = {0: [8431], 1: [8431]}
pytestmark = pytest.mark.slow


class Chips:
    """Two hosts of four chips, whose programs a test makes up."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.servers = MetricsServers()
        self.remote = SshRemote(lab.key_file)
        self.targets = [
            HostTarget("lab", worker, each.external_ip, each.ssh_port, "alice", each.host_key)
            for worker, each in enumerate(lab.addresses)
        ]

    def load(self, worker: int, per_chip: int = 1, **fields: Any) -> None:
        load = change_load(Load(), {name: str(value) for name, value in fields.items()})
        ids = range(worker * 4 * per_chip, (worker + 1) * 4 * per_chip)
        devices = Devices(load, ids, per_chip, 32 * GIB // per_chip, f"host-{worker}")
        streams = {port: self.servers.streams(each) for port, each in share(devices)}
        self.lab.hosts.serve(NODE, worker, streams)

    def services(self, per_chip: int = 1) -> MetricsServices:
        return MetricsServices(self.remote, self.targets, per_chip=per_chip)

    def close(self) -> None:
        for worker in (0, 1):
            self.lab.hosts.serve(NODE, worker, {})
        self.remote.close()
        self.servers.close()


@pytest.fixture(scope="module", params=TIERS)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    require_tier(request.param)
    with open_lab(request.param, tmp_path_factory.mktemp("lab")) as opened:
        yield populate(opened)


@pytest.fixture
def chips(lab: Lab) -> Iterator[Chips]:
    with closing(Chips(lab)) as found:
        yield found


def test_without_a_program_no_host_has_a_service(chips: Chips) -> None:
    with chips.services() as opened:
        samples, silent = opened.read_chips(FIRST)
    assert samples == []
    assert [(each.worker, each.port, each.hangs) for each in silent] == [(0, 8431, False), (1, 8431, False)]
    assert all("no server" in each.why for each in silent)


def test_each_host_tells_of_its_own_chips_on_the_same_port(chips: Chips) -> None:
    chips.load(0, duty=91.5, hbm_gib=24, queue=2)
    chips.load(1, duty=7, hbm_gib=1, queue=0)
    with chips.services() as opened:
        samples, silent = opened.read_chips(FIRST)
    assert silent == []
    assert [(each.worker, each.device) for each in samples] == [
        (w, 4 * w + n) for w in (0, 1) for n in range(4)
    ]
    told = {(each.hbm_used, each.hbm_total, each.duty_percent, each.queue) for each in samples}
    assert told == {(24 * GIB, 32 * GIB, 91.5, 2), (GIB, 32 * GIB, 7.0, 0)}


def test_several_processes_of_a_host_are_all_asked(chips: Chips) -> None:
    chips.load(0, ports="8431,8432,8433,8434")
    chips.load(1, ports="8431,8432")
    with chips.services() as opened:
        samples, silent = opened.read_chips(dict.fromkeys((0, 1), range(8431, 8435)))
    ports = {(each.worker, each.device): each.port for each in samples}
    assert [ports[0, n] for n in range(4)] == [8431, 8432, 8433, 8434]
    assert [ports[1, n] for n in range(4, 8)] == [8431, 8431, 8432, 8432]
    assert [(each.worker, each.port) for each in silent] == [(1, 8433), (1, 8434)]


def test_a_service_that_hangs_costs_its_own_row_alone(chips: Chips) -> None:
    chips.load(0, server="hangs")
    chips.load(1)
    with chips.services() as opened:
        begun = time.monotonic()
        samples, [silent] = opened.read_chips(FIRST, timeout_s=6)
    assert time.monotonic() - begun < 30
    assert (silent.worker, silent.hangs) == (0, True)
    assert {each.worker for each in samples} == {1}


def test_what_another_version_does_not_tell_is_unknown_and_not_zero(chips: Chips) -> None:
    chips.load(0, server="drifted")
    chips.load(1, server="plain")
    with chips.services() as opened:
        samples, _ = opened.read_chips(FIRST)
        cores, silent = opened.read_cores(FIRST)
    drifted, plain = (next(each for each in samples if each.worker == worker) for worker in (0, 1))
    assert (drifted.hbm_used, drifted.hbm_total, drifted.queue) == (None, 32 * GIB, None)
    assert drifted.duty_percent == 90.0
    assert (plain.hbm_total, plain.queue) == (32 * GIB, 1)
    assert cores == []
    assert {each.why for each in silent} == {"this version of libtpu does not tell that"}


class Full:
    """A machine that has no descriptors left."""

    def forward(self, *_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")


def test_where_this_machine_can_open_no_way_that_is_said() -> None:
    opened = MetricsServices(cast("Remote", Full()), ())
    samples, [silent] = opened.read_chips({0: [8431]})
    assert (samples, silent.why) == ([], "no way there from this machine: [Errno 24] Too many open files")
    assert opened.read_figures({0: [9431]}) == {0: {}}


class Dripping(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
        with suppress(OSError):
            for _ in range(200):
                self.wfile.write(b"#")
                time.sleep(0.05)


class Here:
    """A way that leads to a port of this machine."""

    def __init__(self, port: int) -> None:
        self.local_port = port

    def forward(self, *_: Any, **__: Any) -> Any:
        return self

    def close(self) -> None:
        pass


def test_a_page_that_never_ends_is_given_up_in_time() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), Dripping) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        opened = MetricsServices(cast("Remote", Here(server.server_address[1])), ())
        begun = time.monotonic()
        assert opened.read_figures({0: [9431]}, timeout_s=0.5) == {0: {}}
        assert time.monotonic() - begun < 5


def test_a_service_that_begins_later_is_found_through_the_same_channel(chips: Chips) -> None:
    with chips.services() as opened:
        assert opened.read_chips(FIRST)[0] == []
        chips.load(0, duty=50)
        until = time.monotonic() + 30
        while not (samples := opened.read_chips(FIRST)[0]):
            assert time.monotonic() < until
            time.sleep(0.2)
    assert {each.duty_percent for each in samples} == {50.0}


def test_what_cores_execute(chips: Chips) -> None:
    chips.load(0, launch=70, run=71, queue=2, fingerprint="00ff")
    chips.load(1, launch=69, error="core halted")
    with chips.services() as opened:
        plain, _ = opened.read_cores(FIRST)
        cores, _ = opened.read_cores(FIRST, hlo=True)
    first, last = cores[0], cores[-1]
    told = (
        first.worker,
        first.core,
        first.chip,
        first.fingerprint,
        first.launch_id,
        first.run_id,
        first.queued,
    )
    assert told == (0, 0, 0, "00ff", 70, 71, 2)
    assert (last.worker, last.core, last.launch_id, last.error) == (1, 7, 69, "core halted")
    assert ({each.location for each in plain}, {each.location for each in cores}) == ({""}, {"fusion.42"})


@pytest.mark.parametrize("lab", ["process"], indirect=True)  # only these are in this machine's network
@pytest.mark.parametrize(("chip", "per_chip"), [("V4", 1), ("V3", 2)])
def test_tpu_info_reads_the_same_figures(chips: Chips, chip: str, per_chip: int) -> None:
    chips.load(1, per_chip, duty=63.5, hbm_gib=3.25, queue=3, bandwidth=12.5, idle_s=1.5, launch=70, run=71)
    theirs = read_by_tpu_info(f"{chips.lab.addresses[1].internal_ip}:8431", chip)
    with chips.services(per_chip) as opened:
        ours, _ = opened.read_chips(FIRST)
        cores, _ = opened.read_cores(FIRST, hlo=True)
    usage = [(each.device, each.hbm_used, each.hbm_total, each.duty_percent) for each in ours]
    assert [tuple(each.values()) for each in theirs["usage"]] == usage
    assert [tuple(each.values()) for each in theirs["queue"]] == [(each.device, each.queue) for each in ours]
    assert theirs["bandwidth"] == [[each.device, 12.5] for each in ours]
    assert theirs["idle"][: len(ours)] == [[each.device, 1.5] for each in ours]
    assert {each["mean"] for each in theirs["timing"]} == {2**11.5}
    assert set(map(len, theirs["transfers"].values())) == {1}
    assert len(theirs["transfers"]) == 8
    for core, their in zip(cores, theirs["cores"], strict=True):
        assert (core.core, core.chip, core.fingerprint) == (
            their["global_core_id"],
            their["chip_id"],
            their["program_fingerprint"],
        )
        assert core.queued == len(their["queued_programs"])
        assert core.location == their["sequencer_states"][0]["hlo_location"]
        assert core.run_id == their["sequencer_states"][0]["run_id"]


def test_the_service_goes_with_the_power_of_its_host(tmp_path: Path) -> None:
    with open_lab("process", tmp_path) as lab, closing(Chips(populate(lab))) as chips:
        chips.load(0)
        with chips.services() as opened:
            assert {each.worker for each in opened.read_chips(FIRST)[0]} == {0}
        lab.hosts.stop(NODE)
        lab.hosts.start(NODE)
        with chips.services() as opened:
            assert opened.read_chips(FIRST)[0] == []


@pytest.mark.parametrize("said", ["duty=lots", "duty=101", "ports=a,b", "colour=red"])
def test_a_load_that_is_none_is_named_as_it_was_typed(said: str) -> None:
    name, _, value = said.partition("=")
    with pytest.raises(UsageError, match=f"^this is no load: {said}$"):
        change_load(Load(), {name: value})
