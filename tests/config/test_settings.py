from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.config.settings import BY_NAME, SETTINGS, Config, Layer, resolve, show
from tpuctl.errors import BadConfigError
from tpuctl.model.cloud import Tier

BASE = Path("/state")


def test_the_registry_and_the_config_have_the_same_names():
    assert set(Config.__struct_fields__) == {*BY_NAME, "state_base", "origins", "simulator_runs"}
    assert all(setting.help for setting in SETTINGS)


def test_the_highest_layer_wins_and_is_remembered():
    layers = [
        Layer("flag", {"project": None}),
        Layer("a", {"project": "from-a"}),
        Layer("b", {"project": "from-b"}),
    ]
    config = resolve(layers, BASE)
    assert config.project == "from-a"
    assert config.origins["project"] == "a"
    assert config.origins["ssh_port"] == "default"
    assert ("project", "from-a", "a") in show(config)


def test_false_and_empty_lists_are_values():
    config = resolve([Layer("a", {"external_ips": False}), Layer("b", {"external_ips": True})], BASE)
    assert config.external_ips is False


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("zone", "us-central2-b, us-east1-d", ("us-central2-b", "us-east1-d")),
        ("zone", ["us-central2-b"], ("us-central2-b",)),
        ("tier", "on-demand", Tier.ON_DEMAND),
        ("ssh_port", "2222", 2222),
        ("external_ips", "no", False),
        ("external_ips", "True", True),
        ("endpoint_tpu", "http://127.0.0.1:80/", "http://127.0.0.1:80"),
        ("checkpoint_bucket", "gs://my-bucket/c/", "gs://my-bucket/c"),
    ],
)
def test_text_becomes_the_settings_type(name, text, value):
    assert getattr(resolve([Layer("x", {name: text})], BASE), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tier", "cheap"),
        ("zone", "nowhere"),
        ("zone", {"a": 1}),
        ("ssh_port", "ssh"),
        ("ssh_port", 0),
        ("ssh_port", True),
        ("external_ips", "maybe"),
        ("project", ["a"]),
        ("profile", "../x"),
        ("endpoint_tpu", "localhost:80"),
        ("checkpoint_bucket", "my-bucket"),
        ("bundle_limit_mib", -1),
    ],
)
def test_a_bad_value_names_setting_and_origin(name, value):
    with pytest.raises(BadConfigError) as caught:
        resolve([Layer("file.yaml", {name: value})], BASE)
    assert caught.value.message.startswith(f"file.yaml: {name}: ")


def test_state_is_kept_per_profile_and_project():
    config = resolve([Layer("a", {"project": "my-project", "profile": "lab"})], BASE)
    assert config.state_dir == BASE / "lab" / "my-project"


def test_no_project_is_an_error_with_advice():
    with pytest.raises(BadConfigError, match="no project") as caught:
        _ = resolve([], BASE).state_dir
    assert "TPUCTL_PROJECT" in caught.value.hint
