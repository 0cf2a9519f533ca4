"""Firewall rules of the simulated network as rules of nftables in the network of each isolated host.

As in the cloud the first rule that fits decides what arrives at a host, by priority, a denial first; without
one it is dropped (cloud.google.com/firewall/docs/firewalls). Whoever connects to the external address of a host
comes from the Internet, whoever connects to its own one from inside the network. What leaves a host is not
filtered.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import collapse_addresses, ip_network
from typing import Any

from tpuctl.errors import TpuctlError
from tpuctl.sim.hosts.files import SYSTEM_PATH

OPENED = (8470, 8471, 8474, 8476, 11211)
"""What Google opens between the hosts of a slice by itself (jax-ml/jax issue 35905)."""
NFT_TIMEOUT_S = 20.0
_NUMBERS = {"tcp": "6", "udp": "17", "icmp": "1"}


@dataclass(frozen=True)
class Machine:
    """A host as rules see it."""

    node_key: str
    address: str
    external: str
    tags: frozenset[str]


def find_nft() -> str | None:
    return shutil.which("nft", path=SYSTEM_PATH)


def render_filter(rules: Sequence[Mapping[str, Any]], me: Machine, everybody: Iterable[Machine]) -> str:
    """What `nft -f` makes of a host's network, from rules as the API has them."""
    machines = list(everybody)
    mine = [each for each in rules if _is_for(each, me)]
    mine.sort(key=lambda each: (int(each.get("priority", 1000)), bool(each.get("allowed"))))
    outside = [line for each in mine for line in _lines(each, _public(each))]
    inside = [line for each in mine for line in _lines(each, _sources(each, machines))]
    peers = [each.address for each in machines if each.node_key == me.node_key]
    opened = f"ip saddr {_set(peers)} tcp dport {_set(map(str, OPENED))} accept" if peers else ""
    chains = {"outside": outside, "inside": [opened, *inside]}
    text = "".join(_chain(name, lines) for name, lines in chains.items())
    return (
        "table inet tpuctl {}\ndelete table inet tpuctl\ntable inet tpuctl {\n"
        f"{text}"
        "chain input {\n  type filter hook input priority 0; policy drop;\n"
        '  iif "lo" accept\n  ct state established,related accept\n'
        f"  ip daddr {me.external} jump outside\n  ip daddr {me.address} jump inside\n}}\n}}\n"
    )


def _chain(name: str, lines: Iterable[str]) -> str:
    body = "".join(f"  {line}\n" for line in [*filter(None, lines), "drop"])
    return f"chain {name} {{\n{body}}}\n"


def _is_for(rule: Mapping[str, Any], me: Machine) -> bool:
    if rule.get("direction") == "EGRESS" or rule.get("disabled"):
        return False
    tags = set(rule.get("targetTags") or ())
    return not tags or bool(me.tags & tags)


def _public(rule: Mapping[str, Any]) -> list[str] | None:
    """Where a rule for somebody on the Internet takes him from: anywhere. None where it is for nobody there."""
    nets = map(ip_network, rule.get("sourceRanges") or ())
    return [] if any(net.version == 4 and not net.is_private for net in nets) else None


def _sources(rule: Mapping[str, Any], machines: Iterable[Machine]) -> list[str] | None:
    """Ranges from which it is; none are anywhere, None is nowhere."""
    tags = set(rule.get("sourceTags") or ())
    tagged = [each.address for each in machines if each.tags & tags]
    ranges = [net for net in map(ip_network, [*(rule.get("sourceRanges") or ()), *tagged]) if net.version == 4]
    if any(net.prefixlen == 0 for net in ranges):
        return []
    return [str(net) for net in collapse_addresses(ranges)] or None


def _lines(rule: Mapping[str, Any], sources: list[str] | None) -> list[str]:
    if sources is None:
        return []
    verdict = "accept" if rule.get("allowed") else "drop"
    start = f"ip saddr {_set(sources)} " if sources else ""
    return [f"{start}{_protocol(each)}{verdict}" for each in rule.get("allowed") or rule.get("denied") or ()]


def _protocol(each: Mapping[str, Any]) -> str:
    name = str(each["IPProtocol"]).lower()
    if name == "all":
        return ""
    if each.get("ports"):
        return f"{name} dport {_set(map(str, each['ports']))} "
    return f"meta l4proto {_NUMBERS.get(name, name)} "


def _set(items: Iterable[str]) -> str:
    return f"{{ {', '.join(items)} }}"


def apply_filter(pid: int, text: str) -> None:
    """Filters in the network of the process `pid`. Raises TpuctlError with what nft said."""
    done = subprocess.run(
        ["nsenter", "--net", "--target", str(pid), find_nft() or "nft", "-f", "-"],
        input=text,
        text=True,
        capture_output=True,
        timeout=NFT_TIMEOUT_S,
    )
    if done.returncode != 0:
        why = (done.stderr.strip() or "nft failed").splitlines()[0]
        raise TpuctlError(f"the firewall of isolated hosts cannot be made: {why}")
