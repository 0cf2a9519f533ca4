from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tpuctl.config.load import EMULATOR_VARIABLES, find_state_base, load_config, machine_identity
from tpuctl.config.settings import ENDPOINTS
from tpuctl.errors import BadConfigError


class Machine:
    """A home directory with a working directory in it."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.cwd = self.home / "work" / "deep"
        self.cwd.mkdir(parents=True)
        self.environ = {"USER": "ada"}

    def write(self, name: str, text: str) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def load(self, **flags):
        return load_config(flags, cwd=self.cwd, environ=self.environ, home=self.home)

    def simulator(self, **settings) -> None:
        loopback = dict.fromkeys(ENDPOINTS, "http://127.0.0.1:1")
        text = json.dumps({**loopback, "project": "sim-project", "label": "sim", **settings})
        self.write(".local/state/tpuctl/sim/profile.json", text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_anything_there_are_defaults(machine):
    config = machine.load()
    assert config.project is None
    assert config.profile == "default"
    assert config.user == "ada"
    assert config.tier is None
    assert config.state_base == machine.home / ".local/state/tpuctl"


def test_sources_rank_flag_variable_project_user_gcloud(machine):
    machine.write(".config/gcloud/active_config", "lab\n")
    gcloud = machine.write(
        ".config/gcloud/configurations/config_lab",
        "[core]\nproject = from-gcloud\n[compute]\nzone = us-east1-d\n",
    )
    seen = [(machine.load().project, machine.load().origins["project"])]
    machine.environ["CLOUDSDK_CORE_PROJECT"] = "from-cloudsdk"
    seen.append((machine.load().project, machine.load().origins["project"]))
    user = machine.write(".config/tpuctl/config.yaml", "settings: {project: from-user}")
    seen.append((machine.load().project, machine.load().origins["project"]))
    project = machine.write("work/tpuctl.yaml", "settings: {project: from-project}")
    seen.append((machine.load().project, machine.load().origins["project"]))
    machine.environ["TPUCTL_PROJECT"] = "from-variable"
    seen.append((machine.load().project, machine.load().origins["project"]))
    seen.append(
        (machine.load(project="from-flag").project, machine.load(project="from-flag").origins["project"])
    )
    assert gcloud.exists()
    assert seen == [
        ("from-gcloud", "gcloud configuration lab"),
        ("from-cloudsdk", "gcloud configuration lab"),
        ("from-user", str(user)),
        ("from-project", str(project)),
        ("from-variable", "TPUCTL_PROJECT"),
        ("from-flag", "flag"),
    ]
    assert machine.load().zone == ("us-east1-d",)


def test_the_nearest_project_file_counts(machine):
    machine.write("work/tpuctl.yaml", "settings: {login_user: far}")
    machine.write("work/deep/tpuctl.yaml", "settings: {login_user: near}")
    assert machine.load().login_user == "near"


def test_a_flag_that_was_not_given_hides_nothing(machine):
    machine.environ["TPUCTL_ZONE"] = "us-central2-b,us-east1-d"
    assert machine.load(zone=[], tier=None).zone == ("us-central2-b", "us-east1-d")


def test_an_unknown_key_is_refused_with_file_line_and_nearest(machine):
    path = machine.write("work/tpuctl.yaml", "settings:\n  project: my-project\n  zonne: us-central2-b\n")
    with pytest.raises(BadConfigError) as caught:
        machine.load()
    assert caught.value.message == f"{path}:3:3: unknown key 'zonne'; did you mean 'zone'?"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("setings: {}", "did you mean 'settings'"),
        ("project: my-project", "belongs below settings:"),
        ("settings: [a", "not valid YAML"),
        ("just text", "must hold keys and values"),
        ("settings: text", "settings must hold keys and values"),
        ("profiles: {}", "unknown key 'profiles'"),
    ],
)
def test_a_bad_project_file_is_named(machine, text, message):
    path = machine.write("work/tpuctl.yaml", text)
    with pytest.raises(BadConfigError) as caught:
        machine.load()
    assert str(path) in caught.value.message
    assert message in caught.value.message


def test_a_bad_variable_is_named(machine):
    machine.environ["TPUCTL_TIER"] = "cheap"
    with pytest.raises(BadConfigError, match="TPUCTL_TIER: tier: 'cheap'"):
        machine.load()


def test_a_gcloud_value_that_cannot_be_is_as_good_as_none(machine):
    machine.write(".config/gcloud/configurations/config_default", "[core]\nproject = 12\n[compute]\nzone = x\n")
    config = machine.load()
    assert config.project is None
    assert config.zone == ()


def test_a_profile_ranks_above_user_and_gcloud_but_below_the_project_file(machine):
    machine.write(
        ".config/tpuctl/config.yaml",
        "settings: {project: from-user, login_user: from-user}\n"
        "profiles: {lab: {project: from-profile, login_user: lab}}\n",
    )
    machine.write("work/tpuctl.yaml", "settings: {project: from-project}")
    config = machine.load(profile="lab")
    assert (config.project, config.login_user) == ("from-project", "lab")
    assert machine.load().login_user == "from-user"


def test_an_unknown_profile_is_refused(machine):
    with pytest.raises(BadConfigError, match="no profile 'lab'"):
        machine.load(profile="lab")


@pytest.mark.parametrize("variable", EMULATOR_VARIABLES)
def test_a_real_profile_refuses_emulator_variables(machine, variable):
    machine.environ[variable] = "http://127.0.0.1:1"
    with pytest.raises(BadConfigError, match=variable) as caught:
        machine.load()
    assert "--profile sim" in caught.value.hint
    machine.simulator()
    assert machine.load(profile="sim").label == "sim"


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"])
def test_a_real_profile_refuses_loopback_endpoints(machine, endpoint):
    machine.environ["TPUCTL_ENDPOINT_TPU"] = endpoint
    with pytest.raises(BadConfigError, match="real cloud"):
        machine.load()


def test_the_simulator_must_run_and_is_kept_apart(machine):
    machine.environ["TPUCTL_PROFILE"] = "sim"
    with pytest.raises(BadConfigError, match="no simulator") as caught:
        machine.load()
    assert caught.value.hint == "tpuctl sim up"
    machine.environ["CLOUDSDK_CORE_PROJECT"] = "real-project"
    machine.simulator()
    config = machine.load()
    assert config.project == "sim-project"
    assert config.is_simulated
    assert config.state_dir == machine.home / ".local/state/tpuctl/sim/sim-project"


def test_the_simulators_profile_never_reaches_the_real_cloud(machine):
    machine.simulator(endpoint_tpu="https://tpu.googleapis.com")
    with pytest.raises(BadConfigError, match="would talk to https://tpu"):
        machine.load(profile="sim")


def test_the_state_directory_can_be_chosen(tmp_path):
    home = tmp_path / "home"
    assert find_state_base({"TPUCTL_STATE_DIR": "/a", "XDG_STATE_HOME": "/b"}, home) == Path("/a")
    assert find_state_base({"XDG_STATE_HOME": "/b"}, home) == Path("/b/tpuctl")
    assert find_state_base({"XDG_STATE_HOME": "relative"}, home) == home / ".local/state/tpuctl"


def test_a_machine_keeps_its_identity(tmp_path):
    first = machine_identity(tmp_path / "a")
    assert machine_identity(tmp_path / "a") == first
    assert machine_identity(tmp_path / "b") != first
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["machine"]
    assert stat.S_IMODE((tmp_path / "a" / "machine").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("proxy_command", "/tmp/evil %h %p"),
        ("jump_host", "me@evil.example"),
        ("host_keys", "first-use"),
        ("token_file", "/tmp/token"),
        ("endpoint_tpu", "https://tpu.evil.example"),
    ],
)
def test_a_cloned_repository_does_not_say_what_runs_here_or_where_credentials_go(machine, key, value):
    machine.write("work/tpuctl.yaml", f"settings: {{{key}: {value!r}}}\n")
    with pytest.raises(BadConfigError, match=f"{key} is read from your own configuration only"):
        machine.load()
    machine.write("work/tpuctl.yaml", "settings: {}\n")
    machine.write(".config/tpuctl/config.yaml", f"settings: {{{key}: {value!r}}}\n")
    assert getattr(machine.load(), key) == value
