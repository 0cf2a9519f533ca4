"""Where traces that came from hosts lie on this machine."""

from __future__ import annotations

from pathlib import Path

from tests.support.memory.services import MemoryPlace
from tpuctl.hosts.agent import HostAgent
from tpuctl.workers.copy_from import fetch_traces, session_folder


def test_a_session_of_which_nothing_came_leaves_no_folder(tmp_path: Path) -> None:
    place = MemoryPlace()
    services = place.machine()
    folder = session_folder(tmp_path / "traces", "s1")
    agent = HostAgent(services.remote, services.agent_source)
    fetched = fetch_traces(agent, (), "/tmp/x", folder, clock=services.clock, emit=services.emit)
    assert fetched == ((), [])
    assert not folder.exists()
    place.close()
