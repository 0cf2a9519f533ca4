"""Looks at a slice a number of times as `tpuctl top` does: `python -m tests.bench.clients.looks NAME COUNT`."""

from __future__ import annotations

import sys

from tpuctl.cli.context import AppContext
from tpuctl.cli.invocation import Invocation
from tpuctl.telemetry.observe import Observer
from tpuctl.views.top import frame_facts, take_frame


def main(name: str, looks: int) -> None:
    with AppContext(Invocation(arguments=[])) as context, Observer(context) as observer:
        for _ in range(looks):
            facts = frame_facts(take_frame(context, observer, name))
            print(sum(len(each["chips"]) for each in facts["workers"] if not each["error"]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
