"""The installer that runs on hosts, for real: real interpreters, real virtual environments, real kills.

The packages are tiny wheels made here, found in a local directory, so that the tests work without a network.
Most use uv, which needs a tenth of pip's processor time.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import uv

from tests.support.environments import make_pinned
from tests.support.require import require_tool
from tests.support.wheels import make_wheel
from tpuctl.envs.pinned import environment_files, environment_key

pytestmark = pytest.mark.slow

INSTALLER = (Path(__file__).parents[2] / "templates" / "env_install.py").read_bytes()
# The hash is that of the wheel on PyPI.
IDNA = "idna==3.10 --hash=sha256:946d195a0d259cbba61165e88e65941f16e9b36ea6ddb97f00452bae8b1287d3\n"
[UV_VERSION] = re.findall(r'^UV_VERSION = "(.+)"$', INSTALLER.decode(), re.MULTILINE)
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


def locked_wheel(directory: Path, name: str, version: str, code: str = "") -> str:
    """Makes the wheel; its line for a lock file."""
    wheel = make_wheel(directory, name, version, {f"{name}.py": code})
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


class Host:
    """A home directory, and the directory in which the installer's job runs."""

    def __init__(self, root: Path) -> None:
        self.home, self.wheels, self.work = root / "home", root / "wheels", root / "work"
        self.cache = root / "cache"
        for directory in (self.home, self.wheels, self.work):
            directory.mkdir(parents=True)
        self.key = ""
        # Only what a bare host offers: no uv, so that the fallback to pip is used.
        self.environment = {
            "HOME": str(self.home),
            "PATH": "/usr/bin:/bin",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "TPUCTL_WHEEL_CACHE": str(self.cache),
        }

    @property
    def env(self) -> Path:
        return self.home / ".tpuctl" / "envs" / self.key

    @property
    def marker(self) -> Path:
        return self.env / "tpuctl-env.json"

    def want(self, lock: str, verify: tuple[str, ...] = ()) -> None:
        rows = re.findall(r"^(\S+)==(\S+) --hash=sha256:(\w+)", lock, re.MULTILINE)
        packages = {name: (version, digest) for name, version, digest in rows}
        pinned = make_pinned(packages, MINOR, imports=verify)
        self.key = environment_key(pinned, MINOR)
        for name, content in environment_files(pinned, MINOR, INSTALLER).items():
            (self.work / name).write_bytes(content)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "env_install.py", *arguments],
            cwd=self.work,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def install(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def facts(self) -> dict[str, object]:
        """What `--verify` reports."""
        report: dict[str, object] = json.loads(self.install("--verify").stdout)
        return report


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host that has to do with pip."""
    return Host(tmp_path)


@pytest.fixture(scope="module")
def warm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds uv and idna, where a package index is reachable; else an empty one."""
    first = Host(tmp_path_factory.mktemp("first"))
    first.want(IDNA, verify=("idna",))
    pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    base = {name: first.environment[name] for name in ("HOME", "PATH", "TPUCTL_WHEEL_CACHE")}
    first.environment = {**pip, **base}
    first.install()
    return first.cache


@pytest.fixture
def quick_host(host: Host) -> Host:
    """A host that has uv in its cache, as if it had been fetched: the one that is installed here."""
    program = host.cache / "tools" / f"uv-{UV_VERSION}-{platform.machine()}" / "bin" / "uv"
    program.parent.mkdir(parents=True)
    program.symlink_to(uv.find_uv_bin())
    return host


def test_environment_is_installed_verified_and_then_left_alone(host: Host) -> None:
    lock = locked_wheel(host.wheels, "tiny_one", "1.0") + locked_wheel(host.wheels, "tiny_two", "2.5")
    host.want(lock, verify=("tiny_one", "tiny_two"))
    first = host.install()
    assert first.returncode == 0, first.stderr
    marker = json.loads(host.marker.read_text())
    assert marker["packages"] == {"tiny-one": "1.0", "tiny-two": "2.5"}
    assert marker["python"].startswith(MINOR + ".")
    assert host.facts()["ok"] is True
    (compiled,) = host.env.glob("lib/python*/site-packages/__pycache__/tiny_one.*.pyc")
    assert compiled.stat().st_size > 0, "the first run has to compile what the installation imported"
    before = host.marker.stat().st_ino
    again = host.install()
    assert again.returncode == 0
    assert "already installed" in again.stdout
    assert host.marker.stat().st_ino == before


def test_drifted_version_is_reported_and_repaired(quick_host: Host) -> None:
    quick_host.want(locked_wheel(quick_host.wheels, "tiny_one", "1.0"))
    assert quick_host.install().returncode == 0
    (metadata,) = quick_host.env.glob("lib/python*/site-packages/tiny_one-1.0.dist-info/METADATA")
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 9.9"))
    found = quick_host.install("--verify")
    assert found.returncode == 1
    assert json.loads(found.stdout)["problems"] == ["tiny-one is 9.9, wanted 1.0"]
    repaired = quick_host.install()
    assert repaired.returncode == 0
    assert "has changed" in repaired.stdout
    assert quick_host.facts()["packages"] == {"tiny-one": "1.0"}


def test_wheel_with_another_hash_is_refused_and_nothing_stays(quick_host: Host) -> None:
    lock = locked_wheel(quick_host.wheels, "tiny_one", "1.0")
    quick_host.want(re.sub(r"[0-9a-f]{64}", "0" * 64, lock))
    refused = quick_host.install()
    assert refused.returncode == 1
    assert "hash" in refused.stderr.lower()
    assert not quick_host.env.exists()


def test_package_that_does_not_import_fails_the_installation(quick_host: Host) -> None:
    quick_host.want(
        locked_wheel(quick_host.wheels, "tiny_bad", "1.0", "raise OSError('no libtpu here')"), ("tiny_bad",)
    )
    failed = quick_host.install()
    assert failed.returncode == 3
    assert "import tiny_bad fails: OSError: no libtpu here" in failed.stderr
    assert not quick_host.env.exists()


LIBRARY = """
#include <stddef.h>
struct told { size_t size; void *ext, *error; const char *text; size_t length; };
static void words(struct told *t) { t->text = "The TPU is already in use"; t->length = 25; }
static void *initialize(void *a) { return ANSWER; }
static void *table[9] = {0, 0, 0, 0, (void *)0x0000006200000000, 0, words, 0, initialize};
void *GetPjrtApi(void) { return table; }
"""


@pytest.mark.parametrize(("answer", "said"), [("(void *)1", "The TPU is already in use"), ("0", None)])
def test_a_libtpu_that_returns_an_error_has_not_looked_at_its_flags(
    tmp_path: Path, answer: str, said: str | None
) -> None:
    compiler, library = require_tool("cc"), tmp_path / "libtpu.so"
    (tmp_path / "libtpu.c").write_text(LIBRARY.replace("ANSWER", answer))
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, tmp_path / "libtpu.c"], check=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    source = INSTALLER.decode() + f"print(json.dumps(probe_libtpu({str(tmp_path)!r}, SPEC)))"
    spec = {"variables": {"TPU_LIBRARY_PATH": str(library)}}
    program = source.replace("SPEC", repr(spec)).replace('if __name__ == "__main__"', "if False")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]).get("not_asked") == said
    assert "0." in done.stdout


