"""Nothing that a program of the process tier does as root of its host is done to the machine."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import NODE, Lab, open_lab, populate, wait_until
from tpuctl.sim.hosts.init import NOBODY, RIGHTS_DROPPED


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with open_lab("process", tmp_path) as made:
        yield populate(made, 1)


def test_sudo_is_refused_and_names_the_tier_that_has_it(lab: Lab) -> None:
    status, out, err = lab.run("sudo -n true")
    assert (status, out) == (1, "")
    assert "tpuctl sim up --hosts isolated" in err
    assert lab.run("grep NoNewPrivs /proc/self/status")[1].split() == ["NoNewPrivs:", "1"]


as_root = pytest.mark.skipif(
    not RIGHTS_DROPPED, reason="there are rights to drop only where the simulator has them"
)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of ours that hosts may read, in a folder that is closed to other users."""
    folder = tmp_path / "precious"
    folder.mkdir(mode=0o700)
    file = folder / "log"
    file.write_text("of the machine")
    file.chmod(0o600)
    return file


@as_root
def test_programs_of_a_root_simulator_read_the_machines_files_and_change_none(lab: Lab, precious: Path) -> None:
    status, out, _ = lab.run(
        f"cat {precious}; test -r {precious} && echo readable; python3 -c 'print(1)'", user="root"
    )
    assert (status, out) == (0, "of the machinereadable\n1\n")
    for change in (
        f"rm -rf {precious}",
        f"echo > {precious}",
        f"touch {precious.parent}/more",
        f"chmod 777 {precious}",
    ):
        assert lab.run(change, user="root")[0] != 0, change
    assert lab.run(f"test -w {precious}")[0] != 0
    assert [each.read_text() for each in precious.parent.iterdir()] == ["of the machine"]
    assert stat.S_IMODE(precious.stat().st_mode) == 0o600


@as_root
def test_programs_of_a_root_simulator_cannot_signal_the_machines_processes(lab: Lab) -> None:
    init = "cut -d' ' -f4 /proc/$$/stat"
    status, _, err = lab.run(f"kill -0 {os.getpid()}; kill -0 $({init}) && echo both", user="root")
    assert (status, err.count("not permitted")) == (1, 2)


@as_root
def test_sftp_and_the_startup_script_of_a_root_simulator_change_nothing_either(
    lab: Lab, precious: Path
) -> None:
    with lab.client(user="root") as client, client.open_sftp() as sftp:
        with sftp.open(str(precious)) as file:
            assert file.read() == b"of the machine"
        for change in (lambda: sftp.remove(str(precious)), lambda: sftp.open(f"{precious}.2", "w")):
            with pytest.raises(PermissionError):
                change()
        with sftp.open("mine", "w") as file:
            file.write(b"1")
    assert lab.run("echo 2 >> mine; cat mine; echo 3 > /dev/stderr", user="root") == (0, "12\n", "3\n")
    lab.metadata["attributes/startup-script"] = f"rm -rf {precious.parent}; id -u > ~/booted"
    lab.hosts.stop(NODE)
    lab.hosts.start(NODE)
    wait_until(lambda: lab.run("cat booted", user="root")[1] == f"{NOBODY}\n")
    assert precious.exists()


@as_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="util-linux has setpriv")
@pytest.mark.parametrize("withheld", [True, False])
def test_sim_up_warns_where_programs_must_stay_root(tmp_path: Path, withheld: bool) -> None:
    """Docker withholds the capability unless it is told otherwise."""
    program = [str(Path(sys.executable).with_name("tpuctl")), "sim"]
    less = ["setpriv", "--inh-caps", "-dac_read_search", "--bounding-set", "-dac_read_search"]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TPUCTL_STATE_DIR": str(tmp_path / "state")}
    try:
        command = [*(less if withheld else []), *program, "up", "--instant"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    finally:
        subprocess.run([*program, "down"], env=env, capture_output=True, check=True, timeout=60)
    assert ("--cap-add DAC_READ_SEARCH" in done.stderr) == withheld
