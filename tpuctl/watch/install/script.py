"""What `watch install` writes and warns about: the script of one pass, systemd's units, the environment; and
the script for another machine.

Scripts hold settings and file names, never a secret: credentials stay in the files that they name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from msgspec import Struct

from tpuctl.config.settings import SETTINGS, Config, show
from tpuctl.errors import BadConfigError, UsageError
from tpuctl.lib.shell import quote
from tpuctl.model import timeouts

CARRIED = (
    "HOME",
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "CLOUDSDK_CONFIG",
    "CLOUDSDK_ACTIVE_CONFIG_NAME",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "NO_PROXY",
    "no_proxy",
)
"""Variables that a pass needs as they are now, and that cron does not have."""
PATHS = frozenset({"GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"})
"""Of these, the ones that may be relative to where the user stands now."""
_WITH_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")


class Credentials(Struct, frozen=True):
    """What a pass will authenticate with. `kind` is the `type` of the credentials file, "token-file", "none"
    (nothing found: a Google VM's own account, if this is one), or "unreadable"."""

    kind: str
    path: str = ""


class Preflight(Struct, frozen=True):
    """What was found out about this machine; None where that could not be found out."""

    cron_runs: bool | None
    battery: bool
    lingers: bool | None
    credentials: Credentials


def pick_environment(environ: Mapping[str, str], config: Config, cwd: str) -> dict[str, str]:
    """The variables of a pass: those carried over, and every setting that would be lost with this terminal
    because it comes from a flag, a variable, a project file or gcloud. Paths become absolute."""
    picked = {name: environ[name] for name in CARRIED if environ.get(name)}
    picked = {name: value for name, value in picked.items() if not _WITH_PASSWORD.search(value)}
    for name in PATHS & picked.keys():
        picked[name] = str(PurePosixPath(cwd) / picked[name])
    picked["TPUCTL_STATE_DIR"] = str(config.state_base)
    for setting in SETTINGS:
        origin = config.origins[setting.name]
        value = getattr(config, setting.name)
        if value is None or not (_is_fleeting(setting.env, origin) or setting.name in {"profile", "project"}):
            continue
        if setting.name == "token_file":
            value = PurePosixPath(cwd) / str(value)
        picked[setting.env] = to_text(value)
    return picked


def left_out(environ: Mapping[str, str]) -> list[str]:
    """Variables that hold a password and are therefore not written down."""
    return [name for name in CARRIED if _WITH_PASSWORD.search(environ.get(name, ""))]


def _is_fleeting(variable: str, origin: str) -> bool:
    return origin in {"flag", variable} or origin.endswith("tpuctl.yaml")


def to_text(value: object) -> str:
    """A setting as its variable has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def render_script(
    template: str, *, subject: str, environ: Mapping[str, str], program: Sequence[str], timeout: str | None
) -> str:
    """The script of one pass. `timeout` is the path of timeout(1), which ends a pass that hangs."""
    for name, value in environ.items():
        if "\n" in value or "\0" in value:
            raise UsageError(f"{name} holds a line break", hint=f"unset {name}, or give it another value")
    guard = [] if timeout is None else [timeout, "-k", "10", f"{timeouts.PASS_MAX_S:.0f}"]
    exports = "\n".join(f"export {name}={quote(value)}" for name, value in sorted(environ.items()))
    command = " ".join(quote(word) for word in [*guard, *program])
    return fill(template, SUBJECT=subject, EXPORTS=exports, COMMAND=command)


def fill(template: str, **values: str) -> str:
    """`template` with each `@NAME@` replaced; a name without a value is a bug of the template."""
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], template)


def unit_name(profile: str, project: str) -> str:
    """The name of the systemd units of one profile and project, without a suffix."""
    return "tpuctl-watch-" + re.sub(r"[^A-Za-z0-9_.-]", "-", f"{profile}-{project}")


def render_unit(template: str, *, subject: str, script: str, every_min: int) -> str:
    """A systemd unit; `%` starts a specifier there (systemd.unit(5))."""
    quoted = '"' + script.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'
    return fill(
        template,
        SUBJECT=subject.replace("%", "%%"),
        SCRIPT=quoted,
        EVERY=str(every_min),
        LIMIT=f"{timeouts.PASS_MAX_S + 60:.0f}",
    )


def list_warnings(
    preflight: Preflight,
    config: Config,
    *,
    systemd: bool,
    environ: Mapping[str, str],
    secrets: Mapping[str, str],
) -> list[str]:
    """What may keep the watchdog from working, each with what to do about it.

    `secrets` maps references such as `env:TOKEN` of active runs to the run.
    """
    found = []
    if not systemd and preflight.cron_runs is False:
        found.append("no cron daemon runs here: start it (systemctl enable --now cron), or use --systemd")
    if preflight.battery:
        found.append("this machine has a battery: while it sleeps nobody watches; see --on USER@HOST")
    if systemd and preflight.lingers is False:
        found.append("user timers stop when you log out: loginctl enable-linger")
    if config.is_simulated:
        found.append("profile sim watches the simulated cloud, and only while the simulator runs")
    else:
        found += _credential_warnings(preflight.credentials)
    found += [f"{name} holds a password and is left out: passes do without it" for name in left_out(environ)]
    for reference, run in sorted(secrets.items()):
        if reference.startswith("env:"):
            name = reference.removeprefix("env:")
            found.append(f"run {run} needs ${name}, which passes do not have: use --secret …=file:PATH")
    return found


def _credential_warnings(credentials: Credentials) -> list[str]:
    kind, path = credentials.kind, credentials.path
    if kind in {"service_account", "external_account"}:
        return []
    if kind == "authorized_user":
        return [
            f"{path} is a person's login: it ends when the organisation asks to log in again "
            "(gcloud auth application-default login); a service account does not"
        ]
    if kind == "token-file":
        return [f"{path} holds an access token, which ends within the hour unless something renews it"]
    if kind == "none":
        return ["no credentials file was found: this works on a Google VM with a service account, nowhere else"]
    if kind == "unreadable":
        return [f"{path} cannot be read as credentials"]
    return [f"{path} holds credentials of type {kind}, which may need a person to renew them"]


REMOTE_SETTINGS = ("project", "store", "ssh_port", "internal_ip", "host_keys")
"""Settings that another machine needs for the same passes; the rest is in the shared records, or its own."""
_LOGIN = re.compile(r"(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9][\w.-]*")


def check_login(login: str) -> str:
    """Returns `login` if it is USER@HOST or a name of ssh_config; raises UsageError. It is no option of ssh."""
    if not _LOGIN.fullmatch(login):
        raise UsageError(f"{login!r} is not a machine to log in to", hint="--on USER@HOST")
    return login


def remote_settings(config: Config, given: Mapping[str, str]) -> dict[str, str]:
    """Variables for the other machine, with those that are `given` to passes.

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
    own = {"TPUCTL_PING_URL": config.ping_url, "TPUCTL_PUBLISH": config.publish}
    return {**settings, **{name: value for name, value in own.items() if value is not None}, **given}


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
