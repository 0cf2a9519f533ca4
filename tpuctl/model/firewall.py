"""Firewall rules of a VPC network, and whether they let the hosts of a slice talk to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from ipaddress import IPv4Network, ip_network
from typing import Any

from msgspec import Struct

PROBED_PORT = 30_000
"""Any port of which Google says nothing: it opens 8470, 8471, 8474, 8476 and 11211 between hosts by itself."""


AUTO_RANGE = "10.128.0.0/9"
"""The subnetworks of all regions of a network in auto mode: cloud.google.com/vpc/docs/subnets."""


class FirewallRule(Struct, frozen=True):
    """A rule for what arrives. `sources` are ranges; `limited`: it is for some machines, or from some, by tags
    or accounts. `protocols`: (protocol, its ports as `80` or `0-65535`, none for all)."""

    name: str
    priority: int
    allows: bool
    sources: tuple[str, ...]
    limited: bool
    protocols: tuple[tuple[str, tuple[str, ...]], ...]


class Firewall(Struct, frozen=True):
    """The ranges of a network's subnetworks by region, and the rules for what arrives in it."""

    ranges: Mapping[str, tuple[str, ...]]
    rules: tuple[FirewallRule, ...]


class Reach(StrEnum):
    """Whether one host of a range can open a TCP connection to another."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def parse_rules(found: Iterable[Mapping[str, Any]]) -> tuple[FirewallRule, ...]:
    """Those for what arrives that are in force (cloud.google.com/compute/docs/reference/rest/v1/firewalls)."""
    return tuple(
        _rule(each) for each in found if each.get("direction") != "EGRESS" and not each.get("disabled")
    )


def _rule(found: Mapping[str, Any]) -> FirewallRule:
    labels = ("sourceTags", "sourceServiceAccounts", "targetTags", "targetServiceAccounts")
    listed = found.get("allowed") or found.get("denied") or ()
    return FirewallRule(
        name=str(found["name"]),
        priority=int(found.get("priority", 1000)),
        allows=bool(found.get("allowed")),
        sources=tuple(found.get("sourceRanges", ())),
        limited=any(found.get(key) for key in labels),
        protocols=tuple((str(each["IPProtocol"]).lower(), tuple(each.get("ports", ()))) for each in listed),
    )


def judge_reach(inside: str, rules: Sequence[FirewallRule], port: int = PROBED_PORT) -> Reach:
    """Whether hosts whose addresses are in the range `inside` reach each other's TCP `port`.

    The first rule that fits decides, by priority, a denial first; without one nothing arrives
    (cloud.google.com/firewall/docs/firewalls). One before it that is for some hosts only, and says otherwise,
    leaves it open.
    """
    for_some: set[bool] = set()
    for rule in sorted(rules, key=lambda each: (each.priority, each.allows)):
        if not _speaks_of(rule, port):
            continue
        if not rule.limited and _covers(rule, inside):
            return Reach.UNKNOWN if for_some - {rule.allows} else Reach.YES if rule.allows else Reach.NO
        if rule.limited or _touches(rule, inside):
            for_some.add(rule.allows)
    return Reach.UNKNOWN if True in for_some else Reach.NO


def _speaks_of(rule: FirewallRule, port: int) -> bool:
    return any(
        protocol in ("all", "tcp", "6") and (not ports or any(_in_span(port, each) for each in ports))
        for protocol, ports in rule.protocols
    )


def _in_span(port: int, span: str) -> bool:
    first, _, last = span.partition("-")
    return int(first) <= port <= int(last or first)


def _covers(rule: FirewallRule, inside: str) -> bool:
    net = ip_network(inside)
    return any(
        net.version == each.version and net.subnet_of(each)  # type: ignore[arg-type]
        for each in map(ip_network, rule.sources)
    )


def _touches(rule: FirewallRule, inside: str) -> bool:
    net = ip_network(inside)
    return any(net.version == each.version and net.overlaps(each) for each in map(ip_network, rule.sources))


def internal_rule(network: str, ranges: Sequence[str], project: str) -> str:
    """The command that lets hosts of these ranges reach each other. `network` may be a path, of another project
    then; without ranges those of a network in auto mode."""
    path = network.split("/")
    rule = f"gcloud compute firewall-rules create {path[-1]}-allow-internal --network={path[-1]}"
    sources = f"--allow=tcp,udp,icmp --source-ranges={_shortest(ranges)}"
    return f"{rule} {sources} --project={path[1] if path[0] == 'projects' else project}"


def _shortest(ranges: Sequence[str]) -> str:
    auto = IPv4Network(AUTO_RANGE)
    if all(isinstance(net, IPv4Network) and net.subnet_of(auto) for net in map(ip_network, ranges)):
        return AUTO_RANGE
    return ",".join(ranges)
