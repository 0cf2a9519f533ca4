"""The only reader of environment variables and configuration files."""

from __future__ import annotations

import getpass
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from tpuctl.config.settings import (
    BY_NAME,
    DEFAULT_PROFILE,
    ENDPOINTS,
    PROJECT_FILE,
    SETTINGS,
    SIM_PROFILE,
    Config,
    Layer,
    parse_value,
    resolve,
)
from tpuctl.errors import BadConfigError
from tpuctl.lib import input_files
from tpuctl.lib.codec import parse_json
from tpuctl.lib.text import suggest

if TYPE_CHECKING:
    from tpuctl.config.hooks import Hook
    from tpuctl.config.schema import Problem

STORE_FILE = "store.json"
USER_KEYS = ("settings", "profiles", "hooks")
EMULATOR_VARIABLES = (
    "STORAGE_EMULATOR_HOST",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE",
)
"""Point gcloud or the Google libraries elsewhere; half of tpuctl would follow them."""


def load_config(
    flags: Mapping[str, Any],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    home: Path,
    project_file: Path | None = None,
) -> Config:
    """Settings from all sources: flags, variables, project file, profile, user config, gcloud, defaults.

    The project file is the nearest `tpuctl.yaml` at or above `cwd`, or `project_file`. For a profile other than
    `default` its own settings rank above the user's and gcloud's. Raises BadConfigError for unknown keys and
    bad values (all of a file at once, with their lines), a real profile while emulator variables are set, and
    profile `sim` while no simulator runs.
    """
    state_base = find_state_base(environ, home)
    user_file = _user_file(environ, home)
    user, project_layer = _read_both(user_file, project_file or find_project_file(cwd, home))
    user_layer = Layer(str(user_file), _section(user, "settings"))
    above = [Layer("flag", _given(flags)), *_env_layers(environ), project_layer]
    below = [user_layer, _gcloud_layer(environ, home), Layer("login name", {"user": _login_name(environ)})]
    profile = resolve([*above, user_layer], state_base).profile
    own = _profile_layers(profile, user, user_file, state_base)
    config = _with_store_file(resolve([*above, *own, *below], state_base))
    _check_real_or_simulated(config, environ)
    return replace(config, simulator_runs=(config.sim_dir / "profile.json").is_file())


def _with_store_file(config: Config) -> Config:
    """The place that `config init` wrote down for this profile and project, where no setting names one."""
    if config.store is not None or config.project is None:
        return config
    path = config.state_dir / STORE_FILE
    layer = _profile_file(path)
    if "store" not in layer.values:
        return config
    value = parse_value(BY_NAME["store"], layer.values["store"], str(path))
    return replace(config, store=value, origins={**config.origins, "store": str(path)})


def write_store_file(config: Config, uri: str) -> None:
    """Makes this machine use the store at `uri` for this profile and project."""
    from tpuctl.lib.files import write_private

    write_private(config.state_dir / STORE_FILE, json.dumps({"store": uri}).encode())


def load_hooks(environ: Mapping[str, str], home: Path, profile: str) -> tuple[Hook, ...]:
    """The user's hooks for a profile. They run programs, so they come from the user's own file alone.

    Raises BadConfigError for mistakes, and when somebody else could have written the file.
    """
    from tpuctl.config.hooks import parse_hooks

    path = _user_file(environ, home)
    value = _read_user_file(path).get("hooks")
    if not value:
        return ()
    for place in (path, path.parent):
        found = place.stat()
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or found.st_uid not in {0, os.geteuid()}:
            raise BadConfigError(
                f"{place} can be written by others, so its hooks are not run", hint=f"chmod go-w {place}"
            )
    hooks = parse_hooks(value, str(path))
    return tuple(hook for hook in hooks if not hook.profiles or profile in hook.profiles)


def find_state_base(environ: Mapping[str, str], home: Path) -> Path:
    """Where tpuctl keeps its state: TPUCTL_STATE_DIR, else below XDG_STATE_HOME, else ~/.local/state."""
    if environ.get("TPUCTL_STATE_DIR"):
        return Path(environ["TPUCTL_STATE_DIR"]).absolute()
    base = environ.get("XDG_STATE_HOME", "")
    root = Path(base) if base.startswith("/") else home / ".local" / "state"
    return root / "tpuctl"


