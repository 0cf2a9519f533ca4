"""What `top` says of the programs of a run."""

from __future__ import annotations

from tests.support.builders import a_run, a_slice
from tpuctl.hosts.compile_report import CompiledFunction, CompileReport, Compiling, Recompiles
from tpuctl.hosts.protocol import WorkerState, WorkerStatus
from tpuctl.telemetry.observe import HostSample
from tpuctl.views.top import Frame, frame_facts, program_facts

NOW = 50_000.0


def host(number: int, *reports: CompileReport) -> HostSample:
    return HostSample(number, status=WorkerStatus(number, WorkerState.RUNNING, time=NOW, compiles=reports))


def test_what_compiles_is_on_the_screen() -> None:
    again = Recompiles(2, 12.0, 100.0, ("(8,4)", "(8,5)"))
    step = CompiledFunction("train_step", "train.py:7", 3, 30.0, again=again)
    reports = [CompileReport(1, asked=2, functions=(step,), now=Compiling("train_step", NOW - 5.0))]
    hosts = [host(0, *reports), host(1), HostSample(2, error="no answer")]
    frame = Frame(a_slice(), a_run(progress="step (.*)"), NOW, hosts)
    wanted = {
        "compiled": "cold: 0 of 2 programs loaded, 1 function in 30 s",
        "compiling": "compiling train_step 5 s",
        "troubles": ["train_step (train.py:7) compiled 2 times since step 100 (12 s): (8,4), (8,5)"],
    }
    assert program_facts(frame) == wanted
    assert wanted.items() <= frame_facts(frame).items()
    nothing = {"compiled": None, "compiling": None, "troubles": []}
    assert program_facts(Frame(a_slice(), None, NOW, [host(0)])) == nothing
