"""The network of isolated hosts: a bridge per world, a veth pair per host, addresses from a range of its own.

Everything is named after the world, so that it can be found and removed whatever became of its maker.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tpuctl.errors import TpuctlError
from tpuctl.sim.hosts.files import tag_of

PREFIX_LENGTH = 19
"""8,190 addresses: every host of a world has two that no other ever had."""
EXTERNAL = 4096
"""How far its external address is from its own."""
FIRST_HOST = 256
IP_TIMEOUT_S = 20.0
TAKEN = "File exists"
"""What the kernel says of a route that is there already: EEXIST."""


@dataclass(frozen=True)
class Cable:
    """One host's connection: `link` is the end on the bridge, `number` its place in the range. Its own
    `address` is on its interface; what is sent to `external` reaches it, as through Google's NAT."""

    number: int
    link: str
    address: str
    external: str
    mac: str


class Bridge:
    """The bridge of one world. Raises TpuctlError when the machine does not let us have one."""

    def __init__(self, world_id: str) -> None:
        self._tag = tag_of(world_id)
        self.name = f"tpb{self._tag}"
        self._next = FIRST_HOST
        # Without an address of its own a bridge takes the lowest of its ports, and when that changes the kernel
        # forgets all neighbours, permanent ones too (net/ipv4/arp.c, NETDEV_CHANGEADDR).
        run_ip([f"link add {self.name} address {_mac(1)} type bridge"])
        try:
            self.network = self._take_network()
            run_ip([f"link set {self.name} up"])
        except TpuctlError:
            remove_network(world_id)
            raise
        self.gateway = str(self.network[1])

    def _take_network(self) -> ipaddress.IPv4Network:
        """One that is ours when its route is: another simulator may begin at the same time. What is cut off
        must not leave through the machine's own gateway, so it is a blackhole."""
        while True:
            network = _free_network(self._tag)
            # The address first: by it `remove_network` knows the route.
            run_ip([f"address add {network[1]}/{PREFIX_LENGTH} dev {self.name}"])
            try:
                run_ip([f"route add blackhole {network} metric 4000"])
            except TpuctlError as error:
                if TAKEN not in error.message:
                    raise
                run_ip([f"address del {network[1]}/{PREFIX_LENGTH} dev {self.name}"])
            else:
                return network

    def new_cable(self) -> Cable:
        """A cable that is not plugged in yet, with a name and an address that were never used before."""
        number, self._next = self._next, self._next + 1
        if number >= EXTERNAL:
            raise TpuctlError("this simulator has no address left for isolated hosts", hint="tpuctl sim reset")
        addresses = str(self.network[number]), str(self.network[number + EXTERNAL])
        return Cable(number, f"tpv{self._tag}{number:x}", *addresses, _mac(number))

    def plug(self, ends: Iterable[tuple[Cable, int]]) -> None:
        """Connects each cable with the network namespace of the process beside it."""
        lines = []
        for cable, pid in ends:
            lines += [
                f"link add {cable.link} type veth peer name eth0 address {cable.mac} netns {pid}",
                f"link set {cable.link} master {self.name} up",
                # A host that vanished is silent: without this the kernel itself would say so after 3 s.
                *(
                    f"neighbour replace {each} lladdr {cable.mac} dev {self.name} nud permanent"
                    for each in (cable.address, cable.external)
                ),
            ]
        run_ip(lines)

    def unplug(self, cables: Iterable[Cable]) -> None:
        """Cuts the cables for good; nobody is told, packets just go nowhere. Cut ones are fine."""
        run_ip([f"link del {cable.link}" for cable in cables], forgiving=True)

    def set_up(self, cable: Cable, *, up: bool) -> None:
        """Pulls the cable out, or plugs it in again; the host does not notice."""
        run_ip([f"link set {cable.link} {'up' if up else 'down'}"])


def _mac(number: int) -> str:
    """Of what has this place in the range."""
    return f"02:54:50:00:{number >> 8:02x}:{number & 255:02x}"


def remove_network(world_id: str) -> None:
    """Removes every link of a world, by the tag in their names, and its route, whoever made them."""
    tag = tag_of(world_id)
    links = [str(row["ifname"]) for row in _ip_json("link", "show")]
    bridge = f"tpb{tag}"
    routes: list[str] = []
    if bridge in links:
        for row in _ip_json("address", "show", "dev", bridge):
            for item in row.get("addr_info", []):
                if item.get("family") == "inet":
                    network = ipaddress.ip_network(f"{item['local']}/{item['prefixlen']}", strict=False)
                    routes.append(f"route del blackhole {network} metric 4000")
    mine = [name for name in links if name.startswith((bridge, f"tpv{tag}"))]
    run_ip([*(f"link del {name}" for name in mine), *routes], forgiving=True)


def run_ip(lines: Sequence[str], *, forgiving: bool = False) -> None:
    """Runs `ip` commands in one go. Raises TpuctlError with what it said, unless `forgiving`."""
    if not lines:
        return
    command = ["ip", "-batch", "-"]
    if forgiving:
        command.insert(1, "-force")
    done = subprocess.run(
        command, input="\n".join(lines) + "\n", text=True, capture_output=True, timeout=IP_TIMEOUT_S
    )
    if done.returncode != 0 and not forgiving:
        why = (done.stderr.strip() or "ip failed").splitlines()[0]
        raise TpuctlError(f"the network of isolated hosts cannot be made: {why}", hint="--hosts process")


def _ip_json(*words: str) -> list[dict[str, Any]]:
    done = subprocess.run(["ip", "-json", *words], capture_output=True, text=True, timeout=IP_TIMEOUT_S)
    return list(json.loads(done.stdout or "[]")) if done.returncode == 0 else []


def _free_network(tag: str) -> ipaddress.IPv4Network:
    """A range below 10.192.0.0/10 that nothing on this machine uses, from a place that the world suggests."""
    taken = [
        ipaddress.IPv4Network(row["dst"], strict=False)
        for row in _ip_json("-4", "route", "show", "table", "all")
        if "/" in str(row.get("dst", ""))
    ]
    ranges = list(ipaddress.IPv4Network("10.192.0.0/10").subnets(new_prefix=PREFIX_LENGTH))
    first = int(tag, 16) % len(ranges)
    for candidate in [*ranges[first:], *ranges[:first]]:
        if not any(candidate.overlaps(other) for other in taken):
            return candidate
    raise TpuctlError("no free address range below 10.192.0.0/10 for isolated hosts")
