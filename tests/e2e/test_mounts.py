"""Buckets on isolated hosts, by the real gcsfuse: what hosts see of each other, and what brings mounts back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.support.hosts import wait_until
from tests.support.require import require_gcsfuse, require_isolated_hosts
from tests.support.session import Session, open_session
from tests.support.soak import long, soak

ZONE = "us-central2-b"
UP = ("up", "v4-16", "big", "--spot", "--pay", "--zone", ZONE)
CKPT, SLOW = "/mnt/ckpt", "/mnt/slow"
SLOW_S = 5
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A slice of two hosts with one folder of a bucket twice: without a cache, and with one of some seconds."""
    require_isolated_hosts()
    program = require_gcsfuse()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.environ["TPUCTL_GCSFUSE"] = program
        make_tree_bucket(made)
        both = "gs://sim-bucket/both"
        made.type(*UP, "--mount", f"{both}:{CKPT}:checkpoint", "--mount", f"{both}:{SLOW}:shared-code")
        yield made


def make_tree_bucket(session: Session) -> None:
    """One with a hierarchical namespace."""
    body = {
        "name": "tree-bucket",
        "hierarchicalNamespace": {"enabled": True},
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
    }
    session.ask("POST", "/storage/v1/b?project=sim-project", body)


def on(session: Session, worker: int, script: str, status: int = 0, name: str = "big") -> str:
    return session.on(name, script, "--worker", str(worker), status=status)[0]


def rows(session: Session) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(session.type("mount", "check", "--json").stdout)
    return found


def well(session: Session) -> bool:
    done = session.type("mount", "check", "--json", status=None)
    return done.returncode == 0 and all(row["well"] for row in json.loads(done.stdout))


def test_what_one_host_writes_another_sees_at_once_without_a_cache(session: Session) -> None:
    on(session, 0, f"cd {CKPT}; echo one > a; mkdir -p d; echo x > d/b")
    assert on(session, 1, f"cd {CKPT}; cat a d/b; test ! -e c") == "one\nx\n"
    on(session, 0, f"cd {CKPT}; echo two >> a; mv d e; mv a c")
    assert on(session, 1, f"cd {CKPT}; cat c e/b; test ! -e a; test ! -e d") == "one\ntwo\nx\n"
    on(session, 1, f"rm -r {CKPT}/c {CKPT}/e")
    assert on(session, 0, f"ls {CKPT}") == ""


def test_with_a_ttl_it_is_seen_when_that_is_over(session: Session) -> None:
    # Both mounts have a gcsfuse of their own, so on one host it is as on two, and no SSH is in between.
    script = """
        cd /mnt; echo 1 > ckpt/t; cat slow/t; echo 2 > ckpt/t; cat ckpt/t slow/t; date +%s.%N
        until [ "$(cat slow/t)" = 2 ]; do sleep 0.1; done; date +%s.%N"""
    first, fresh, stale, began, ended = on(session, 0, script).split()
    assert (first, fresh, stale) == ("1", "2", "1")
    assert SLOW_S - 2 <= float(ended) - float(began) <= SLOW_S + 10


def test_kernel_and_gcsfuse_have_what_was_planned(session: Session) -> None:
    for path, ttl in ((CKPT, 0), (SLOW, SLOW_S)):
        shown = session.json("mount", "show", path)
        pid = f"$(pgrep -f 'gcsfuse.*{path}$')"
        file = f"$(tr '\\0' '\\n' < /proc/{pid}/cmdline | sed -n 's/--config-file=//p')"
        found = on(session, 1, f"cat {file}")
        assert yaml.safe_load(found) == yaml.safe_load(shown["configuration"])
        assert yaml.safe_load(found)["metadata-cache"]["ttl-secs"] == ttl
        assert ("at once" if ttl == 0 else f"after {ttl} s") in shown["sees"]
    assert {row["gcsfuse"] for row in rows(session)} == {"3.11.3"}
    assert all({"rw", "allow_other"} <= set(row["options"]) for row in rows(session))
    assert on(session, 0, f"touch {CKPT}/mine; stat -c %U {CKPT}/mine; rm {CKPT}/mine") == "tpuctl\n"
    assert {row["path"] for row in session.json("mount", "ls")} == {CKPT, SLOW}


