"""Facts of hosts to the columns in which they differ: every kind of drift, and the command that mends it."""

from __future__ import annotations

import json
from dataclasses import replace as changed
from typing import Any

import pytest
from msgspec import structs

from tests.support.environments import make_pinned
from tpuctl.envs.drift import HostReading, compare_hosts, skew_of
from tpuctl.envs.hosts import EnvironmentKind, find_sealed
from tpuctl.envs.install import Told, when_asked
from tpuctl.envs.pinned import environment_key
from tpuctl.envs.spec import Backend, KernelSettings
from tpuctl.hosts.facts import FactsReply
from tpuctl.model.hosts import Blob
from tpuctl.model.verdict import Blocked

PINNED = make_pinned(
    {"jax": ("0.10.2", "a" * 64)}, name="mine", backend=Backend.JAX, kernel=KernelSettings("always")
)
KEY = environment_key(PINNED, "3.11")
KIND = EnvironmentKind(PINNED, "big", b"")
MARK = {
    "python": "3.11.7",
    "packages": {"jax": "0.10.2"},
    "libtpu": {"path": "/e/libtpu.so", "sha256": "b" * 64, "pjrt": "0.112"},
}


def host(**sections: Any) -> dict[str, Any]:
    """What a host that is as asked says; `sections` are different."""
    return {
        "time": 100.0,
        "boot_id": "x",
        "host": {
            "hostname": "h",
            "user": "u",
            "home": "/home/u",
            "root": "sudo",
            "kernel": "6",
            "os": "Ubuntu",
        },
        "pythons": [{"path": "/usr/bin/python3", "version": "3.11.7"}],
        "space": [{"path": "/home/u", "total_bytes": 100 << 30, "free_bytes": 50 << 30}],
        "chips": {"devices": ["/dev/accel0"], "holders": [], "unknown": False},
        "envs": [{"key": KEY, "mark": MARK}],
        "kernel": {
            "transparent_hugepages": "always",
            "memlock_bytes": [None, None],
        },
        "variables": {},
        **sections,
    }


def differences(*hosts: dict[str, Any] | None, skews: tuple[float, ...] = ()) -> list[tuple[Any, ...]]:
    seen = [
        HostReading(
            worker,
            FactsReply.parse(each) if each is not None else None,
            (skews or (0.0,) * 9)[worker],
            "cut off",
        )
        for worker, each in enumerate(hosts)
    ]
    return [
        (d.column, dict(d.found), d.expected, d.hint) for d in compare_hosts(PINNED, "big", seen, kind=KIND)
    ]


APPLY = "tpuctl env apply mine --on big"


def test_hosts_that_are_as_asked_differ_in_nothing() -> None:
    assert differences(host(), host(), host()) == []


@pytest.mark.parametrize(
    ("odd", "column", "value", "expected", "hint"),
    [
        ({"envs": []}, "environment", "not installed", "installed", APPLY),
        ({"envs": [{"key": KEY, "mark": None}]}, "environment", "not installed", "installed", APPLY),
        (
            {"envs": [{"key": KEY, "mark": MARK, "changed": ["a.py", "b", "c", "d"], "changes": 4}]},
            "files",
            "changed a.py, b, c and 1 more",
            "as installed",
            APPLY,
        ),
        (
            {"envs": [{"key": KEY, "mark": {**MARK, "packages": {"jax": "0.10.1"}}}]},
            "packages",
            "jax==0.10.1",
            "jax==0.10.2",
            APPLY,
        ),
        (
            {"envs": [{"key": KEY, "mark": {**MARK, "libtpu": {**MARK["libtpu"], "sha256": "c" * 64}}}]},
            "libtpu sha256",
            "c" * 64,
            "b" * 64,
            APPLY,
        ),
        (
            {"variables": {"TPU_LIBRARY_PATH": {"value": "/x.so", "file": "/etc/environment"}}},
            "variables",
            "TPU_LIBRARY_PATH=/x.so",
            "none",
            "tpuctl exec --worker 1 big -- sudo sed -i -E"
            r" '/^\s*(export\s+)?TPU_LIBRARY_PATH=/d' /etc/environment",
        ),
        (
            {"variables": {"XLA_FLAGS": {"value": "--a", "file": "/home/u/.bashrc"}}},
            "variables",
            "XLA_FLAGS=--a",
            "none",
            "tpuctl exec --worker 1 big -- sed -i -E"
            r" '/^\s*(export\s+)?XLA_FLAGS=/d' /home/u/.bashrc",
        ),
        (
            {
                "chips": {
                    "devices": ["/dev/accel0"],
                    "holders": [{"pid": 7, "user": "ada", "command": "python old.py", "since": 1.0}],
                    "unknown": False,
                }
            },
            "chip holders",
            "pid 7 of ada (python old.py) since 1970-01-01T00:00:01Z",
            "none",
            "tpuctl exec --worker 1 big -- sudo kill 7",
        ),
        (
            {"chips": {"devices": [], "holders": [], "unknown": False}},
            "chips",
            "0",
            "1",
            "tpuctl status big",
        ),
        (
            {"space": [{"path": "/home/u", "total_bytes": 1 << 40, "free_bytes": 200 << 20}]},
            "disk",
            "200 MiB free",
            "enough",
            "tpuctl env gc --on big",
        ),
        (
            {"kernel": {**host()["kernel"], "transparent_hugepages": "madvise"}},
            "hugepages",
            "madvise",
            "always",
            APPLY,
        ),
    ],
)
def test_one_odd_host_is_named_with_what_it_has_and_the_command_that_mends_it(
    odd: dict[str, Any], column: str, value: str, expected: str, hint: str
) -> None:
    assert differences(host(), host(**odd), host()) == [(column, {value: (1,)}, expected, hint)]