def machine_identity(state_base: Path) -> str:
    """A short random id of this machine, made once and kept in the file `machine`."""
    import secrets

    path = state_base / "machine"
    if path.is_dir():
        raise BadConfigError(f"{path} is a directory, not the id of this machine", hint=f"rmdir {path}")
    state_base.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = state_base / f".machine-{secrets.token_hex(8)}"
    if not path.exists():
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(f"m{secrets.token_hex(4)}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            pass  # another process was faster: its id is this machine's
        finally:
            temporary.unlink()
    return path.read_text().strip()


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags that were given: a repeatable flag that was not is an empty list."""
    return {name: value for name, value in flags.items() if value not in (None, (), [])}


def _env_layers(environ: Mapping[str, str]) -> list[Layer]:
    """A layer for each variable, so that errors name it; an empty variable is not set."""
    return [
        Layer(setting.env, {setting.name: environ[setting.env]})
        for setting in SETTINGS
        if environ.get(setting.env)
    ]


def find_project_file(cwd: Path, home: Path) -> Path | None:
    """The nearest `tpuctl.yaml` at or above `cwd`, up to the home directory."""
    for directory in (cwd, *cwd.parents):
        if input_files.is_file(directory / PROJECT_FILE):
            return directory / PROJECT_FILE
        if directory == home:
            break
    return None


def read_text(path: Path) -> str | None:
    """What is in a configuration file; None if there is none. Raises BadConfigError."""
    try:
        return input_files.read_text(path, input_files.CONFIG_LIMIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadConfigError(f"cannot read {path}: {_reason(error)}", hint=f"ls -l {path}") from error


def _reason(error: Exception) -> str:
    """Without the path, which the message names already."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _read_both(user_file: Path, project_file: Path | None) -> tuple[Mapping[str, Any], Layer]:
    """The user's own file and the project's layer. Raises one BadConfigError for the mistakes in both."""
    errors = []
    try:
        user = _read_user_file(user_file)
    except BadConfigError as error:
        errors.append(error)
    try:
        project = _project_layer(project_file)
    except BadConfigError as error:
        errors.append(error)
    if errors:
        from tpuctl.config.file import joined

        raise joined(errors) from errors[0]
    return user, project


def _project_layer(path: Path | None) -> Layer:
    """The settings of a project file; its fleet is for `apply` and `diff`."""
    text = read_text(path) if path else None
    if path is None or text is None:
        return Layer(PROJECT_FILE, {})
    from tpuctl.config.file import SECTIONS, frame_problems  # where there is no file, nothing to read it
    from tpuctl.config.yaml_positions import parse_marked, plain

    marked = parse_marked(text, str(path))
    _check(path, frame_problems(marked, text, SECTIONS))
    return Layer(str(path), _section(plain(marked) or {}, "settings"))


def _user_file(environ: Mapping[str, str], home: Path) -> Path:
    base = environ.get("XDG_CONFIG_HOME", "")
    root = Path(base) if base.startswith("/") else home / ".config"
    return root / "tpuctl" / "config.yaml"


def _read_user_file(path: Path) -> Mapping[str, Any]:
    """The user's own file, checked with all its profiles; empty if there is none."""
    text = read_text(path)
    if text is None:
        return {}
    from tpuctl.config.file import frame_problems, settings_problems
    from tpuctl.config.schema import Problem
    from tpuctl.config.yaml_positions import MarkedMapping, Position, parse_marked, plain

    marked = parse_marked(text, str(path))
    problems = frame_problems(marked, text, USER_KEYS)
    profiles = marked.get("profiles") if isinstance(marked, MarkedMapping) else None
    if isinstance(profiles, MarkedMapping):
        for name, values in profiles.entries.items():
            problems += settings_problems(values, f"profiles.{name}", profiles.keys[name])
    elif plain(profiles) is not None:
        problems.append(Problem(Position(1, 1), "profiles must hold keys and values"))
    _check(path, problems)
    return plain(marked) or {}


def _check(path: Path, problems: list[Problem]) -> None:
    if problems:
        from tpuctl.config.file import file_error

        raise file_error(str(path), problems)


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return data.get(name) or {}


def _profile_layers(profile: str, user: Mapping[str, Any], user_file: Path, state_base: Path) -> list[Layer]:
    profiles = _section(user, "profiles")
    layers = []
    if profile in profiles:
        layers.append(Layer(f"{user_file} profile {profile}", _section(profiles, profile)))
    if profile == SIM_PROFILE:
        layers.append(_profile_file(state_base / SIM_PROFILE / "profile.json"))
    elif profile != DEFAULT_PROFILE:
        layers.append(_profile_file(state_base / "profiles" / f"{profile}.json"))
        if not any(layer.values for layer in layers):
            near = suggest(profile, [DEFAULT_PROFILE, SIM_PROFILE, *profiles])
            meant = f"did you mean {near}? else " if near else ""
            hint = f"{meant}add profiles: {{{profile}: {{...}}}} to {user_file}"
            raise BadConfigError(f"there is no profile {profile!r}", hint=hint)
    return layers


def _profile_file(path: Path) -> Layer:
    """Settings that tpuctl itself wrote; keys that are no settings (such as the server's pid) are not ours."""
    try:
        data = parse_json(input_files.read_text(path))
    except FileNotFoundError:
        return Layer(str(path), {})
    except (OSError, ValueError, RecursionError) as error:
        raise BadConfigError(
            f"cannot read {path}: {_reason(error)}", hint="TPUCTL_STATE_DIR names a directory of yours"
        ) from error
    values = data.get("settings", data) if isinstance(data, dict) else {}
    return Layer(str(path), {key: value for key, value in values.items() if key in BY_NAME})


def _gcloud_layer(environ: Mapping[str, str], home: Path) -> Layer:
    """Project, zone and account of gcloud's active configuration, with its variables above its file.

    Files: https://cloud.google.com/sdk/docs/configurations. A zone or project that tpuctl cannot use (gcloud
    checks neither) is as good as none.
    """
    root = Path(environ.get("CLOUDSDK_CONFIG") or home / ".config" / "gcloud")
    name = environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or _read_word(root / "active_config") or "default"
    said = _gcloud_file(root / "configurations" / f"config_{name}")
    found = {
        "project": environ.get("CLOUDSDK_CORE_PROJECT") or said("core", "project"),
        "zone": environ.get("CLOUDSDK_COMPUTE_ZONE") or said("compute", "zone"),
        "account": environ.get("CLOUDSDK_CORE_ACCOUNT") or said("core", "account"),
    }
    origin = f"gcloud configuration {name}"
    return Layer(origin, {key: value for key, value in found.items() if value and _usable(key, value)})


def _gcloud_file(path: Path) -> Callable[[str, str], str | None]:
    """What a configuration of gcloud says of a section's key; nothing if it cannot be read."""
    try:
        text = input_files.read_text(path)
    except OSError:
        return lambda _section, _key: None
    import configparser

    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error:
        parser = configparser.RawConfigParser()
    return lambda section, key: parser.get(section, key, fallback=None)


def _usable(name: str, value: str) -> bool:
    try:
        parse_value(BY_NAME[name], value, "gcloud")
    except BadConfigError:
        return False
    return True


def _read_word(path: Path) -> str:
    try:
        return input_files.read_text(path).strip()
    except OSError:
        return ""


def _login_name(environ: Mapping[str, str]) -> str:
    for variable in ("LOGNAME", "USER"):
        if environ.get(variable):
            return environ[variable]
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid{os.getuid()}"  # a container without a password entry


def _check_real_or_simulated(config: Config, environ: Mapping[str, str]) -> None:
    endpoints: dict[str, str] = {name: getattr(config, name) for name in ENDPOINTS}
    if config.is_simulated:
        if not (config.sim_dir / "profile.json").is_file():
            raise BadConfigError("no simulator is running", hint="tpuctl sim up")
        for name, endpoint in endpoints.items():
            if not _is_loopback(endpoint):
                raise BadConfigError(
                    f"profile sim would talk to {endpoint} ({name} from {config.origins[name]})",
                    hint=f"remove {name} there, or tpuctl sim up",
                )
        return
    for variable in EMULATOR_VARIABLES:
        if environ.get(variable):
            raise BadConfigError(
                f"{variable} is set, but profile {config.profile!r} is for the real cloud",
                hint=f"pass --profile sim, or unset {variable}",
            )
    for name, endpoint in endpoints.items():
        if _is_loopback(endpoint):
            raise BadConfigError(
                f"{name} is {endpoint} ({config.origins[name]}), but profile {config.profile!r} is for the "
                "real cloud",
                hint=f"pass --profile sim, or remove {name}",
            )


def _is_loopback(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host == "localhost" or host.startswith("127.") or host == "::1"