@pytest.mark.parametrize(
    ("at", "when"), [(3, "after"), *(soak(at, when) for at in range(1, 9) for when in ("before", "after"))]
)
def test_an_add_that_was_killed_comes_to_its_end_when_it_is_typed_again(
    session: Session, at: int, when: str
) -> None:
    """On a bucket with a hierarchical namespace, whose folders are asked for by gRPC: that takes no minutes."""
    path = f"/mnt/k{at}{when}"
    words = ("mount", "add", f"gs://tree-bucket:{path}:checkpoint", "--on", "big")
    died = session.type_killed(at, when, *words)
    assert died.returncode in (-9, 0), died.stderr  # where it has fewer changes than that
    look = 'grep -ho \'"path": "[^"]*\' /var/lib/tpuctl-mounts/*/status.json | cut -d \'"\' -f 4'
    assert {CKPT} <= set(on(session, 0, look).split()) <= {row["path"] for row in session.json("mount", "ls")}
    session.type(*words)
    mounted = [row for row in rows(session) if row["path"] == path]
    assert [row["health"] for row in mounted] == ["mounted"] * 2
    on(session, 0, f"cd {path}; rm -rf a z; mkdir -p a/b a/empty; echo one > a/b/f; mv a z; echo two >> z/b/f")
    assert (
        on(session, 1, f"cd {path}; find . | sort; cat z/b/f")
        == ".\n./z\n./z/b\n./z/b/f\n./z/empty\none\ntwo\n"
    )
    session.type("mount", "rm", path)


def test_the_same_again_changes_nothing(session: Session) -> None:
    look = "pgrep -x gcsfuse | sort; ls .tpuctl/runs/provision-big"
    before = on(session, 0, look)
    session.type("mount", "add", f"gs://sim-bucket/both:{CKPT}:checkpoint")
    session.type(*UP, "--mount", f"gs://sim-bucket/both:{CKPT}:checkpoint")
    assert on(session, 0, look) == before


@contextmanager
def trouble(session: Session, fault: str, *more: str) -> Iterator[None]:
    """The simulator's fault for as long as this lasts."""
    session.type("sim", "fault", fault, *more)
    try:
        yield
    finally:
        session.type("sim", "fault", "--clear")


def healths(session: Session, hint: str = "") -> set[str]:
    """What is said of all mounts of all hosts; `hint` is a part of what to type."""
    done = session.type("mount", "check", "--json", status=None)
    assert done.returncode in (0, 3), done.stderr
    found = json.loads(done.stdout)
    assert not hint or hint in found["error"]["hint"]
    return {row["health"] for row in (found if done.returncode == 0 else found["error"]["details"]["mounts"])}


def restarts(session: Session) -> dict[tuple[str, int], int]:
    """How often each mount was made anew, by path and worker."""
    return {(row["path"], row["worker"]): row["restarts"] for row in rows(session)}


SITS_OUT = "the bucket does not answer: nothing within 5 s"
ASK = "gcloud storage ls gs://sim-bucket"


@pytest.mark.parametrize(
    ("fault", "said", "hint", "lasts_s"),
    [
        soak("storage-unavailable", SITS_OUT, ASK, 30.0),
        soak("storage-rate-limit", SITS_OUT, ASK, 30.0),
        ("storage-hang", SITS_OUT, ASK, 0.0),
        (
            "bucket-deleted",
            "the bucket gs://sim-bucket is gone",
            f"tpuctl mount rm {CKPT} --on big, or make",
            0.0,
        ),
    ],
)
def test_trouble_of_the_bucket_is_told_of_and_sat_out(
    session: Session, fault: str, said: str, hint: str, lasts_s: float
) -> None:
    """A gcsfuse that waits for its bucket is not mounted again: programs would lose what they have open."""
    on(session, 0, f"echo there > {CKPT}/t")
    before = restarts(session)
    with trouble(session, fault, "--set", "times=0"):
        began = time.monotonic()
        if said == SITS_OUT:  # from a bucket that is gone a program has its answer
            reader = session.start("exec", "big", "--worker", "1", "--", "cat", f"{CKPT}/t")
        assert healths(session, hint) == {said}
        while time.monotonic() < began + lasts_s:
            time.sleep(0.5)
    if said == SITS_OUT:
        done = session.finish(reader)
        assert (done.returncode, done.stdout.split()[-1:]) == (0, ["there"]), done
    wait_until(lambda: well(session))
    assert restarts(session) == before


