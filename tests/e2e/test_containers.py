"""Programs in containers of the real podman, on isolated hosts, with images of a registry on this machine."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import wait_until
from tests.support.registry import Registry, busybox_layer, serve
from tests.support.require import require_gcsfuse, require_isolated_hosts, require_tool
from tests.support.session import Session, open_session

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

REGISTRY = "us-docker.pkg.dev"
"""Of Google, so that hosts log in there; a name of this machine on these hosts."""
IMAGE = f"{REGISTRY}/lab/private/tools"
UP = ("up", "--spot", "--pay", "--zone", "us-central2-b")
BOOT = """\
#!/bin/sh
# What an engine wants of a host: control groups, and settings for what this one may not do.
set -e
mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
tail -n +2 /proc/cgroups | while read -r name hierarchy rest; do
    [ "$hierarchy" = 0 ] && continue
    mkdir "/sys/fs/cgroup/$name" && mount -t cgroup -o "$name" cgroup "/sys/fs/cgroup/$name"
done
if [ -z "$(ls /sys/fs/cgroup)" ]; then umount /sys/fs/cgroup && mount -t cgroup2 cgroup /sys/fs/cgroup; fi
cat >/etc/containers/containers.conf <<'END'
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
END
cat >/etc/containers/storage.conf <<'END'
[storage]
driver = "vfs"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
END
cat >/etc/containers/registries.conf <<'END'
[[registry]]
location = "us-docker.pkg.dev"
insecure = true
END
rm -f /usr/local/bin/docker
echo "$(ip route show default | cut -d ' ' -f 3) us-docker.pkg.dev" >>/etc/hosts
touch /run/engine-is-ready
"""
WAITS = """\
trap 'echo told to stop; exit 0' TERM
echo ready; while [ ! -e go-on ]; do sleep 0.1; done; echo went on
"""
ENGINE_LEFT = "sudo podman ps --all --quiet; pgrep -x conmon; ls /dev/shm | grep tpuctl; true"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A slice of two hosts with an engine, one of a single host for what any host does, and a program."""
    require_isolated_hosts()
    for name in ("podman", "runc", "busybox"):
        require_tool(name, "/usr/bin:/usr/sbin:/bin:/sbin")
    gcsfuse = require_gcsfuse()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.environ["TPUCTL_GCSFUSE"] = gcsfuse
        (made.root / "boot.sh").write_text(BOOT)
        for kind, name in (("v4-16", "big"), ("v4-8", "one")):
            made.type(*UP, kind, name, "--startup-script", str(made.root / "boot.sh"))
        wait_until(lambda: engines_are_ready(made))
        (made.work / "waits.sh").write_text(WAITS)
        yield made
    for folder in sorted(Path("/sys/fs/cgroup").glob("**/libpod_parent/**/"), reverse=True):
        subprocess.run(["rmdir", str(folder)], capture_output=True)


@pytest.fixture(scope="module")
def registry(session: Session) -> Iterator[Registry]:
    [gateway] = set(session.on("big", "ip route show default | cut -d ' ' -f 3"))
    with serve(gateway.strip(), 80) as made:
        made.push("lab/private/tools", "1", busybox_layer(require_tool("busybox")), Env=["PJRT_DEVICE=CPU"])
        yield made


def engines_are_ready(session: Session) -> bool:
    look = "cat /run/engine-is-ready 2>&1 || true"
    return (session.on("big", look), session.on("one", look)) == (["", ""], [""])


def run_words(name: str, *words: str, tag: str = "1", on: str = "one") -> tuple[str, ...]:
    plain = ("run", "--on", on, "--no-checkpoint", "--max-failures", "0", "--lint", "off")
    return (*plain, "--name", name, "--container", f"{IMAGE}:{tag}", *words)


def start(session: Session, name: str, *words: str) -> subprocess.Popen[str]:
    """A run that has begun to wait."""
    process = session.start(*run_words(name, *words), "--", "sh", "waits.sh")
    wait_until(lambda: "ready" in output(session, name), 120)
    return process


def output(session: Session, name: str, worker: int = 0, stream: str = "stdout") -> str:
    """What the first attempt has written so far."""
    logs = session.root / "state" / "sim" / "sim-project" / "runs" / name / "1"
    log = logs / f"worker-{worker}.{stream}.log"
    return log.read_text() if log.exists() else ""


def let_go(session: Session, name: str, attempt: int = 1) -> None:
    session.on("one", f"touch ~/.tpuctl/runs/{name}/{attempt}/work/go-on")