def test_a_clock_two_minutes_off_and_a_host_without_an_answer_are_named() -> None:
    assert differences(host(), host(), host(), skews=(0.0, 120.0, -1.0)) == [
        (
            "clock",
            {"a clock +120 s off": (1,)},
            "in step",
            "tpuctl exec --worker 1 big -- sudo chronyc makestep",
        )
    ]
    ((*silent, hint),) = differences(host(), host(), None)
    assert silent == ["answer", {"cut off": (2,)}, "its facts"]
    assert hint.startswith("tpuctl up big   # ")
    assert hint.endswith("tpuctl down big && tpuctl up big")


def test_a_host_that_was_asked_again_after_an_installation_has_no_clock_that_is_ahead() -> None:
    before, after = FactsReply.parse(host(time=100.5)), FactsReply.parse(host(time=108.0))
    told = Told((before,), began=100.0, ended=101.0)
    assert skew_of(before, *when_asked(before, told, 101.0, 110.0)) == 0.0
    assert skew_of(after, *when_asked(after, told, 101.0, 110.0)) == 0.0
    late = FactsReply.parse(host(time=105.0))
    assert skew_of(late, *when_asked(late, Told((late,), 100.0, 101.0), 101.0, 110.0)) == 4.0


def test_hosts_that_are_odd_in_the_same_way_stand_together_and_most_of_them_decide() -> None:
    odd = host(envs=[{"key": KEY, "mark": {**MARK, "packages": {"jax": "0.9"}}}])
    ((column, found, expected, _),) = differences(odd, host(), host(), odd, host())
    assert (column, found, expected) == ("packages", {"jax==0.9": (0, 3)}, "jax==0.10.2")


def test_what_the_environment_sets_itself_is_no_drift() -> None:
    spec = structs.replace(PINNED.spec, variables={"XLA_FLAGS": "--b"})
    pinned = changed(PINNED, spec=spec)
    kind = EnvironmentKind(pinned, "big", b"")
    key = environment_key(pinned, "3.11")
    told = host(variables={"XLA_FLAGS": {"value": "--a"}}, envs=[{"key": key, "mark": MARK}])
    assert compare_hosts(pinned, "big", [HostReading(0, FactsReply.parse(told))], kind=kind) == []


def test_packages_of_the_system_need_root_and_come_before_all_else() -> None:
    pinned = changed(PINNED, spec=structs.replace(PINNED.spec, os_packages={"jq": "1.6"}))
    kind = EnvironmentKind(pinned, "big", b"")
    facts = host(envs=[])
    packages, install = kind.plan(FactsReply.parse({**facts, "host": {**facts["host"], "root": "sudo"}}))
    assert (packages.kind, packages.parameters) == ("install_packages", {"packages": {"jq": "1.6"}})
    assert (packages.title, install.title) == ("installing jq", "installing environment mine")
    blocked = kind.plan(FactsReply.parse({**facts, "host": {**facts["host"], "root": ""}}))
    assert isinstance(blocked, Blocked)
    assert "is not root there nor may become it" in blocked.why


def test_a_plan_blocks_without_a_python_and_without_room_and_is_empty_where_all_is_there() -> None:
    assert KIND.plan(FactsReply.parse(host())) == ()
    other = {"pythons": [{"path": "/usr/bin/python3", "version": "3.10.12"}]}
    assert KIND.plan(FactsReply.parse(host(**other))) == (), "its own interpreter is there"
    gone = [{"key": KEY, "mark": MARK, "changed": ["bin/python"], "changes": 1}]
    for envs in ([], gone):
        old = KIND.plan(FactsReply.parse(host(envs=envs, **other)))
        assert isinstance(old, Blocked)
    assert "needs Python 3.11, which this host has not" in old.why
    assert "tpuctl env lock mine" in str(old.hint)
    (operation,) = KIND.plan(FactsReply.parse(host(envs=[])))
    assert sorted(operation.files) == ["env.json", "env_install.py", "requirements.txt"]


