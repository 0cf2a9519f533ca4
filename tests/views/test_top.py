"""What `top` says of the programs of a run."""

from __future__ import annotations

from msgspec.structs import replace

from tests.support.builders import a_run, a_slice, an_attempt
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import CompiledFunction, CompileReport, Compiling, Recompiles, WorkerStatus
from tpuctl.model.records import RunState
from tpuctl.telemetry.observe import HostSample
from tpuctl.views.top import TopFrame, frame_facts, program_facts, run_said

NOW = 50_000.0


def host(number: int, *reports: CompileReport) -> HostSample:
    return HostSample(number, status=WorkerStatus(number, WorkerState.RUNNING, time=NOW, compiles=reports))


def test_what_compiles_is_on_the_screen() -> None:
    again = Recompiles(2, 12.0, 100.0, ("(8,4)", "(8,5)"))
    step = CompiledFunction("train_step", "train.py:7", 3, 30.0, again=again)
    reports = [CompileReport(1, asked=2, functions=(step,), now=Compiling("train_step", NOW - 5.0))]
    hosts = [host(0, *reports), host(1), HostSample(2, error="no answer")]
    frame = TopFrame(a_slice(), a_run(progress="step (.*)"), NOW, hosts)
    wanted = {
        "compiled": "cold: 0 of 2 programs loaded, 1 function in 30 s",
        "compiling": "compiling train_step 5 s",
        "troubles": ["train_step (train.py:7) compiled 2 times since step 100 (12 s): (8,4), (8,5)"],
    }
    assert program_facts(frame) == wanted
    assert wanted.items() <= frame_facts(frame).items()
    nothing = {"compiled": None, "compiling": None, "troubles": []}
    assert program_facts(TopFrame(a_slice(), None, NOW, [host(0)])) == nothing


def test_a_run_whose_programs_have_ended_is_not_called_running() -> None:
    ended = WorkerStatus(0, WorkerState.EXITED, exit_status=0, time=NOW, step=9.0, step_at=NOW - 79)
    run = a_run(id="r", state=RunState.RUNNING, attempt=an_attempt(workers=(0, 1)))
    hosts = [HostSample(n, status=replace(ended, worker=n)) for n in range(2)]
    frame = TopFrame(a_slice(), run, NOW, hosts)
    assert run_said(frame) == "run r ended (exit 0), not taken note of: tpuctl attach r"
    assert frame_facts(frame)["workers"][0]["step_age_s"] is None
    for other in (host(1), HostSample(1, error="no answer")):
        assert run_said(TopFrame(a_slice(), run, NOW, [hosts[0], other])) == "run r (running)"
    assert run_said(TopFrame(a_slice(), None, NOW, hosts)) == "no run"