def test_a_program_runs_in_the_image_with_its_code_and_ends_as_it_ends(
    session: Session, registry: Registry
) -> None:
    digest = registry.manifests["lab/private/tools", "1"]
    script = "echo $TPUCTL_RANK $PJRT_DEVICE $HOME; id -u; ls waits.sh; echo why >&2; ls /usr 2>&1; exit 7"
    done = session.type(*run_words("ends", on="big"), "--", "sh", "-c", script, status=None)
    assert done.returncode == 1, done.stderr
    [attempt] = session.json("manifest", "ends")["attempts"]
    assert {row["image"] for row in attempt["hosts"]} == {f"{IMAGE}@sha256:{sha256(digest)}"}
    assert [row["exit_status"] for row in session.json("status", "ends")["workers"]] == [7, 7]
    uid = session.on("big", "id -u")[0].strip()
    for worker in (0, 1):
        said = output(session, "ends", worker).splitlines()
        assert said == [f"{worker} CPU /tmp", uid, "waits.sh", "ls: /usr: No such file or directory"]
        assert output(session, "ends", worker, "stderr") == "why\n"
    assert session.json("status", "ends")["image"].endswith(sha256(digest))
    assert session.on("big", ENGINE_LEFT) == ["", ""]


def test_its_hosts_log_in_with_their_own_account_and_keep_nothing_of_it(
    session: Session, registry: Registry
) -> None:
    [(user, token)] = registry.logins
    assert user == "oauth2accesstoken"
    assert token
    assert session.on("big", f"sudo grep -rlF -e {token} /root /run /dev/shm ~ 2>&1 || true") == ["", ""]


def test_what_a_name_means_is_found_out_once_and_kept_by_a_rerun(session: Session, registry: Registry) -> None:
    first = sha256(registry.manifests["lab/private/tools", "1"])
    moved = registry.push("lab/private/moving", "1", busybox_layer(require_tool("busybox"), {"etc/a": b"1"}))
    words = ("run", "--on", "big", "--no-checkpoint", "--container", f"{REGISTRY}/lab/private/moving:1")
    registry.pulled.clear()
    session.type(*words, "--name", "once", "--", "true")
    [attempt] = session.json("manifest", "once")["attempts"]
    assert {row["image"] for row in attempt["hosts"]} == {f"{REGISTRY}/lab/private/moving@{moved}"}
    assert [reference for _, reference in registry.pulled].count("1") == 1  # the others asked for its digest
    other = registry.push("lab/private/moving", "1", busybox_layer(require_tool("busybox"), {"etc/a": b"2"}))
    assert len({first, moved, other}) == 3
    session.type("rerun", "once", "--name", "again")
    assert session.json("status", "again")["image"].endswith(moved)
    session.type(*words, "--name", "stale", "--", "true")
    assert session.json("status", "stale")["image"].endswith(moved)
    session.type(*words, "--name", "fresh", "--pull", "always", "--", "true")
    assert session.json("status", "fresh")["image"].endswith(other)


def test_secrets_are_nowhere_but_in_its_memory_and_a_stop_reaches_it_once(
    session: Session, registry: Registry
) -> None:
    session.environ["TOKEN"] = "s3cret-of-the-lab"
    process = start(session, "secret", "--secret", "TOKEN=env:TOKEN", "--var", "PLAIN=1")
    seen = session.on("one", "sudo podman inspect $(sudo podman ps --quiet); ps axww -o args")
    assert all('"tpuctl-secret-1-0-' in each and "s3cret" not in each for each in seen)
    stacks = session.type("stacks", "secret").stdout
    assert "sh waits.sh" in stacks
    assert "podman run" not in stacks
    session.type("stop", "secret", "--yes")
    process.communicate(timeout=120)
    assert output(session, "secret") == "ready\ntold to stop\n"
    assert session.json("status", "secret")["state"] == "stopped"
    assert session.on("one", ENGINE_LEFT) == [""]


def test_what_outlives_its_supervisor_is_ended_before_the_next_attempt(
    session: Session, registry: Registry
) -> None:
    process = start(session, "orphan")
    record = "/home/*/.tpuctl/runs/orphan/1/status.json"
    session.on("one", f'kill -9 $(sed -E "s/.*supervisor[^0-9]*([0-9]+).*/\\1/" {record})')
    wait_until(lambda: (session.json("status", "orphan")["attempt"] or {})["number"] == 2, 120)
    wait_until(
        lambda: all(re.findall(r"orphan-2-0", each) for each in session.on("one", "sudo podman ps")), 120
    )
    assert all("orphan-1-0" not in each for each in session.on("one", "sudo podman ps --all"))
    let_go(session, "orphan", 2)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    assert session.on("one", ENGINE_LEFT) == [""]


