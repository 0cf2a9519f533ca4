"""What comes of a run whose hosts answer, are silent, or are gone."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import bring_up, run_to_end, submit
from tests.support.memory.process import Process, Steps
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.collect.collect import collecting
from tpuctl.collect.gather import WHOLE
from tpuctl.collect.index import Index
from tpuctl.engine.ports import RemoteCall
from tpuctl.errors import UsageError
from tpuctl.model.records import RunState
from tpuctl.runs.follow import start_run
from tpuctl.runs.host_parts import DRIVER_LOGS, DUMPS
from tpuctl.runs.take_down import take_down
from tpuctl.state.repository import get_run

pytestmark = pytest.mark.slow


def dumping(process: Process) -> Steps:
    """Dumps two modules, of which one is large, and goes on for an hour."""
    folder = Path(process.env["TPUCTL_DUMPS"]) / "hlo"
    folder.mkdir(parents=True)
    (folder / "module_0000.txt").write_text(f"HloModule with {process.env.get('TOKEN', '')}\n")
    (folder / "module_0001.txt").write_bytes(bytes(2 << 20))
    process.print("dumped")
    yield 3600.0
    return 0


@pytest.fixture
def running(place: MemoryPlace, services: MemoryServices) -> str:
    place.hosts.programs["main.py"] = dumping
    bring_up(services, "big")
    run = submit(services, "big", "as dumping says", debug=("hlo",))
    start_run(services, run.id)
    return run.id


def collect(services: MemoryServices, run_id: str, path: Path, limit: int = 1 << 30, *, workers=None) -> Index:
    with collecting(services, get_run(services, run_id).record, path, workers, limit) as collection:
        collection.gather()
        return collection.write(path, "-o")


def contents_of(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]


def test_of_a_run_that_goes_on_each_host_brings_all(services, running, tmp_path):
    index = collect(services, running, tmp_path / "r.tar")
    contents = contents_of(tmp_path / "r.tar")
    assert list(contents)[:5] == ["INDEX.md", "index.json", "run.json", "status.json", "why.json"]
    for worker in (0, 1):
        top = f"hosts/worker-{worker}"
        for name in ("attempts.json", "host.txt", "facts.json"):
            assert contents[f"{top}/{name}"]
        assert len(contents[f"{top}/attempt-1/dumps/0/hlo/module_0001.txt"]) == 2 << 20
    assert json.loads(contents["index.json"])["status"]["debug"] == ["hlo"]
    assert not [each for each in index.missing if each.what == WHOLE]
    only = collect(services, running, tmp_path / "one.tar", workers=[1])
    assert {item.worker for item in only.items} == {None, 1}


def test_each_host_brings_so_much_at_most(services, running, tmp_path):
    index = collect(services, running, tmp_path / "r.tar", 4 << 20)
    assert (tmp_path / "r.tar").stat().st_size < 4 << 20
    cut = [(item.worker, item.files, item.cut_files, item.cut_bytes) for item in index.items if item.cut_files]
    assert cut == [(0, 1, 1, 2 << 20), (1, 1, 1, 2 << 20)]
    assert (
        b"(workers 0-1) without 2 files (4.0 MiB): 1.5 MiB of each host"
        in contents_of(tmp_path / "r.tar")["INDEX.md"]
    )


def test_of_driver_logs_those_since_the_run_began_come(place, services, tmp_path):
    def logging(process: Process) -> Steps:
        folder = Path(process.env["TPU_LOG_DIR"])
        for number in range(-3, 2):
            log = folder / f"tpu_driver.{number}"
            log.write_text("I0000")
            changed = process.started_at + 60 * number + 30
            os.utime(log, (changed, changed))
        yield 3600.0
        return 0

    place.hosts.programs["main.py"] = logging
    bring_up(services, "big")
    run = submit(services, "big", "as logging says", debug=("hlo",))
    start_run(services, run.id)
    index = collect(services, run.id, tmp_path / "r.tar")
    logs = [(item.files, item.older_files) for item in index.items if item.what == DRIVER_LOGS.what]
    assert logs == [(2, 3)] * 2
    contents = contents_of(tmp_path / "r.tar")
    assert "hosts/worker-1/attempt-1/driver-logs/tpu_driver.0" in contents
    assert b"(workers 0-1) without 6 older files" in contents["INDEX.md"]


def test_a_host_that_is_silent_is_named_and_the_others_bring_all(place, services, running, tmp_path):
    place.hosts.all()[0].vanish()
    index = collect(services, running, tmp_path / "r.tar")
    assert [each.worker for each in index.missing if each.what == WHOLE] == [0]
    assert {item.worker for item in index.items if item.path.startswith("hosts/")} == {1}


def test_of_hosts_that_are_gone_there_is_what_this_machine_has(services, running, tmp_path):
    take_down(services, "big")
    index = collect(services, running, tmp_path / "r.tar")
    told = {each.what: each.why for each in index.missing}
    assert told["what hosts say of the run"].startswith("the hosts of its last attempt are gone")
    assert {item.path for item in index.items} >= {"run.json", "status.json", "why.json"}


def test_a_run_that_is_over_has_what_its_hosts_still_have(place, services, tmp_path):
    def quick(process: Process) -> Steps:
        if process.env["TPUCTL_RANK"] == "1":
            (Path(process.env["TPUCTL_DUMPS"]) / "a.txt").write_text("dumped")
        process.print("done")
        yield 1.0
        return 3

    place.hosts.programs["main.py"] = quick
    bring_up(services, "big")
    run = run_to_end(services, "big", "as quick says", debug=("hlo",))
    assert run.state is RunState.FAILED
    index = collect(services, run.id, tmp_path / "r.tar")
    contents = contents_of(tmp_path / "r.tar")
    assert contents["hosts/worker-1/attempt-1/dumps/0/a.txt"] == b"dumped"
    assert [each.worker for each in index.missing if each.what == DUMPS.what] == [0]
    assert contents["logs/attempt-1/worker-1.stdout.log"] == b"done\n"
    assert "hosts/worker-1/stacks.txt" not in contents, "nothing runs"


class Interrupting:
    """Ctrl-C when hosts are asked for `verb`."""

    def __init__(self, inner: Any, verb: str) -> None:
        self._inner = inner
        self._verb = verb

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != "run":
            return found

        def run(targets: Any, call: RemoteCall) -> Any:
            if str(call.command).endswith(self._verb):
                raise KeyboardInterrupt
            return found(targets, call)

        return run


def test_what_came_before_an_interruption_is_kept(services, running, tmp_path):
    services.remote = Interrupting(services.remote, "facts")
    path = tmp_path / "r.tar"
    with collecting(services, get_run(services, running).record, path, None, 1 << 30) as collection:
        with pytest.raises(KeyboardInterrupt):
            collection.gather()
        collection.stop()
        index = collection.write(path, "-o")
    assert index.interrupted
    assert "hosts/worker-1/host.txt" in contents_of(path)
    assert [each.what for each in index.missing][-2:] == ["facts of hosts", "folders of hosts"]
    assert [each.name for each in tmp_path.iterdir()] == ["r.tar"], "nothing else is left"


def test_secrets_are_masked_on_the_host_or_files_stay_there(place, services, monkeypatch, tmp_path):
    monkeypatch.setenv("TOKEN", "correct-horse-battery")
    place.hosts.programs["main.py"] = dumping
    bring_up(services, "big")
    run = submit(services, "big", "as dumping says", debug=("hlo",), secrets={"TOKEN": "env:TOKEN"})
    start_run(services, run.id)
    collect(services, run.id, tmp_path / "r.tar")
    name = "hosts/worker-0/attempt-1/dumps/0/hlo/module_0000.txt"
    assert contents_of(tmp_path / "r.tar")[name] == b"HloModule with " + b"*" * 21 + b"\n"
    place.clock.advance(4000.0)
    monkeypatch.delenv("TOKEN")
    index = collect(services, run.id, tmp_path / "later.tar")
    lost = {each.worker: each.why for each in index.missing if each.what == DUMPS.what}
    assert set(lost) == {0, 1}
    assert lost[0] == "nobody here knows the value of TOKEN any more, so nothing can mask it"
    assert b"correct-horse" not in (tmp_path / "later.tar").read_bytes()


def test_a_place_where_nothing_can_be_written_is_wrong_use(services: MemoryServices, running: str) -> None:
    with pytest.raises(UsageError, match=r"^-o /proc/x.tar "):
        collect(services, running, Path("/proc/x.tar"))
