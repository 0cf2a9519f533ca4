"""Environments on real hosts: installed from a bucket or from each other, and drift of every kind."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import shared_folder
from tests.support.require import require_index
from tests.support.session import Session, open_session
from tests.support.wheels import MINOR, Project
from tpuctl.envs.load import read_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TINY = {"tiny": "1.0", "other": "2.0"}, "imports: [tiny, other]\nvariables: {TINY: 'yes'}"
SITE = f".tpuctl/envs/*/lib/python{MINOR}/site-packages"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        opened.project = Project(opened.work)
        opened.project.add("tiny", *TINY)
        opened.type("up", "v4-16", "big", "--spot", "--pay")
        opened.type("env", "apply", "tiny", "--on", "big")
        yield opened


@pytest.fixture
def alike(session: Session) -> Iterator[Session]:
    """Hosts that are as the test before this one left them: as asked, which they must be after it, too."""
    yield session
    assert "2 hosts of big are as tiny says" in session.type("env", "verify", "tiny", "--on", "big").stderr


def on(session: Session, worker: int, script: str) -> str:
    said = session.type("exec", "big", "--worker", str(worker), "--", "bash", "-c", script).stdout
    return "".join(line.partition("│ ")[2] + "\n" for line in said.splitlines())


def drift(session: Session, column: str, *said: str) -> str:
    """`verify` finds drift in this column alone, names what it found, and gives the command that mends it."""
    told = session.type("env", "verify", "tiny", "--on", "big", "--json", status=3).stdout
    error = json.loads(told)["error"]
    for text in (f"{column}: ", *said):
        assert text in error["message"]
    assert error["details"]["columns"] == [column]
    return str(error["hint"])


def mend(session: Session, hint: str) -> None:
    """Types the command that a message gave."""
    words = shlex.split(hint.removeprefix("tpuctl "))
    session.type(*words)


def test_the_second_apply_changes_nothing_and_the_environment_is_the_same_everywhere(alike: Session) -> None:
    keys = on(alike, 0, "ls .tpuctl/envs").split(), on(alike, 1, "ls .tpuctl/envs").split()
    before = on(alike, 0, "stat -c %Y .tpuctl/envs/*/tpuctl-env.json")
    alike.type("env", "apply", "tiny", "--on", "big")
    assert before == on(alike, 0, "stat -c %Y .tpuctl/envs/*/tpuctl-env.json")
    assert keys[0] == keys[1]


def test_a_run_has_the_packages_and_the_variables(alike: Session) -> None:
    words = ("--env", "tiny", "--on", "big", "--no-checkpoint", "--name", "has")
    code = "import os, tiny; print(tiny.VERSION, os.environ['TINY'])"
    said = alike.type("run", *words, "--", "python", "-c", code).stdout
    assert "1.0 yes" in said
    assert "tiny==1.0" in alike.type("manifest", "has").stdout


def test_two_runs_that_need_one_environment_at_once_share_its_installation(session: Session) -> None:
    session.project.add("both", {"both": "3.0"}, "imports: [both]")
    session.type("up", "v4-8", "host", "--spot", "--pay")
    words = ("run", "--env", "both", "--on", "host", "--chips", "1", "--no-checkpoint", "--allow-cpu")
    program = ("python", "-c", "import both; print(both.VERSION)")
    clients = [session.start(*words, "--name", name, "--", *program) for name in ("left", "right")]
    for client in clients:
        done = session.finish(client)
        assert done.returncode == 0, done.stderr
        assert "3.0" in done.stdout
    jobs = "ls .tpuctl/envs; grep -l install .tpuctl/runs/provision-*/*/operations.json"
    told = session.type("exec", "host", "--", "sh", "-c", jobs).stdout.splitlines()
    assert len(told) == 2, told
    session.type("down", "host", "--yes")


def test_an_edited_file_is_named_keeps_runs_from_starting_and_is_mended(alike: Session) -> None:
    on(alike, 1, f"echo '# patched by hand' >> $(echo {SITE}/tiny.py)")
    hint = drift(alike, "files", "worker 1 has changed", "tiny.py", "not as installed")
    words = ("--env", "tiny", "--on", "big", "--no-checkpoint", "--name", "stopped")
    refused = alike.type("run", *words, "--", "true", status=1)
    assert hint == "tpuctl env apply tiny --on big"
    for text in ("tiny.py", f"mend it: {hint}", "--allow-drift files"):
        assert " ".join(refused.stderr.split()).count(text) == 1
    [attempt] = alike.json("manifest", "stopped")["attempts"]
    assert attempt["cause"] == "drifted"
    words = ("--env", "tiny", "--on", "big", "--no-checkpoint", "--name", "allowed", "--allow-drift", "files")
    alike.type("run", *words, "--", "true")
    assert "files" in alike.type("manifest", "allowed").stdout
    mend(alike, hint)


def test_a_library_of_the_same_size_and_age_and_another_version_are_found(alike: Session) -> None:
    script = f"f=$(echo {SITE}/other.py); t=$(mktemp); cp -p $f $t; sed -i s/2.0/2.1/ $f; touch -r $t $f"
    on(alike, 0, script)
    on(alike, 1, f"cd $(echo {SITE}) && mv tiny-1.0.dist-info tiny-1.1.dist-info")
    said = ("worker 0 has changed", "other.py", "worker 1 has changed", "tiny-1.0.dist-info")
    mend(alike, drift(alike, "files", *said))


def test_compiled_code_of_the_same_size_and_age_and_what_nobody_installed_is_found(alike: Session) -> None:
    """Python believes it for the size and time of the source that stand in it."""
    found = f"f=$(echo {SITE}/__pycache__/other.*.pyc)"
    on(alike, 1, f"{found}; t=$(mktemp); cp -p $f $t; LC_ALL=C sed -i s/2.0/6.6/ $f; touch -r $t $f")
    assert on(alike, 1, "cd .tpuctl/envs/*/bin && ./python -c 'import other; print(other.VERSION)'") == "6.6\n"
    compiled = f'python{MINOR} -c \'import py_compile; py_compile.compile("x.py", cfile="foreign.pyc")\''
    on(alike, 0, f"cd $(echo {SITE}) && echo > x.py && {compiled} && rm x.py")
    mend(alike, drift(alike, "files", "worker 1 has changed", "other.cpython-", "foreign.pyc"))


def test_what_hosts_have_is_compared_with_a_file_and_with_other_hosts(alike: Session) -> None:
    assert alike.json("env", "diff", "tiny", "--on", "big") == []
    alike.project.add("tiny", {"tiny": "1.1", "third": "3.0"}, "imports: [tiny]\nvariables: {TINY: 'yes'}")
    rows = {
        row["item"]: (row["first"], row["second"]) for row in alike.json("env", "diff", "tiny", "--on", "big")
    }
    assert rows == {
        "package tiny": ("1.1", "1.0"),
        "package third": ("3.0", None),
        "package other": (None, "2.0"),
    }
    alike.project.add("tiny", *TINY)
    alike.project.add("small", {"small": "1.0"}, "imports: [small]")
    alike.type("up", "v4-8", "one", "--spot", "--pay", "--env", "small")
    refused = alike.type("env", "diff", "--on", "one", status=2).stderr
    assert "two things are compared" in refused
    alike.type("up", "v4-16", "big", "--spot", "--pay", "--env", "tiny")
    rows = {row["item"]: row for row in alike.json("env", "diff", "--on", "big", "--on", "one")}
    assert (rows["package small"]["first"], rows["package small"]["second"]) == (None, "1.0")
    assert "kernel of the host" not in rows


def test_an_interpreter_of_a_host_becomes_a_file(alike: Session) -> None:
    python = on(alike, 1, "echo $PWD/.tpuctl/envs/*/bin/python | cut -d' ' -f1").strip()
    words = ("env", "capture", "taken", "--on", "big", "--worker", "1", "--no-lock", "--python")
    assert "`tpuctl env lock taken` makes its lock" in alike.type(*words, python).stderr
    spec = read_environment("taken", alike.project.envs).spec
    assert {"tiny==1.0", "other==2.0"} <= set(spec.requirements)
    assert (spec.python, spec.backend, spec.verified) == ((MINOR,), "cpu", False)
    missing = alike.type("env", "capture", "no", *words[3:], "/nowhere/python", status=2).stderr
    assert "worker 1 of big: /nowhere/python cannot be asked" in missing
    assert (
        "no worker 9"
        in alike.type("env", "capture", "no", "--on", "big", "--worker", "9", "--python", "x", status=2).stderr
    )
    assert not (alike.project.envs / "no.yaml").exists()


def test_whoever_starts_the_interpreter_adds_nothing(alike: Session) -> None:
    """Here a module that the installation did not import."""
    alike.project.add("more", {"more": "1.0"}, files={"more/__init__.py": "", "more/late.py": "VERSION = 1"})
    alike.type("env", "apply", "more", "--on", "big")
    on(alike, 1, f"$(dirname {SITE}/more)/../../../bin/python -c 'import more.late'")
    words = ("--env", "more", "--on", "big", "--no-checkpoint", "--name", "late")
    alike.type("run", *words, "--", "python", "-c", "import more.late")
    assert "as more says" in alike.type("env", "verify", "more", "--on", "big").stderr


def test_the_other_hosts_take_what_one_has_proved_and_what_it_compiled(session: Session) -> None:
    sources = {"shared/__init__.py": "import shared.large\n", "shared/large.py": "n = 1\n" * 30_000}
    large = {**sources, "shared/large.txt": "x" * (2 << 20)}
    session.project.add("shared", {"shared": "1.0"}, "imports: [shared]", large)
    apply = ("env", "apply", "shared", "--on", "big")
    session.type(*apply)
    key = on(session, 1, f"echo {SITE}/shared | cut -d/ -f3").strip()
    files = (
        f"cd .tpuctl/envs/{key}/lib/python{MINOR}/site-packages && sha256sum shared/__pycache__/* shared*/*.*"
    )
    assert on(session, 0, files) == on(session, 1, files)

    def mark(worker: int) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(on(session, worker, f"cat .tpuctl/envs/{key}/tpuctl-env.json"))
        return found

    assert [row[0].rpartition("/")[2] for row in mark(0)["sealed"]] == ["rest.tar", "large.txt"]
    assert "sealed" not in mark(1)
    assert mark(0)["files_sha256"] == mark(1)["files_sha256"]
    # Facts are told without a look at the list of files: the agent computes the digest that the installer did.
    look = f"import os; print(digest_of(sorted(signatures(os.path.expanduser('~/.tpuctl/envs/{key}'), True))))"
    for worker in (0, 1):
        found = on(session, worker, f'cd .tpuctl/bin/agent-* && python3 -c "from facts_envs import *; {look}"')
        assert found.strip() == mark(worker)["signatures_sha256"]
    # A host whose peer has no good copy any more installs from the wheels.
    on(session, 1, f"rm -r .tpuctl/envs/{key} .tpuctl/sealed")
    damage = "test -L $f || printf damaged | dd conv=notrunc of=$f status=none"
    on(session, 0, f"for f in .tpuctl/sealed/*; do {damage}; done")
    assert "worker 1 could not fetch from its neighbour" in " ".join(session.type(*apply).stderr.split())
    session.type("env", "verify", "shared", "--on", "big")


def test_from_a_bucket_hosts_get_everything_and_nothing_is_uploaded_twice(session: Session) -> None:
    session.project.add("house", {"house": "1.0"}, "imports: [house]")
    session.environ["TPUCTL_WHEELHOUSE"] = "gs://sim-bucket/house"
    try:
        first = session.type("env", "apply", "house", "--on", "big").stderr
        assert "uploaded 2 files to gs://sim-bucket/house" in first
        again = session.type("env", "apply", "house", "--on", "big").stderr
        assert "uploaded" not in again
        session.type("env", "verify", "house", "--on", "big")
    finally:
        del session.environ["TPUCTL_WHEELHOUSE"]


def test_a_wheel_that_is_not_what_the_lock_says_is_refused_before_anything_is_sent(session: Session) -> None:
    lock = session.project.add("wrong", {"wrong": "1.0"})
    session.project.damage_hash("wrong", lock)
    refused = session.type("env", "apply", "wrong", "--on", "big", status=2).stderr
    assert "wrong-1.0-py3-none-any.whl of environment wrong has the sha256" in refused
    assert "wrong" not in on(session, 0, f"ls {SITE}")


def test_an_extra_file_with_another_checksum_is_refused(session: Session) -> None:
    (session.project.envs / "extra.txt").write_text("as it is")
    more = "files:\n  - {source: extra.txt, to: lib/extra.txt, sha256: " + "0" * 64 + "}"
    session.project.add("extra", {"extra": "1.0"}, more)
    assert "has the sha256" in session.type("env", "apply", "extra", "--on", "big", status=2).stderr


def test_old_environments_go_and_the_newest_two_and_that_of_the_slice_stay(session: Session) -> None:
    before = set(on(session, 0, "ls .tpuctl/envs").split())
    newest = on(session, 0, "ls -t .tpuctl/envs/*/tpuctl-env.json | head -1 | cut -d/ -f3").strip()
    own, gone, used = (f"{key}-v4-16-01234567" for key in (newest, "0" * 16, "1" * 16))
    on(
        session,
        0,
        f"cd .tpuctl && mkdir -p compile-cache && cd compile-cache && mkdir {own} {gone} {used} mine",
    )
    script = f"X=$HOME/.tpuctl/compile-cache/{used} exec sh -c 'touch begun; sleep 60'"
    using = session.start("exec", "big", "--worker", "0", "--", "sh", "-c", script)
    on(session, 0, "until test -e begun; do sleep 0.1; done; rm begun")
    told = f"would remove compile cache {gone} on worker 0"
    assert told in session.type("env", "gc", "--on", "big", "--dry-run").stderr
    session.type("env", "gc", "--on", "big")
    assert set(on(session, 0, "ls .tpuctl/compile-cache").split()) == {own, used, "mine"}
    left = set(on(session, 0, "ls .tpuctl/envs").split())
    assert len(left) == 3 < len(before)
    assert "nothing to remove" in session.type("env", "gc", "--on", "big").stderr
    using.kill()
    using.wait()


USES = {
    "locked": "exec flock .locked.lock sh -c '{wait}'",
    "runs": "cp $(command -v sleep) runs/sleep; touch begun-runs; exec runs/sleep 300",
    "read": "touch read/library; exec 3<read/library; {wait}",
    "called": "PATH=$PWD/called/bin:$PATH; export PATH; exec sh -c '{wait}'",
    "inside": "cd inside; touch ../begun-inside; exec sleep 300",
}


def test_what_is_being_installed_or_is_open_stays(session: Session) -> None:
    """Environments without a marker, which go else."""
    using = []
    try:
        for name, use in USES.items():
            script = use.format(wait=f"touch begun-{name}; exec sleep 300")
            command = f"mkdir -p .tpuctl/envs/{name}; cd .tpuctl/envs; {script}"
            using.append(session.start("exec", "big", "--worker", "0", "--", "sh", "-c", command))
        begun = f"ls .tpuctl/envs/begun-* | wc -l | grep -qx {len(USES)}"
        on(session, 0, f"until {begun}; do sleep 0.1; done; rm .tpuctl/envs/begun-*")
        for dry in (("--dry-run",), ()):
            said = " ".join(session.type("env", "gc", "--on", "big", *dry).stderr.split())
            for name in USES:
                why = "it is being installed" if name == "locked" else "process "
                assert f"kept environment {name} ({why}" in said
        on(session, 0, f"cd .tpuctl/envs && ls -d {' '.join(USES)}")
    finally:
        for each in using:
            each.kill()
            each.wait()
    end = time.monotonic() + 60
    while set(USES) & set(on(session, 0, "ls .tpuctl/envs").split()):
        assert time.monotonic() < end, "what nobody uses any more stays"
        session.type("env", "gc", "--on", "big")


@pytest.mark.soak
def test_a_run_with_a_flag_that_the_pinned_libtpu_refuses_does_not_reach_the_hosts(session: Session) -> None:
    require_index()
    text = 'name: flagged\nbackend: cpu\npython: "3.12"\nrequirements: [libtpu==0.0.51]\nlibtpu_flags: [--{}]\n'
    (session.project.envs / "flagged.yaml").write_text(text.format("xla_tpu_enable_flash_attention=false"))
    session.type("env", "lock", "flagged", "--no-python")
    (session.project.envs / "flagged.yaml").write_text(text.format("xla_tpu_enable_flash_attntion=false"))
    locked = (session.project.envs / "pylock.flagged.toml").stat()
    refused = session.type("env", "lock", "flagged", "--no-python", status=2).stderr
    assert "--xla_tpu_enable_flash_attntion=false: there is no such flag" in refused
    assert (session.project.envs / "pylock.flagged.toml").stat() == locked
    before = on(session, 0, "find .tpuctl -maxdepth 3 | sort")
    words = ("--env", "flagged", "--on", "big", "--no-checkpoint", "--name", "flagged")
    refused = session.type("run", *words, "--", "true", status=2).stderr
    told = "--xla_tpu_enable_flash_attntion=false: there is no such flag"
    assert f"{told}; did you mean --xla_tpu_enable_flash_attention?" in refused
    assert told in session.type("env", "apply", "flagged", "--on", "big", status=2).stderr
    assert [row for row in session.json("runs") if row["id"] == "flagged"] == []
    assert on(session, 0, "find .tpuctl -maxdepth 3 | sort") == before


@pytest.mark.long
def test_a_python_of_the_hosts_is_used_as_it_is_and_never_changed(session: Session, tmp_path: Path) -> None:
    venv = shared_folder(tmp_path / "shared") / "venv"
    module = venv / f"lib/python{MINOR}/site-packages/mine.py"
    on(session, 0, f"python{MINOR} -m venv --without-pip {venv} && echo VERSION = 7 > {module}")
    files = sorted(venv.rglob("*"))
    words = ("env", "capture", "mine", "--on", "big", "--unmanaged", "--python", f"{venv}/bin/python")
    session.type(*words)
    assert read_environment("mine", session.project.envs).spec.unmanaged.path == str(venv)
    words = ("run", "--env", "mine", "--on", "big", "--no-checkpoint")
    compiled = "import mine, os; print(mine.VERSION, mine.__cached__, os.path.exists(mine.__cached__))"
    said = session.type(*words, "--", "python", "-c", compiled).stdout
    assert "7 " in said
    # What Python compiles is kept, though not beside the files, or each start would compile them all again.
    assert said.count("/tpuctl-bytecode/") == said.count(" True") == 2
    verify = ("env", "verify", "mine", "--on", "big")
    assert "2 hosts of big are as mine says" in session.type(*verify).stderr
    assert sorted(venv.rglob("*")) == files
    on(session, 1, "echo x >> $(find .tpuctl/envs/*/tpuctl-bytecode -name 'mine.*.pyc')")
    assert "tpuctl-bytecode/" in session.type(*verify, status=3).stderr
    session.type("env", "apply", "mine", "--on", "big")
    session.type(*verify)
    on(session, 0, f"echo VERSION = 8 > {module}")
    assert "mine.py" in session.type(*verify, status=3).stderr
    assert "mine.py" in session.type(*words, "--", "true", status=1).stderr
    failed = session.type("env", "apply", "mine", "--on", "big", status=3).stderr
    assert f"{venv} is not as it was" in " ".join(failed.split())
    assert module.read_text() == "VERSION = 8\n"
    on(session, 0, f"echo VERSION = 7 > {module}")
    session.type("env", "apply", "mine", "--on", "big")
    session.type(*verify)
