"""Every setting, in one registry; flags, variables, documentation and `config show` derive from it.

Resolving is a pure merge of layers, highest first, that keeps where each value came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from tpuctl.config.proxy import check_jump_host, check_ping_url, check_proxy_command
from tpuctl.errors import BadConfigError, UsageError
from tpuctl.lib.names import check_bucket_uri, check_project, check_zone_name
from tpuctl.lib.text import parse_number, suggest
from tpuctl.lib.time import parse_duration
from tpuctl.model.hosts import Tier
from tpuctl.model.timeouts import PRUNE_AFTER_LEAST_S, UNREACHABLE_LEAST_S

DEFAULT_PROFILE = "default"
SIM_PROFILE = "sim"
PINNED = "pinned"
FIRST_USE = "first-use"
DEFAULT_ORIGIN = "default"
PROJECT_FILE = "tpuctl.yaml"
"""The file of a project with its settings and its fleet."""


class Setting(Struct, frozen=True):
    """One setting. `type` is `string`, `integer`, `boolean` or `list`; a list is written with commas in
    variables and flags. `check` raises UsageError."""

    name: str
    type: str
    default: Any
    help: str
    check: Callable[[Any], Any] | None = None

    @property
    def env(self) -> str:
        return f"TPUCTL_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


class Layer(Struct, frozen=True):
    """Values of one source. `origin` is shown to the user, e.g. `tpuctl.yaml` with its path."""

    origin: str
    values: Mapping[str, Any]


class Config(Struct, frozen=True):
    """All settings, resolved. `origins` says where each came from; `state_base` is tpuctl's own directory."""

    project: str | None
    zone: tuple[str, ...]
    account: str | None
    profile: str
    label: str | None
    tier: Tier | None
    accelerator: str | None
    runtime_version: str | None
    login_user: str
    user: str
    wheelhouse: str | None
    env: str | None
    gcsfuse: str | None
    checkpoint_bucket: str | None
    external_ips: bool
    network: str | None
    subnetwork: str | None
    service_account: str | None
    bundle_limit_mib: int
    endpoint_tpu: str
    endpoint_storage: str
    endpoint_compute: str
    endpoint_resource_manager: str
    endpoint_service_usage: str
    endpoint_quotas: str
    endpoint_secret_manager: str
    store: str | None
    token_file: str | None
    ssh_port: int
    internal_ip: bool
    proxy_command: str | None
    jump_host: str | None
    iap: bool
    host_keys: str
    ping_url: str | None
    prune_after_days: int
    logs_limit_mib: int
    require_data: bool
    replace_after: str | None
    state_base: Path
    origins: Mapping[str, str]
    simulator_runs: bool = False
    """On this machine, whatever the profile."""

    @property
    def state_dir(self) -> Path:
        """State of this profile and project. Raises BadConfigError without a project."""
        return self.state_base / self.profile / self.require_project()

    @property
    def sim_dir(self) -> Path:
        return self.state_base / SIM_PROFILE

    def require_project(self) -> str:
        """The project; raises BadConfigError saying how to name one."""
        if self.project is None:
            hint = "pass --project PROJECT, set TPUCTL_PROJECT, or gcloud config set project PROJECT"
            if self.simulator_runs:
                hint = f"--profile {SIM_PROFILE} for the simulator that runs here; else {hint}"
            raise BadConfigError("no project: the Cloud TPU API needs one", hint=hint)
        return self.project

    @property
    def is_simulated(self) -> bool:
        return self.profile == SIM_PROFILE

    @property
    def start_server(self) -> str:
        """The command that starts what answers at the endpoints of this profile, where that runs here."""
        return "tpuctl sim up" if self.is_simulated else ""

    @property
    def gcloud_first(self) -> str:
        """What a shell needs before gcloud means the cloud of this profile."""
        return 'eval "$(tpuctl sim env)"' if self.is_simulated else ""


def _check_tier(value: str) -> Tier:
    if value not in set(Tier):
        raise UsageError(f"{value!r} is not a tier", hint=f"one of {', '.join(Tier)}")
    return Tier(value)