@pytest.mark.soak
def test_a_bucket_that_hosts_may_not_read_any_more_is_told_of_with_the_role(session: Session) -> None:
    denied = ("--set", "code=7", "--set", "message=no access", "--set", "times=0")
    with trouble(session, "storage-unavailable", *denied):
        found = healths(session, "add-iam-policy-binding gs://sim-bucket")
        assert found == {"the bucket does not answer: Permission denied"}
        on(session, 0, f"sudo pkill -9 -f '[g]csfuse.*{CKPT}$'")
        wait_until(lambda: any(each.startswith("restarting: ") for each in healths(session)))
        refused = " ".join(session.type("mount", "check", "--heal", status=3).stderr.split())
        assert "failed on worker 0: code = PermissionDenied desc = no access" in refused
        assert "add-iam-policy-binding gs://sim-bucket" in refused.partition("hint: ")[2]
    wait_until(lambda: well(session))


def test_a_run_does_not_start_on_a_bucket_that_is_gone(session: Session) -> None:
    with trouble(session, "bucket-deleted"):
        refused = session.type(
            "run", "--on", "big", "--no-checkpoint", "--name", "early", "--", "true", status=1
        )
        assert "there is no bucket gs://sim-bucket" in " ".join(refused.stderr.split())
        assert "gcloud storage buckets create gs://sim-bucket" in refused.stderr
        assert (
            f"{CKPT} on workers 0-1: the bucket gs://sim-bucket is gone" in session.type("status", "big").stdout
        )
    session.type("stop", "early", "--yes")


@pytest.mark.long
def test_a_host_without_its_metadata_server_is_told_of_and_comes_back(session: Session) -> None:
    """gcsfuse has its token for a while: one that is started has none."""
    with trouble(session, "no-metadata"):
        assert healths(session) == {"mounted"}
        on(session, 0, f"sudo pkill -9 -f '[g]csfuse.*{CKPT}$'")
        wait_until(lambda: "mounting: gcsfuse died" in healths(session))
    wait_until(lambda: well(session))


def test_a_run_is_told_of_a_mount_that_dies_under_it(session: Session) -> None:
    program = f"echo begun > {SLOW}/begun; until test -e {SLOW}/end; do sleep 0.5; done; exit 3"
    words = ("--on", "big", "--no-checkpoint", "--name", "told", "--max-failures", "0")
    run = session.start("run", *words, "--", "sh", "-c", program)
    wait_until(lambda: "begun" in on(session, 0, f"ls {CKPT}"))
    on(session, 1, f"sudo pkill -9 -f '[g]csfuse.*{CKPT}$'")
    wait_until(lambda: "is well again" in str(session.json("why", "told")))
    on(session, 0, f"touch {SLOW}/end")
    done = session.finish(run)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert f"mount {CKPT} on worker 1: " in said
    assert f"mount {CKPT} on worker 1 is well again" in said
    assert (
        "exited with 3; mount /mnt/ckpt on worker 1: " in session.json("manifest", "told")["attempts"][0]["why"]
    )
    on(session, 0, f"rm {SLOW}/begun {SLOW}/end")


@pytest.mark.parametrize("signal", ["-9", long("-STOP")])
def test_a_gcsfuse_that_dies_or_hangs_is_mounted_again(session: Session, signal: str) -> None:
    before = restarts(session)
    on(session, 1, f"sudo pkill {signal} -f '[g]csfuse.*{CKPT}$'")
    writes = f"timeout 5 sh -c 'echo well > {CKPT}/w; cat {CKPT}/w'; true"
    wait_until(lambda: "well" in on(session, 1, writes))
    wait_until(lambda: well(session))
    assert restarts(session) == {**before, (CKPT, 1): before[CKPT, 1] + 1}


@pytest.mark.long
def test_a_mount_whose_keeper_died_too_is_brought_back_by_a_pass(session: Session) -> None:
    on(session, 0, "sudo pkill -9 -f '[k]eeper.py'; sudo pkill -9 -x gcsfuse; sleep 0.2; true")
    on(session, 0, f"sudo umount -l {CKPT}")
    lost = on(session, 0, f"sudo touch {CKPT}/lost 2>&1; ls -A {CKPT}; true")
    assert "Operation not permitted" in lost  # by root, too: else the next mount would find it
    assert healths(session) != {"mounted"}
    assert "not running" in session.type("status", "big").stdout
    session.watch_until(lambda: well(session) and session.json("status", "big")["state"] == "ready")


