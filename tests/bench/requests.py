"""What a request to a host costs: an agent that stays for the next one, beside one that starts for each.

Its own client: `python -m tests.bench.requests FARM anew|stays COUNT`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from tests.bench.farms import SSHD, Farm, sshd_farm
from tests.bench.harness import Budget, Contender, Plan, Report, compare, lines, pinned, scratch
from tpuctl.engine.ports import RemoteCall
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.deadline import RemoteWrapper
from tpuctl.hosts.requests import HelloRequest
from tpuctl.model.hosts import HostTarget, RemoteResult
from tpuctl.model.shipped_files import read_agent
from tpuctl.ssh.remote import SshRemote

ANEW, STAYS = "an agent that starts for each", "an agent that stays"
REQUESTS = 50
LEAST = 2.5
"""With the start of the client and the handshake, which both have."""


class Anew(RemoteWrapper):
    """Passes calls on without what may answer in the place of their command."""

    def run(self, targets: Sequence[HostTarget], call: RemoteCall) -> list[RemoteResult]:
        """See `Remote.run`."""
        return super().run(targets, replace(call, server=None))


def measure(plan: Plan) -> list[Report]:
    """Everything on one CPU, so that wall time is what client, sshd and agents need together."""
    if SSHD is None:
        return []
    with scratch() as folder, sshd_farm(folder, 1, cpu=0) as farm, pinned(0):
        file = farm.save(folder / "farm.json")
        contenders = [
            Contender(name, [sys.executable, "-m", "tests.bench.requests", file, how, str(REQUESTS)])
            for name, how in ((ANEW, "anew"), (STAYS, "stays"))
        ]
        compare(contenders, 1)  # the agent is put on the host, and compiled
        medians = compare(contenders, plan.rounds)
    ratio = medians[ANEW].wall_s / medians[STAYS].wall_s
    return [
        Report(
            title=f"{REQUESTS} requests to a host",
            setting="one connection to a real sshd; client and host on one CPU: wall time is that of both",
            baseline=ANEW,
            lines=lines(contenders, medians),
            budgets=(Budget("times less than with a start for each", ratio, LEAST, at_least=True),),
        )
    ]


def main(file: str, how: str, count: str) -> int:
    """0 when all requests were answered."""
    farm = Farm(**json.loads(Path(file).read_text()))
    target = HostTarget("bench", 0, farm.hosts[0], farm.port, farm.user, farm.host_public)
    with closing(SshRemote(Path(farm.key))) as remote:
        agent = HostAgent(Anew(remote) if how == "anew" else remote, read_agent())
        answers = [agent.ask([target], HelloRequest())[0] for _ in range(int(count))]
    return 0 if all(answer.value is not None for answer in answers) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