def wait_until_begun(host: Host, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not host.env.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_installation_killed_half_way_is_completed_by_the_next_one(
    quick_host: Host, how: signal.Signals
) -> None:
    quick_host.want(locked_wheel(quick_host.wheels, "tiny_one", "1.0"), ("tiny_one",))
    process = quick_host.start()
    wait_until_begun(quick_host, process)
    # Only the installer, not the uv that it runs: that may outlive it and must not disturb the next.
    process.send_signal(how)
    assert process.wait(timeout=60) != 0
    assert not quick_host.marker.exists()
    completed = quick_host.install()
    process.communicate()
    assert completed.returncode == 0, completed.stderr
    assert quick_host.facts()["ok"] is True


def test_two_installations_at_once_make_one_environment(quick_host: Host) -> None:
    quick_host.want(locked_wheel(quick_host.wheels, "tiny_one", "1.0"))
    both = [quick_host.start(), quick_host.start()]
    output = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("already installed" in text for text in output) == 1


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [
        ("env.json", "{", "error:"),
        ("env.json", '{"key": "../../x", "python": "3.11"}', "`key`"),
        ("env.json", '{"key": "x", "python": "three"}', "`python`"),
        ("requirements.txt", "six>=1\n", "not an exact version"),
    ],
)
def test_unusable_input_is_refused_before_anything_is_made(host: Host, file: str, text: str, word: str) -> None:
    host.want(locked_wheel(host.wheels, "tiny_one", "1.0"))
    (host.work / file).write_text(text)
    refused = host.install()
    assert (refused.returncode, host.home.joinpath(".tpuctl").exists()) == (2, False)
    assert word in refused.stderr


def test_python_that_the_host_lacks_is_named(host: Host) -> None:
    host.want(locked_wheel(host.wheels, "tiny_one", "1.0"))
    request = json.loads((host.work / "env.json").read_text())
    (host.work / "env.json").write_text(json.dumps({**request, "python": "3.99"}))
    failed = host.install()
    assert failed.returncode == 1
    assert "no Python 3.99" in failed.stderr


def install_from_cache(host: Host, cache: Path) -> Path:
    """idna from a cache that has it, without an index; one of its files. Skips without uv in the cache."""
    if not list(cache.glob("tools/uv-*/bin/uv")):
        pytest.skip("needs a package index to fetch uv from")
    host.want(IDNA, verify=("idna",))
    offline = {"UV_OFFLINE": "1", **host.environment, "TPUCTL_WHEEL_CACHE": str(cache)}
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        del offline[name]
    host.environment = offline
    done = host.install()
    assert done.returncode == 0, done.stderr
    [file] = host.env.glob("lib/*/site-packages/idna/core.py")
    return file


def test_hosts_install_from_a_shared_cache_without_an_index_and_an_edit_of_one_stays_its_own(
    tmp_path: Path, warm_cache: Path
) -> None:
    first, second, third = (Host(tmp_path / each) for each in ("first", "second", "third"))
    edited, other = (install_from_cache(each, warm_cache) for each in (first, second))
    assert first.facts()["packages"] == {"idna": "3.10"}
    before = other.read_bytes()
    with edited.open("ab") as file:
        file.write(b"# in place\n")
    assert other.read_bytes() == before
    assert install_from_cache(third, warm_cache).read_bytes() == before
