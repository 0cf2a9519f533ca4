"""Whether hosts reach each other, by the rules of their network."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.model.firewall import Reach, judge_reach, parse_rules

HERE = "10.128.0.0/20"
TCP, SSH, ALL = {"IPProtocol": "tcp"}, {"IPProtocol": "tcp", "ports": ["22"]}, {"IPProtocol": "all"}
SPAN = {"IPProtocol": "tcp", "ports": ["1-1023", "20000-40000"]}


def rule(priority: int = 1000, sources: tuple[str, ...] = ("10.128.0.0/9",), **said: Any) -> dict[str, Any]:
    return {"name": f"r{priority}", "priority": priority, "sourceRanges": list(sources), **said}


@pytest.mark.parametrize(
    ("rules", "reach"),
    [
        ([], Reach.NO),
        ([rule(allowed=[TCP])], Reach.YES),
        ([rule(allowed=[ALL])], Reach.YES),
        ([rule(allowed=[SPAN])], Reach.YES),
        ([rule(allowed=[SSH])], Reach.NO),
        ([rule(allowed=[{"IPProtocol": "udp"}])], Reach.NO),
        ([rule(sources=("0.0.0.0/0",), allowed=[TCP])], Reach.YES),
        ([rule(sources=("192.168.0.0/16", "::/0"), allowed=[TCP])], Reach.NO),
        ([rule(sources=("10.128.0.7/32",), allowed=[TCP])], Reach.UNKNOWN),
        ([rule(allowed=[TCP], disabled=True)], Reach.NO),
        ([rule(allowed=[TCP], direction="EGRESS")], Reach.NO),
        ([rule(allowed=[TCP], targetTags=["web"])], Reach.UNKNOWN),
        ([rule(sources=(), allowed=[TCP], sourceTags=["web"])], Reach.UNKNOWN),
        # The smaller number goes first; at the same number a denial does.
        ([rule(900, denied=[ALL]), rule(allowed=[TCP])], Reach.NO),
        ([rule(denied=[ALL]), rule(900, allowed=[TCP])], Reach.YES),
        ([rule(denied=[ALL]), rule(allowed=[TCP])], Reach.NO),
        # What is for some hosts only decides nothing, and does not matter where it says the same.
        ([rule(900, allowed=[TCP], targetTags=["a"]), rule(allowed=[TCP])], Reach.YES),
        ([rule(900, denied=[TCP], targetTags=["a"]), rule(allowed=[TCP])], Reach.UNKNOWN),
        ([rule(900, denied=[TCP], targetTags=["a"])], Reach.NO),
    ],
)
def test_the_first_rule_that_fits_decides(rules: list[dict[str, Any]], reach: Reach) -> None:
    assert judge_reach(HERE, parse_rules(rules)) is reach
