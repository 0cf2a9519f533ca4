"""Addresses and firewall rules as they are asked for and shown."""

from __future__ import annotations

from tpuctl.sim.compute.bodies import INPUTS
from tpuctl.sim.compute.catalog import ROOT
from tpuctl.sim.compute.disks import invalid
from tpuctl.sim.compute.refusals import absent
from tpuctl.sim.wire.status import Json

_ADDRESSES = 64_516


def address_details(number: int, body: Json) -> Json:
    """The `number`-th new address of the project."""
    number = (number - 1) % _ADDRESSES + 1
    return {
        "address": str(body.get("address") or f"198.{18 + number // 254 % 2}.{number // 254}.{number % 254}"),
        "addressType": str(body.get("addressType") or "EXTERNAL"),
        "networkTier": str(body.get("networkTier") or "PREMIUM"),
        "description": str(body.get("description") or ""),
        "status": "RESERVED",
    }


def firewall_details(project: str, body: Json) -> Json:
    """A rule with what the service fills in (cloud.google.com/compute/docs/reference/rest/v1/firewalls)."""
    network = str(body.get("network") or "global/networks/default").rsplit("/", 1)[-1]
    if network != "default":
        raise absent(f"projects/{project}/global/networks/{network}")
    if bool(body.get("allowed")) == bool(body.get("denied")):
        raise invalid("resource.allowed", "", "Either allowed or denied must be specified.")
    asked = {key: value for key, value in body.items() if key in INPUTS["firewalls"]}
    inward = asked.get("direction") != "EGRESS"
    anywhere = "sourceRanges" if inward else "destinationRanges"
    limited = any(asked.get(key) for key in (anywhere, *(("sourceTags",) if inward else ())))
    return {
        "direction": "INGRESS",
        "priority": 1000,
        "disabled": False,
        **asked,
        **({} if limited else {anywhere: ["0.0.0.0/0"]}),
        "logConfig": {"enable": False},
        "network": f"{ROOT}/projects/{project}/global/networks/{network}",
    }