def _check_zones(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(check_zone_name(zone) for zone in value)


def _check_port(value: int) -> int:
    if not 0 < value < 65536:
        raise UsageError(f"{value} is not a port", hint="a number from 1 to 65535")
    return value


def _check_limit(value: int) -> int:
    if value < 1:
        raise UsageError(f"{value} MiB leaves no room", hint="a number of MiB, 1 or more")
    return value


def _check_logs_limit(value: int) -> int:
    if value < 0:
        raise UsageError(f"{value} MiB leaves no room", hint="a number of MiB, or 0 for no limit")
    return value


def _check_endpoint(value: str) -> str:
    if not value.startswith(("https://", "http://")):
        raise UsageError(f"{value!r} is not an endpoint", hint="it starts with https://")
    return value.rstrip("/")


def _check_prune_days(value: int) -> int:
    least = round(PRUNE_AFTER_LEAST_S / 86400)
    if value != 0 and value < least:
        raise UsageError(f"{value} is not safe", hint=f"{least} days or more, or 0 for never")
    return value


def _check_replace_after(value: str) -> str:
    if not UNREACHABLE_LEAST_S <= parse_duration(value, "replace_after") <= 86400:
        raise UsageError(f"{value} is no time to wait for hosts", hint="5m to 24h")
    return value


def _check_host_keys(value: str) -> str:
    if value not in (PINNED, FIRST_USE):
        raise UsageError(f"{value!r} is not a way to trust host keys", hint=f"{PINNED} or {FIRST_USE}")
    return value


def _check_profile(value: str) -> str:
    if not value or not all(character.isalnum() or character in "-_" for character in value):
        raise UsageError(f"{value!r} is not a profile name", hint="letters, digits, - and _")
    return value


SETTINGS: tuple[Setting, ...] = (
    Setting("project", "string", None, "project id", check_project),
    Setting("zone", "list", (), "zones to ask, in order", _check_zones),
    Setting("account", "string", None, "Google account (only shown; credentials decide)"),
    Setting(
        "profile",
        "string",
        DEFAULT_PROFILE,
        "set of settings and state; `sim` is the simulator",
        _check_profile,
    ),
    Setting("label", "string", None, "shown as [LABEL] in every header"),
    Setting("tier", "string", None, f"how capacity is paid for: {', '.join(Tier)}", _check_tier),
    Setting("accelerator", "string", None, "accelerator type where a command names none"),
    Setting("runtime_version", "string", None, "TPU software version instead of the recommended one"),
    Setting("login_user", "string", "tpuctl", "user name on the hosts of new slices"),
    Setting("user", "string", "", "who owns new slices and runs; the login name by default"),
    Setting("env", "string", None, "environment of runs"),
    Setting(
        "wheelhouse",
        "string",
        None,
        "gs:// prefix from which hosts get the packages of environments; from each other if not set",
        check_bucket_uri,
    ),
    Setting(
        "gcsfuse", "string", None, "gcsfuse, or its .deb, here that hosts get; of Google's packages if not set"
    ),
    Setting(
        "checkpoint_bucket",
        "string",
        None,
        "gs:// prefix under which each run gets its checkpoint directory",
        check_bucket_uri,
    ),
    Setting("external_ips", "boolean", True, "give each worker an external address"),
    Setting("network", "string", None, "VPC network of new slices"),
    Setting("subnetwork", "string", None, "subnetwork of new slices"),
    Setting("service_account", "string", None, "service account of new slices"),
    Setting("bundle_limit_mib", "integer", 50, "largest code bundle of a run, in MiB", _check_limit),
    Setting("endpoint_tpu", "string", "https://tpu.googleapis.com", "Cloud TPU API", _check_endpoint),
    Setting(
        "endpoint_storage", "string", "https://storage.googleapis.com", "Cloud Storage API", _check_endpoint
    ),
    Setting(
        "endpoint_compute", "string", "https://compute.googleapis.com", "Compute Engine API", _check_endpoint
    ),
    Setting(
        "endpoint_resource_manager",
        "string",
        "https://cloudresourcemanager.googleapis.com",
        "Resource Manager API, for doctor's permissions",
        _check_endpoint,
    ),
    Setting(
        "endpoint_service_usage",
        "string",
        "https://serviceusage.googleapis.com",
        "Service Usage API, for doctor's list of enabled APIs",
        _check_endpoint,
    ),
    Setting(
        "endpoint_quotas",
        "string",
        "https://cloudquotas.googleapis.com",
        "Cloud Quotas API, for the limits of TPU quotas",
        _check_endpoint,
    ),
    Setting(
        "endpoint_secret_manager",
        "string",
        "https://secretmanager.googleapis.com",
        "Secret Manager API, for secrets of runs",
        _check_endpoint,
    ),
    Setting(
        "store", "string", None, "gs:// place of a shared store; on this machine if not set", check_bucket_uri
    ),
    Setting("token_file", "string", None, "file with an access token, instead of the default credentials"),
    Setting("ssh_port", "integer", 22, "SSH port of the hosts", _check_port),
    Setting("internal_ip", "boolean", False, "reach hosts at their internal addresses"),
    Setting(
        "proxy_command",
        "string",
        None,
        "program that connects to hosts (%h address, %p port, %i instance, %z zone), run without a shell",
        check_proxy_command,
    ),
    Setting("jump_host", "string", None, "USER@HOST[:PORT] to go through, by your own ssh", check_jump_host),
    Setting("iap", "boolean", False, "reach hosts through Identity-Aware Proxy, by gcloud's start-iap-tunnel"),
    Setting(
        "host_keys",
        "string",
        "pinned",
        "`first-use` believes hosts where the cloud publishes no keys",
        _check_host_keys,
    ),
    Setting(
        "ping_url", "string", None, "https URL called after each good pass of the watchdog", check_ping_url
    ),
    Setting(
        "prune_after_days",
        "integer",
        14,
        "age from which watchdogs remove what nothing in the store refers to; 0: never",
        _check_prune_days,
    ),
    Setting(
        "logs_limit_mib",
        "integer",
        20480,
        "MiB of logs on this machine, above which the oldest of runs that ended go; 0: no limit",
        _check_logs_limit,
    ),
    Setting("require_data", "boolean", False, "refuse runs that say neither --data nor --synthetic"),
    Setting(
        "replace_after",
        "string",
        None,
        "how long hosts of a live slice may be silent until it is made anew, as 10m; if not set 5 to 15 min "
        "by what it costs; never below 15 with a disk that they write",
        _check_replace_after,
    ),
)
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}
ENDPOINTS: tuple[str, ...] = tuple(name for name in BY_NAME if name.startswith("endpoint_"))
"""Settings that say where an API is: the simulator sets them all, no other profile may lead to one."""

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def parse_value(setting: Setting, value: Any, origin: str) -> Any:
    """`value`, from text or YAML, in the setting's type. Raises BadConfigError naming setting and origin."""
    try:
        converted = _CONVERTERS[setting.type](value)
        return setting.check(converted) if setting.check else converted
    except UsageError as error:
        raise BadConfigError(
            f"{origin}: {setting.name}: {error.message}",
            hint=error.hint,
            details={"setting": setting.name, "origin": origin},
        ) from error