def test_settings_of_the_kernel_are_planned_refused_without_root_and_no_reason_to_stop_a_run() -> None:
    after_boot = {"kernel": {**host()["kernel"], "transparent_hugepages": "madvise"}}
    (setting,) = KIND.plan(FactsReply.parse(host(**after_boot)))
    assert (setting.kind, setting.parameters) == ("set_hugepages", {"mode": "always"})
    assert KIND.why(FactsReply.parse(host(**after_boot))) == "transparent hugepages are madvise"
    install, setting = KIND.plan(FactsReply.parse(host(envs=[], **after_boot)))
    assert [install.kind, setting.kind] == ["run", "set_hugepages"]
    no_root = FactsReply.parse(host(**after_boot, host={**host()["host"], "root": ""}))
    blocked = KIND.plan(no_root)
    assert isinstance(blocked, Blocked)
    assert "u is not root there nor may become it" in blocked.why
    assert "sudo sh -c 'echo always > /sys/kernel/mm/transparent_hugepage/enabled'" in str(blocked.hint)
    assert EnvironmentKind(PINNED, "big", b"", mend=False).plan(no_root) == ()


def test_a_host_with_200_mib_free_is_refused_before_anything_is_sent() -> None:
    from tpuctl.envs.lock import parse_lock, render_lock
    from tpuctl.envs.spec import InstallFrom

    lock = parse_lock(PINNED.lock, "mine")
    (package,) = lock.packages
    big = changed(package, wheels=(changed(package.wheels[0], size=100 << 20),))
    spec = structs.replace(PINNED.spec, install_from=InstallFrom.WHEELHOUSE)
    pinned = changed(PINNED, spec=spec, lock=render_lock(changed(lock, packages=(big,))))
    full = host(envs=[], space=[{"path": "/home/u", "total_bytes": 1 << 40, "free_bytes": 200 << 20}])
    planned = EnvironmentKind(pinned, "big", b"").plan(FactsReply.parse(full))
    assert isinstance(planned, Blocked)
    assert "has 200 MiB free, and environment mine needs 600" in planned.why
    assert "tpuctl env gc --on big" in str(planned.hint)


def test_hosts_of_another_machine_are_named_with_what_they_lack() -> None:
    from tpuctl.envs.lock import Wheel, parse_lock, render_lock

    lock, digest = parse_lock(PINNED.lock, "mine"), "e" * 64
    wheel = Wheel(
        "jax-0.10.2-cp311-cp311-manylinux_2_28_x86_64.whl", "https://packages.example/jax.whl", digest
    )
    packages = tuple(changed(each, wheels=(wheel,)) for each in lock.packages)
    pinned = changed(PINNED, lock=render_lock(changed(lock, packages=packages)))
    kind, arm = EnvironmentKind(pinned, "big", b""), FactsReply.parse(host(envs=[], machine="aarch64"))
    planned = kind.plan(arm)
    assert isinstance(planned, Blocked)
    assert planned.why == "environment mine has nothing for Python 3.11 on aarch64 of: jax 0.10.2"
    x86 = FactsReply.parse(host(envs=[]))
    assert kind.key(arm, "3.11") != kind.key(x86, "3.11")
    there = FactsReply.parse(host(envs=[{"key": kind.key(x86, "3.11"), "mark": {**MARK, "sealed": SEALED}}]))
    assert kind.offer(there, [arm]) is None  # what an x86_64 host has sealed is nothing to it


SEALED = [["rest.tar", 0o600, "c" * 64, 3 << 20], ["lib/a.so", 0o755, "d" * 64, 90 << 20]]


def test_what_one_host_has_sealed_takes_the_place_of_the_wheels() -> None:
    there = FactsReply.parse(host(envs=[{"key": KEY, "mark": {**MARK, "sealed": SEALED}}]))
    archive, large = sealed = find_sealed(there, KEY)
    assert (archive.path, large.path, large.mode, large.size) == ("rest.tar", "lib/a.so", 0o755, 90 << 20)
    wheels = {"3.11": {"wheels/a": Blob("a" * 64, 1)}}
    made = EnvironmentKind(PINNED, "big", b"", wheels=wheels, sealed=sealed)
    (operation,) = made.plan(FactsReply.parse(host(envs=[])))
    assert "wheels/a" not in operation.files
    request = json.loads(operation.files["env.json"])
    assert (request["sealed"], request["bytes"]) == (SEALED, 3 << 20)
    little = [{"path": "/home/u", "total_bytes": 1 << 40, "free_bytes": 100 << 20}]
    assert isinstance(made.plan(FactsReply.parse(host(envs=[], space=little))), Blocked)


@pytest.mark.parametrize(
    "environment",
    [
        {"key": KEY, "mark": {**MARK, "sealed": []}},
        {"key": KEY, "mark": MARK},
        {"key": KEY, "mark": None},
        {"key": KEY, "mark": {**MARK, "sealed": SEALED}, "changed": ["lib/a.so"], "changes": 1},
        {"key": "0" * 16, "mark": {**MARK, "sealed": SEALED}},
    ],
)
def test_a_host_gives_nothing_that_it_has_not_or_that_has_changed(environment: dict[str, Any]) -> None:
    assert find_sealed(FactsReply.parse(host(envs=[environment])), KEY) == ()
