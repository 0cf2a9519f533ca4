"""A watchdog on another machine: what it is told, as a script. Nothing that it is told is a secret."""

from __future__ import annotations

import re

from tpuctl.config.settings import Config, show
from tpuctl.errors import BadConfigError, UsageError
from tpuctl.lib.shell import quote
from tpuctl.watch.install.script import fill, to_text

REMOTE_SETTINGS = ("project", "store", "ssh_port", "internal_ip", "host_keys")
"""Settings that another machine needs for the same passes; the rest is in the shared records, or its own."""
_LOGIN = re.compile(r"(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9][\w.-]*")


def check_login(login: str) -> str:
    """Returns `login` if it is USER@HOST or a name of ssh_config; raises UsageError. It is no option of ssh."""
    if not _LOGIN.fullmatch(login):
        raise UsageError(f"{login!r} is not a machine to log in to", hint="--on USER@HOST")
    return login


def remote_settings(config: Config, ping: str | None) -> dict[str, str]:
    """Variables for the other machine.

    Raises BadConfigError where it could not see the same fleet: with a local store, and for the simulator.
    """
    values = {name: value for name, value, _ in show(config)}
    if config.is_simulated:
        raise BadConfigError(
            "the simulator answers on this machine only: another one cannot watch it",
            hint="tpuctl watch install, without --on",
        )
    if not str(values.get("store") or "").startswith("gs://"):
        raise BadConfigError(
            "the store is on this machine: another one would not see its slices and runs",
            hint="tpuctl config init --store gs://BUCKET/PREFIX moves it to where both can see it",
        )
    config.require_project()
    settings = {
        f"TPUCTL_{name.upper()}": to_text(values[name])
        for name in REMOTE_SETTINGS
        if values.get(name) is not None
    }
    url = ping or config.ping_url
    return settings if url is None else {**settings, "TPUCTL_PING_URL": url}


def render_remote(
    template: str,
    *,
    subject: str,
    environ: dict[str, str],
    wheel: str = "",
    digest: str = "",
    every_min: int = 1,
) -> str:
    """The script for the other machine."""
    exports = "\n".join(f"export {name}={quote(value)}" for name, value in sorted(environ.items()))
    return fill(
        template,
        SUBJECT=subject,
        EXPORTS=exports,
        WHEEL=quote(wheel),
        DIGEST=digest[:12],
        EVERY=str(every_min),
    )
