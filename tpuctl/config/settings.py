"""Every setting, in one registry; flags, variables, documentation and `config show` derive from it.

Resolving is a pure merge of layers, highest first, that keeps where each value came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct, structs

from tpuctl.config.proxy import check_jump_host, check_ping_url, check_proxy_command
from tpuctl.errors import BadConfigError, UsageError
from tpuctl.lib.names import check_bucket_uri, check_page_uri, check_project, check_zone_name
from tpuctl.lib.options import Option, hints_of, registry
from tpuctl.lib.text import parse_number
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
    """One setting, made of a field of `Config`. `type` is `string`, `integer`, `boolean` or `list`; a list is
    written with commas in variables and flags. `check` raises UsageError."""

    name: str
    type: str
    default: Any
    help: str
    check: Callable[[Any], Any] | None

    @property
    def env(self) -> str:
        return f"TPUCTL_{self.name.upper()}"


class Layer(Struct, frozen=True):
    """Values of one source. `origin` is shown to the user, e.g. `tpuctl.yaml` with its path."""

    origin: str
    values: Mapping[str, Any]


def _google(api: str) -> str:
    return f"https://{api}.googleapis.com"


def _endpoint(api: str) -> Option:
    return Option(api, check=_check_endpoint)


def _bucket(meaning: str) -> Option:
    return Option(meaning, check=check_bucket_uri)


class Config(Struct, frozen=True, kw_only=True):
    """All settings, resolved: the fields with an `Option`. `origins` says where each came from; `state_base` is
    tpuctl's own directory."""

    project: Annotated[str | None, Option("project id", check=check_project)] = None
    zone: Annotated[tuple[str, ...], Option("zones to ask, in order", check=_check_zones)] = ()
    account: Annotated[str | None, Option("Google account (only shown; credentials decide)")] = None
    profile: Annotated[
        str, Option("set of settings and state; `sim` is the simulator", check=_check_profile)
    ] = DEFAULT_PROFILE
    label: Annotated[str | None, Option("shown as [LABEL] in every header")] = None
    tier: Annotated[Tier | None, Option(f"how capacity is paid for: {', '.join(Tier)}", check=_check_tier)] = (
        None
    )
    accelerator: Annotated[str | None, Option("accelerator type where a command names none")] = None
    runtime_version: Annotated[str | None, Option("TPU software version instead of the recommended one")] = None
    login_user: Annotated[str, Option("user name on the hosts of new slices")] = "tpuctl"
    user: Annotated[str, Option("who owns new slices and runs; the login name by default")] = ""
    env: Annotated[str | None, Option("environment of runs")] = None
    wheelhouse: Annotated[
        str | None,
        _bucket("gs:// prefix from which hosts get the packages of environments; from each other if not set"),
    ] = None
    gcsfuse: Annotated[
        str | None, Option("gcsfuse, or its .deb, here that hosts get; of Google's packages if not set")
    ] = None
    checkpoint_bucket: Annotated[
        str | None, _bucket("gs:// prefix under which each run gets its checkpoint directory")
    ] = None
    external_ips: Annotated[bool, Option("give each worker an external address")] = True
    network: Annotated[str | None, Option("VPC network of new slices")] = None
    subnetwork: Annotated[str | None, Option("subnetwork of new slices")] = None
    service_account: Annotated[str | None, Option("service account of new slices")] = None
    bundle_limit_mib: Annotated[int, Option("largest code bundle of a run, in MiB", check=_check_limit)] = 50
    endpoint_tpu: Annotated[str, _endpoint("Cloud TPU API")] = _google("tpu")
    endpoint_storage: Annotated[str, _endpoint("Cloud Storage API")] = _google("storage")
    endpoint_compute: Annotated[str, _endpoint("Compute Engine API")] = _google("compute")
    endpoint_resource_manager: Annotated[str, _endpoint("Resource Manager API, for doctor's permissions")] = (
        _google("cloudresourcemanager")
    )
    endpoint_service_usage: Annotated[
        str, _endpoint("Service Usage API, for doctor's list of enabled APIs")
    ] = _google("serviceusage")
    endpoint_quotas: Annotated[str, _endpoint("Cloud Quotas API, for the limits of TPU quotas")] = _google(
        "cloudquotas"
    )
    endpoint_secret_manager: Annotated[str, _endpoint("Secret Manager API, for secrets of runs")] = _google(
        "secretmanager"
    )
    store: Annotated[str | None, _bucket("gs:// place of a shared store; on this machine if not set")] = None
    token_file: Annotated[
        str | None, Option("file with an access token, instead of the default credentials")
    ] = None
    ssh_port: Annotated[int, Option("SSH port of the hosts", check=_check_port)] = 22
    internal_ip: Annotated[bool, Option("reach hosts at their internal addresses")] = False
    proxy_command: Annotated[
        str | None,
        Option(
            "program that connects to hosts (%h address, %p port, %i instance, %z zone), run without a shell",
            check=check_proxy_command,
        ),
    ] = None
    jump_host: Annotated[
        str | None, Option("USER@HOST[:PORT] to go through, by your own ssh", check=check_jump_host)
    ] = None
    iap: Annotated[bool, Option("reach hosts through Identity-Aware Proxy, by gcloud's start-iap-tunnel")] = (
        False
    )
    host_keys: Annotated[
        str, Option("`first-use` believes hosts where the cloud publishes no keys", check=_check_host_keys)
    ] = PINNED
    ping_url: Annotated[
        str | None, Option("https URL called after each good pass of the watchdog", check=check_ping_url)
    ] = None
    publish: Annotated[
        str | None,
        Option("gs:// place where passes of the watchdog write the pages of `ui`", check=check_page_uri),
    ] = None
    prune_after_days: Annotated[
        int,
        Option(
            "age from which watchdogs remove what nothing in the store refers to; 0: never",
            check=_check_prune_days,
        ),
    ] = 14
    logs_limit_mib: Annotated[
        int,
        Option(
            "MiB of logs on this machine, above which the oldest of runs that ended go; 0: no limit",
            check=_check_logs_limit,
        ),
    ] = 20480
    require_data: Annotated[bool, Option("refuse runs that say neither --data nor --synthetic")] = False
    replace_after: Annotated[
        str | None,
        Option(
            "how long hosts of a live slice may be silent until it is made anew, as 10m; if not set 5 to 15 "
            "min by what it costs; never below 15 with a disk that they write",
            check=_check_replace_after,
        ),
    ] = None
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


_TYPES: Mapping[Any, str] = {int: "integer", bool: "boolean", tuple[str, ...]: "list"}


def _settings() -> Iterator[Setting]:
    defaults = {field.name: field.default for field in structs.fields(Config)}
    for name, option in registry(Config).items():
        kind = _TYPES.get(hints_of(Config)[name], "string")
        yield Setting(name, kind, defaults[name], option.help, option.check)


SETTINGS: tuple[Setting, ...] = tuple(_settings())
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


def resolve(layers: Sequence[Layer], state_base: Path) -> Config:
    """Merges `layers`, highest first; an absent or None value falls through to the next layer.

    Raises BadConfigError for bad values, in every layer, used or not.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.values.items():
            if value is None:
                continue
            parsed = parse_value(BY_NAME[key], value, layer.origin)
            if key not in values:
                values[key], origins[key] = parsed, layer.origin
    return Config(
        **values, state_base=state_base, origins={**dict.fromkeys(BY_NAME, DEFAULT_ORIGIN), **origins}
    )


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