def test_a_reboot_ends_it_with_its_monitor_and_the_next_attempt_finds_room(
    session: Session, registry: Registry
) -> None:
    process = start(session, "rebooted")
    before = session.on("one", "pgrep -x conmon")
    assert all(each.strip() for each in before)
    session.type("sim", "reboot", "one-1")
    wait_until(lambda: session.json("status", "rebooted")["attempt"]["number"] == 2, 180)
    wait_until(lambda: all("rebooted-2-0" in each for each in session.on("one", "sudo podman ps")), 120)
    assert all("rebooted-1-0" not in each for each in session.on("one", "sudo podman ps --all"))
    assert all(len(each.split()) == 1 for each in session.on("one", "pgrep -x conmon"))
    let_go(session, "rebooted", 2)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out


def test_it_has_the_buckets_of_the_slice_and_chips_as_they_were_asked_for(
    session: Session, registry: Registry
) -> None:
    session.type("mount", "add", "gs://sim-bucket/lab:/mnt/lab:checkpoint", "--on", "one")
    session.on("one", "for chip in 0 1 2 3; do sudo mknod -m 666 /dev/accel$chip c 1 3; done")
    script = "echo $TPUCTL_RANK $TPU_VISIBLE_CHIPS $(ls /dev | grep accel); touch /mnt/lab/rank-$TPUCTL_RANK"
    session.type(*run_words("chips", "--per", "chip"), "--", "sh", "-c", script)
    said = session.type("logs", "chips").stdout
    seen = sorted(re.findall(r"(\d) (\d) accel0 accel1 accel2 accel3$", said, re.M))
    assert seen == [(str(rank), str(rank)) for rank in range(4)], said
    assert session.on("one", "stat -c %U /mnt/lab/*; ls /mnt/lab | wc -l") == ["tpuctl\n" * 4 + "4\n"]
    session.on("one", "sudo rm /dev/accel?")


def test_a_disk_has_all_that_a_container_was_told_is_written_when_its_slice_goes(
    session: Session, registry: Registry
) -> None:
    session.type("disk", "create", "data", "--size", "10", "--zone", "us-central2-b")
    boot = ("--startup-script", str(session.root / "boot.sh"))
    session.type(*UP, "v4-8", "writer", *boot, "--disk", "data:rw:/mnt/data")
    writes = "n=0; while :; do n=$((n+1)); echo $n >/mnt/data/n; sync; echo wrote $n; sleep 0.1; done"
    plain = ("run", "--on", "writer", "--no-checkpoint", "--lint", "off", "--container", f"{IMAGE}:1")
    session.type(*plain, "--name", "writes", "--detach", "--", "sh", "-c", writes)

    def written(name: str) -> int:
        found = json.loads(session.type("exec", name, "--json", "--", "cat", "/mnt/data/n", status=None).stdout)
        [row] = found if isinstance(found, list) else found["workers"]
        return int(row["stdout"] or 0)

    wait_until(lambda: written("writer") > 5, 60)
    refused = session.type("disk", "detach", "data", "--to", "writer", status=None)
    assert refused.returncode == 6, refused.stderr
    assert "run writes on writer is in a container" in refused.stderr
    then = written("writer")
    wait_until(lambda: written("writer") > then, 60)
    session.type("down", "writer", "--yes")
    told = max(int(n) for n in re.findall(r"^wrote (\d+)$", output(session, "writes"), re.M))
    session.type(*UP, "v4-8", "reader", "--disk", "data:/mnt/data")
    assert written("reader") >= told > 5


def test_what_cannot_run_is_refused_with_what_helps(session: Session, registry: Registry) -> None:
    registry.push("lab/private/tools", "arm", busybox_layer(require_tool("busybox")), architecture="arm64")
    registry.push("lab/private/tools", "large", busybox_layer(require_tool("busybox"), {"etc/large": b"x"}))
    large = "sudo mount -t tmpfs -o size=64k small /var/tmp"
    without = "sudo mv /usr/bin/podman /usr/bin/podman-away"
    for name, tag, first, after, why, hint in (
        ("missing", "none", "true", "true", "there is no such image", "look at its name and tag"),
        ("arm", "arm", "true", "true", "is for arm64, and its hosts are amd64", "--platform linux/amd64"),
        ("full", "large", large, "sudo umount /var/tmp", "its disk is full", "make room there"),
        ("absent", "1", without, "sudo mv /usr/bin/podman-away /usr/bin/podman", "neither docker", "docker.io"),
    ):
        session.on("one", first)
        done = session.type(*run_words(name, tag=tag), "--", "true", status=None)
        session.on("one", after)
        assert done.returncode == 1, done.stderr
        assert why in done.stderr, done.stderr
        assert hint in done.stderr, done.stderr
        assert session.json("status", name)["attempt"]["started"] is None


def sha256(data: bytes) -> str:
    from tests.support.registry import digest_of

    return digest_of(data).removeprefix("sha256:")