def test_the_keeper_of_another_tpuctl_is_told_of_and_replaced_under_open_files(session: Session) -> None:
    """One from before an upgrade: what has the mount open goes on reading."""
    script = f"""
        cd /var/lib/tpuctl-mounts/$(grep -l '"{CKPT}"' /var/lib/tpuctl-mounts/*/status.json | cut -d/ -f5)
        echo '# older' >> keeper.py; pkill -9 -f "$PWD/keep[e]r.py"
        setsid python3 -I -S $PWD/keeper.py keep $PWD > /dev/null 2>&1 < /dev/null &
        sleep 1; pgrep -f 'gcsfuse.*{CKPT}$'"""
    on(session, 0, f"echo first > {CKPT}/open")
    server = on(session, 1, f"sudo sh -c '{script.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}'")
    reader = session.start(
        "exec",
        "big",
        "--worker",
        "1",
        "--",
        "sh",
        "-c",
        f"exec 3< {CKPT}/open; until test -e {CKPT}/go; do sleep 0.2; done; cat <&3",
    )
    wait_until(lambda: on(session, 1, "pgrep -f '[g]o; do sleep'; true") != "")
    wait_until(lambda: "by a keeper of another tpuctl" in session.type("status", "big").stdout)
    wait_until(lambda: [row["worker"] for row in rows(session) if row["old_keeper"]] == [1])
    session.type("mount", "check", "--heal")
    assert healths(session) == {"mounted"}
    assert on(session, 1, f"pgrep -f 'gcsfuse.*{CKPT}$'") == server
    on(session, 0, f"touch {CKPT}/go")
    assert session.finish(reader).stdout.split()[-1] == "first"
    on(session, 0, f"rm {CKPT}/go {CKPT}/open")


