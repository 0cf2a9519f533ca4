"""Firewall rules of the simulated network: what hosts are told, and how rules and the network come and go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.session import Session, open_session
from tpuctl.sim.hosts.isolated.firewall import Machine, render_filter

ME = Machine("a", "10.200.1.1", "10.200.17.1", frozenset({"me"}))
PEER = Machine("a", "10.200.1.2", "10.200.17.2", frozenset({"peer"}))
OTHER = Machine("b", "10.200.1.3", "10.200.17.3", frozenset())
TCP: list[dict[str, Any]] = [{"IPProtocol": "tcp", "ports": ["22", "80-90"]}]
OPENED = "ip saddr { 10.200.1.1, 10.200.1.2 } tcp dport { 8470, 8471, 8474, 8476, 11211 } accept"


def rule(priority: int = 1000, **more: Any) -> dict[str, Any]:
    return {"priority": priority, "sourceRanges": ["10.128.0.0/9"], **more}


def chain(text: str, name: str) -> list[str]:
    """What one chain of a filter does, but for its last drop."""
    body = (
        text.split(f"chain {name} {{\n")[1].split("}\n")[0] if name != "inside" else text.split("inside {\n")[1]
    )
    lines = [line.strip() for line in body.split("\n")]
    return lines[: lines.index("drop")]


@pytest.mark.parametrize(
    ("rules", "inside", "outside"),
    [
        ([], [], []),
        ([rule(allowed=TCP)], ["ip saddr { 10.128.0.0/9 } tcp dport { 22, 80-90 } accept"], []),
        (
            [rule(allowed=TCP, sourceRanges=["0.0.0.0/0"])],
            ["tcp dport { 22, 80-90 } accept"],
            ["tcp dport { 22, 80-90 } accept"],
        ),
        ([rule(allowed=TCP, sourceRanges=["8.8.8.0/24"])], None, ["tcp dport { 22, 80-90 } accept"]),
        (
            [rule(allowed=[{"IPProtocol": "all"}]), rule(denied=[{"IPProtocol": "udp"}]), rule(9, allowed=TCP)],
            [
                "ip saddr { 10.128.0.0/9 } tcp dport { 22, 80-90 } accept",
                "ip saddr { 10.128.0.0/9 } meta l4proto 17 drop",
                "ip saddr { 10.128.0.0/9 } accept",
            ],
            [],
        ),
        ([rule(allowed=TCP, targetTags=["others"])], [], []),
        ([rule(allowed=TCP, disabled=True), rule(allowed=TCP, direction="EGRESS")], [], []),
        (
            [{"sourceTags": ["peer"], "targetTags": ["me"], "allowed": TCP}],
            ["ip saddr { 10.200.1.2/32 } tcp dport { 22, 80-90 } accept"],
            [],
        ),
    ],
)
def test_the_first_rule_that_fits_decides(
    rules: list[dict[str, Any]], inside: list[str] | None, outside: list[str]
) -> None:
    text = render_filter(rules, ME, [ME, PEER, OTHER])
    assert chain(text, "outside") == outside
    first, *rest = chain(text, "inside")
    assert first == OPENED
    assert inside is None or rest == inside
    assert "ip daddr 10.200.17.1 jump outside" in text
    assert "ip daddr 10.200.1.1 jump inside" in text


@pytest.fixture
def session() -> Any:
    with open_session() as made:
        yield made


@pytest.mark.slow
def test_process_hosts_have_no_firewall_and_a_new_network_has_no_rules(session: Session) -> None:
    session.type("sim", "down")
    refused = session.type("sim", "up", "--firewall", "strict", status=2).stderr
    assert "--hosts isolated --firewall strict" in refused
    assert "no firewall `loose`" in session.type("sim", "up", "--firewall", "loose", status=2).stderr
    session.type("sim", "up", "--instant")
    rules = {"sourceRanges": ["10.128.0.0/9"], "allowed": [{"IPProtocol": "tcp"}]}
    assert len(listed(session)) == 4
    call(session, "POST", "firewalls", {"name": "more", **rules})
    call(session, "PATCH", "firewalls/more", {"disabled": True})
    [more] = [each for each in listed(session) if each["name"] == "more"]
    assert (more["disabled"], more["sourceRanges"]) == (True, ["10.128.0.0/9"])
    both = {"name": "both", **rules, "denied": [{"IPProtocol": "udp"}]}
    assert call(session, "POST", "firewalls", both, status=400)
    auto = {"name": "default", "autoCreateSubnetworks": True}
    assert "already exists" in str(call(session, "POST", "networks", auto, status=409))
    session.type("sim", "fault", "no-network")
    assert listed(session) == []
    assert "does not implement" in str(call(session, "POST", "networks", {"name": "mine"}, status=400))
    call(session, "POST", "networks", auto)
    assert listed(session) == []
    call(session, "POST", "firewalls", {"name": "more", **rules})
    assert [each["name"] for each in listed(session)] == ["more"]


def listed(session: Session) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(session, "GET", "firewalls").get("items", [])
    return found


def call(session: Session, verb: str, path: str, body: Any = None, *, status: int = 200) -> dict[str, Any]:
    import requests

    from tpuctl.sim.server import control

    info = control.status(session.root / "state" / "sim")
    assert info is not None
    url = f"{info.http}/compute/v1/projects/{info.project}/global/{path}"
    headers = {"Authorization": f"Bearer {info.token}"}
    answer = requests.request(verb, url, json=body, headers=headers, timeout=60)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found