def unknown_key(key: str, origin: str, known: Sequence[str]) -> BadConfigError:
    """The error for a key that no setting has, with the nearest one."""
    near = suggest(key, known)
    guess = f"; did you mean {near!r}?" if near else ""
    hint = f"change it to {near!r}" if near else f"known keys: {', '.join(sorted(known))}"
    return BadConfigError(f"{origin}: unknown key {key!r}{guess}", hint=hint, details={"key": key})


def resolve(layers: Sequence[Layer], state_base: Path) -> Config:
    """Merges `layers`, highest first; an absent or None value falls through to the next layer.

    Raises BadConfigError for unknown keys and bad values, in every layer, used or not.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.values.items():
            if key not in BY_NAME:
                raise unknown_key(key, layer.origin, list(BY_NAME))
            if value is None:
                continue
            parsed = parse_value(BY_NAME[key], value, layer.origin)
            if key not in values:
                values[key], origins[key] = parsed, layer.origin
    for setting in SETTINGS:
        values.setdefault(setting.name, setting.default)
        origins.setdefault(setting.name, DEFAULT_ORIGIN)
    return Config(**values, state_base=state_base, origins=origins)


def show(config: Config) -> list[tuple[str, Any, str]]:
    """(name, value, origin) of every setting, in the order of the registry."""
    return [(item.name, getattr(config, item.name), config.origins[item.name]) for item in SETTINGS]


def _to_string(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{value!r} is not text", hint="put it in quotes")
    return str(value)


def _to_integer(value: Any) -> int:
    text = str(value).strip()
    number = parse_number(text.removeprefix("-"))
    if isinstance(value, bool) or number is None:
        raise UsageError(f"{value!r:.80} is not a whole number")
    return -number if text.startswith("-") else number


def _to_boolean(value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise UsageError(f"{value!r} is neither true nor false")
    return text in _TRUE


def _to_list(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list | tuple):
        return tuple(_to_string(part) for part in value)
    raise UsageError(f"{value!r} is not a list", hint="write [a, b] or a,b")


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "string": _to_string,
    "integer": _to_integer,
    "boolean": _to_boolean,
    "list": _to_list,
}
