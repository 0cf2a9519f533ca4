"""What an install writes for a pass, and what it warns about."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.require import require_tool
from tpuctl.config.settings import Layer, resolve
from tpuctl.errors import UsageError
from tpuctl.model.shipped_files import read_template
from tpuctl.watch.install.preflight import cron_runs, find_credentials, has_battery
from tpuctl.watch.install.script import (
    Credentials,
    Preflight,
    list_warnings,
    pick_environment,
    render_script,
    render_unit,
    unit_name,
)

FINE = Preflight(cron_runs=True, battery=False, lingers=True, credentials=Credentials("service_account", "/k"))
CONFIG = resolve([Layer("gcloud configuration default", {"project": "my-project"})], Path("/state"))


def test_a_pass_gets_what_would_be_lost_with_the_terminal() -> None:
    layers = [
        Layer("flag", {"internal_ip": True, "token_file": "token"}),
        Layer("TPUCTL_ZONE", {"zone": "us-central2-b,us-east1-d"}),
        Layer("/work/tpuctl.yaml", {"host_keys": "first-use"}),
        Layer("/home/ada/.config/tpuctl/config.yaml", {"jump_host": "bastion"}),
        Layer("gcloud configuration default", {"project": "my-project"}),
    ]
    environ = {
        "HOME": "/home/ada",
        "PATH": "/bin",
        "SSH_AUTH_SOCK": "/x",
        "GOOGLE_APPLICATION_CREDENTIALS": "key.json",
    }
    assert pick_environment(environ, resolve(layers, Path("/state")), "/work") == {
        "HOME": "/home/ada",
        "PATH": "/bin",
        "GOOGLE_APPLICATION_CREDENTIALS": "/work/key.json",
        "TPUCTL_STATE_DIR": "/state",
        "TPUCTL_PROJECT": "my-project",
        "TPUCTL_PROFILE": "default",
        "TPUCTL_INTERNAL_IP": "true",
        "TPUCTL_TOKEN_FILE": "/work/token",
        "TPUCTL_ZONE": "us-central2-b,us-east1-d",
        "TPUCTL_HOST_KEYS": "first-use",
    }


def test_a_password_in_a_proxy_is_left_out_and_said() -> None:
    environ = {"HTTPS_PROXY": "http://ada:geheim@proxy:3128", "https_proxy": "http://proxy:3128"}
    assert pick_environment(environ, CONFIG, "/").keys() & environ.keys() == {"https_proxy"}
    [warning] = list_warnings(FINE, CONFIG, systemd=False, environ=environ, secrets={})
    assert "HTTPS_PROXY" in warning
    assert "geheim" not in warning


def test_the_script_survives_every_character(tmp_path: Path) -> None:
    odd = {"A": 'it\'s $HOME `id` "x" \\ ü', "B": "", "C": "@EXPORTS@ % #"}
    script = render_script(
        read_template("watch_pass.sh").decode(),
        subject="profile default",
        environ=odd,
        program=["/usr/bin/env"],
        timeout=None,
    )
    path = tmp_path / "pass.sh"
    path.write_text(script)
    done = subprocess.run(["sh", str(path)], env={}, capture_output=True, text=True, check=True)
    seen = dict(row.split("=", 1) for row in done.stdout.splitlines())
    assert {name: seen[name] for name in odd} == odd
    assert seen["PWD"] == "/"


def test_a_line_break_in_a_variable_is_refused() -> None:
    with pytest.raises(UsageError, match="LANG"):
        render_script(
            "@SUBJECT@@EXPORTS@@COMMAND@", subject="", environ={"LANG": "a\nb"}, program=[], timeout=None
        )


def test_units_name_the_script_and_the_interval() -> None:
    name = unit_name("default", "example.com:my-project")
    assert name == "tpuctl-watch-default-example.com-my-project"
    service, timer = (
        render_unit(read_template(f"tpuctl-watch.{kind}").decode(), subject="s", script='/a b%/"x', every_min=5)
        for kind in ("service", "timer")
    )
    assert 'ExecStart=/bin/sh "/a b%%/\\"x"' in service
    assert "OnUnitActiveSec=5min" in timer


@pytest.mark.parametrize(
    ("changes", "systemd", "words"),
    [
        ({"cron_runs": False}, False, "no cron daemon"),
        ({"battery": True}, False, "battery"),
        ({"lingers": False}, True, "enable-linger"),
        ({"credentials": Credentials("authorized_user", "/adc")}, False, "/adc is a person's login"),
        ({"credentials": Credentials("token-file", "/t")}, False, "within the hour"),
        ({"credentials": Credentials("none")}, True, "Google VM"),
        ({"credentials": Credentials("unreadable", "/k")}, True, "cannot be read"),
        ({"credentials": Credentials("gdch_service_account", "/k")}, True, "gdch_service_account"),
    ],
)
def test_each_danger_is_named(changes, systemd, words) -> None:
    around = replace(FINE, **changes)
    [warning] = list_warnings(around, CONFIG, systemd=systemd, environ={}, secrets={})
    assert words in warning


def test_a_machine_that_is_fine_is_not_warned_about() -> None:
    fine = replace(FINE, lingers=False)
    assert list_warnings(fine, CONFIG, systemd=False, environ={}, secrets={"file:/x": "r"}) == []
    assert list_warnings(replace(FINE, cron_runs=False), CONFIG, systemd=True, environ={}, secrets={}) == []


def test_secrets_that_only_a_terminal_has_are_named_with_their_run() -> None:
    [warning] = list_warnings(FINE, CONFIG, systemd=False, environ={}, secrets={"env:WANDB_KEY": "run-7"})
    assert "run-7" in warning
    assert "WANDB_KEY" in warning


def test_the_simulator_is_named_instead_of_its_credentials() -> None:
    sim = resolve([Layer("flag", {"project": "sim-project", "profile": "sim"})], Path("/state"))
    around = replace(FINE, credentials=Credentials("token-file", "/t"))
    [warning] = list_warnings(around, sim, systemd=False, environ={}, secrets={})
    assert "simulated" in warning


def test_batteries_of_the_machine_count_and_those_of_mice_do_not(tmp_path: Path) -> None:
    mouse = tmp_path / "hidpp_battery_0"
    mouse.mkdir()
    (mouse / "type").write_text("Battery\n")
    (mouse / "scope").write_text("Device\n")
    mains = tmp_path / "AC"
    mains.mkdir()
    (mains / "type").write_text("Mains\n")
    assert not has_battery(tmp_path)
    (mouse / "scope").unlink()
    assert has_battery(tmp_path)
    assert not has_battery(tmp_path / "missing")


def test_cron_is_found_among_the_processes(tmp_path: Path) -> None:
    assert cron_runs(tmp_path) is None
    (tmp_path / "self").mkdir()
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "comm").write_text("bash\n")
    assert cron_runs(tmp_path) is False
    (tmp_path / "17" / "comm").write_text("cron\n")
    assert cron_runs(tmp_path) is True


def test_credentials_are_found_as_google_finds_them(tmp_path: Path) -> None:
    assert find_credentials({}, tmp_path, None) == Credentials("none")
    adc = tmp_path / ".config/gcloud/application_default_credentials.json"
    adc.parent.mkdir(parents=True)
    adc.write_text('{"type": "authorized_user"}')
    assert find_credentials({}, tmp_path, None) == Credentials("authorized_user", str(adc))
    key = tmp_path / "key.json"
    key.write_text('{"type": "service_account"}')
    named = {"GOOGLE_APPLICATION_CREDENTIALS": str(key)}
    assert find_credentials(named, tmp_path, None) == Credentials("service_account", str(key))
    key.write_text("[]")
    assert find_credentials(named, tmp_path, None) == Credentials("unreadable", str(key))
    assert find_credentials(named, tmp_path, "/t") == Credentials("token-file", "/t")


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    tool = require_tool("systemd-analyze")
    for kind in ("service", "timer"):
        text = read_template(f"tpuctl-watch.{kind}").decode()
        unit = render_unit(text, subject="project 100%", script="/a b/100%/pass.sh", every_min=5)
        (tmp_path / f"tpuctl-watch-x.{kind}").write_text(unit)
    done = subprocess.run(
        [tool, "verify", str(tmp_path / "tpuctl-watch-x.timer")], capture_output=True, text=True
    )
    complaints = [line for line in done.stderr.splitlines() if "tpuctl-watch" in line]
    assert (done.returncode, complaints) == (0, [])
