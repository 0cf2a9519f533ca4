"""The simulator that runs on this machine, and what is said of it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.cli.console import Console
from tpuctl.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sim.server.info import SimInfo


SLOW_S = 60.0
"""A first try that takes longer than this wants an explanation."""


def sim_state_dir() -> Path:
    from tpuctl.config.load import find_state_base
    from tpuctl.config.settings import SIM_PROFILE

    return find_state_base(os.environ, Path.home()) / SIM_PROFILE


def running_sim() -> SimInfo:
    from tpuctl.sim.server import control

    info = control.status(sim_state_dir())
    if info is None:
        raise NotFoundError("no simulator is running", hint="tpuctl sim up")
    return info


def facts_of(info: SimInfo) -> dict[str, Any]:
    from tpuctl.sim.server import control

    facts = asdict(info)
    keys = ("project", "http", "grpc", "hosts", "ssh_port", "pid", "token_file")
    return {**{key: facts[key] for key in keys}, "delays": control.waits(info)}


def show_facts(console: Console, info: SimInfo) -> None:
    facts = facts_of(info)
    console.fields(facts if console.json_mode else {**facts, "delays": _delays_in_words(facts["delays"])})


def _delays_in_words(delays: Mapping[str, float]) -> str:
    from tpuctl.lib.time import render_seconds

    if not any(delays.values()):
        return "none: a slice is ready as soon as its hosts are up"
    ready, gone, shown = (
        render_seconds(delays[key]) for key in ("until_ready", "until_gone", "until_preemption_shows")
    )
    text = f"a slice is ready after {ready} and gone after {gone}, a preemption shows after {shown}"
    slow = delays["until_ready"] >= SLOW_S
    return f"{text}, as on the real cloud; --speed 20 or --instant shorten that" if slow else text