def test_a_run_says_what_was_mounted_and_does_not_keep_its_models_there(session: Session) -> None:
    words = ("run", "--on", "big", "--no-checkpoint", "--name", "reads")
    session.type(*words, "--", "sh", "-c", f"echo $TPUCTL_WORKER > {CKPT}/run; cat {CKPT}/run")
    [manifest] = session.json("manifest", "reads")["attempts"]
    assert {row["path"] for row in manifest["mounts"]} == {CKPT, SLOW}
    assert all("gcsfuse 3.11.3" in host[f"mount {CKPT}"] for host in manifest["hosts"])
    refused = session.type(*words[:-1], "other", "--var", f"HF_HOME={CKPT}/hf", "--", "true", status=2)
    assert "symbolic links" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("words", "status", "said", "hint"),
    [
        (
            ("gs://sim-bucket:/mnt/full",),
            3,
            "/mnt/full is not empty",
            "tpuctl exec --worker 1 big -- ls -lA /mnt/full",
        ),
        ((f"gs://sim-bucket:{CKPT}/inside",), 2, "is inside", "paths beside each other"),
        (
            (f"gs://sim-bucket/other:{CKPT}",),
            6,
            f"gs://sim-bucket/both is mounted at {CKPT}, not gs://",
            f"tpuctl mount rm {CKPT}",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changed(
    session: Session, words: tuple[str, ...], status: int, said: str, hint: str
) -> None:
    served = on(session, 1, "pgrep -x gcsfuse")
    on(session, 1, "sudo mkdir -p /mnt/full; echo kept | sudo tee /mnt/full/file")
    refused = session.type("mount", "add", *words, "--on", "big", status=status)
    told = " ".join(refused.stderr.split())
    assert said in told
    assert hint in told.partition("hint: ")[2]
    assert {row["path"] for row in session.json("mount", "ls")} == {CKPT, SLOW}
    assert on(session, 1, "pgrep -x gcsfuse") == served
    assert on(session, 1, "cat /mnt/full/file; ls /var/lib/tpuctl-mounts | wc -l") == "kept\n2\n"


@pytest.mark.long
def test_a_bucket_is_made_for_a_mount_and_its_speed_is_measured(session: Session) -> None:
    made = ("mount", "add", "gs://made-by-tpuctl/d:/mnt/made,ttl=3", "--create", "--on", "big")
    assert "made gs://made-by-tpuctl in us-central2" in " ".join(session.type(*made).stderr.split())
    assert "made gs://" not in session.type(*made).stderr
    assert session.json("mount", "show", "/mnt/made")["ttl_s"] == 3
    found = session.json("mount", "bench", "/mnt/made", "--size", "9")
    assert found["errors"] == 0
    assert all(row["write_gb_s"] > 0 and row["read_gb_s"] > 0 for row in found["hosts"])
    assert found["read_gb_s"] > max(row["read_gb_s"] for row in found["hosts"]) / 2
    assert on(session, 1, "ls -A /mnt/made") == ""
    session.type("mount", "rm", "/mnt/made")


def test_a_mount_goes_when_nobody_has_it_open_and_its_files_stay(session: Session) -> None:
    on(session, 0, f"echo stays > {SLOW}/stays")
    inside = session.start("exec", "big", "--worker", "0", "--", "sh", "-c", f"cd {SLOW} && exec sleep 333")
    wait_until(lambda: on(session, 0, "pgrep -f '[s]leep 333'; true") != "")
    for words in (("rm", SLOW), ("add", f"gs://sim-bucket/both:{SLOW}:shared-code", "--ttl", "9")):
        busy = " ".join(session.type("mount", *words, status=3).stderr.split())
        assert "busy" in busy
        assert f"tpuctl exec --worker 0 big -- sudo fuser -vm {SLOW}" in busy
        assert healths(session) == {"mounted"}
    assert SLOW in {row["path"] for row in session.json("mount", "ls")}
    on(session, 0, "pkill -f '[s]leep 333'")
    inside.communicate(timeout=60)
    session.type("mount", "rm", SLOW)
    on(session, 0, f"sudo touch {SLOW}/free && sudo rm {SLOW}/free")
    assert on(session, 0, f"ls {SLOW}; cat {CKPT}/stays") == "stays\n"
    assert {row["path"] for row in rows(session)} == {CKPT}


@pytest.mark.long
def test_mounts_of_a_fleet_file_are_there_before_its_slice_is_ready_and_follow_the_file(
    session: Session,
) -> None:
    def apply(*mounts: str, prune: bool = False) -> dict[str, str]:
        """The process that serves each path, and the ttl it was given."""
        filed = {"accelerator": "v4-8", "pay": True, "tier": "spot", "zone": ZONE, "mount": mounts}
        text = json.dumps({"fleet": {"name": "lab", "slices": {"filed": filed}}})
        (session.work / "fleet.yaml").write_text(text)
        options = ("--prune",) if prune else ("--yes",)
        session.type("apply", "-f", "fleet.yaml", *options)
        assert session.json("status", "filed")["state"] == "ready"
        script = """
            for pid in $(pgrep -x gcsfuse); do
                words=$(tr '\\0' ' ' < /proc/$pid/cmdline)
                file=$(echo "$words" | sed 's/.*--config-file=\\([^ ]*\\).*/\\1/')
                echo $(echo $words | sed 's/.* //') $pid-$(sed -n 's/^  ttl-secs: //p' $file)
            done"""
        return dict(line.split() for line in on(session, 0, script, name="filed").splitlines())

    both = ("gs://sim-bucket/a:/mnt/a:train,ttl=7", "gs://sim-bucket/b:/mnt/b:dataset")
    first = apply(*both)
    assert {path: value.partition("-")[2] for path, value in first.items()} == {"/mnt/a": "7", "/mnt/b": "-1"}
    assert apply(*both) == first
    changed = apply("gs://sim-bucket/a:/mnt/a:train,ttl=9", both[1])
    assert changed["/mnt/a"].endswith("-9")
    assert changed["/mnt/b"] == first["/mnt/b"]
    session.type("mount", "add", "gs://sim-bucket/c:/mnt/c", "--on", "filed")
    by_hand = apply(both[1])
    assert {**by_hand, **changed} == by_hand
    assert apply(both[1], prune=True) == {path: by_hand[path] for path in ("/mnt/b", "/mnt/c")}
    assert {row["path"] for row in session.json("mount", "ls") if row["slice"] == "filed"} == {
        "/mnt/b",
        "/mnt/c",
    }
    session.type("down", "filed", "--yes")
