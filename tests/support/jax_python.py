"""Interpreters with the packages of an environment, for programs that need no environment on hosts."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uv

from tests.support.cache import CACHE, cached, link_tree, run_commands
from tests.support.require import require_index
from tests.support.session import ROOT

VARIABLES = ("--var", "JAX_PLATFORMS=cpu", "--var", "JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo")
"""Of `demo-cpu`, as words of `tpuctl run`."""


@contextmanager
def jax_python() -> Iterator[Path]:
    """Of `demo-cpu`. To install the environment on two hosts, which tests/cli/test_demo.py does, takes half a
    minute of a processor."""
    imports = "import jax.numpy, jax.experimental.multihost_utils, google.cloud.storage"
    with locked_python("demo-cpu", imports) as python:
        yield python


@contextmanager
def locked_python(name: str, imports: str) -> Iterator[Path]:
    """With the packages of environment `name`, in a folder that hosts see. They are links into the cache, where
    they are installed once, and those of `imports` compiled: both take 8 s of a processor."""
    lock = ROOT / "manifests" / "env" / f"pylock.{name}.toml"

    def install(folder: Path) -> None:
        python = folder / "bin" / "python"
        environ = {"UV_LINK_MODE": "hardlink"}
        if "PIP_CERT" in os.environ:  # behind a proxy with certificates of its own
            environ["SSL_CERT_FILE"] = os.environ.get("SSL_CERT_FILE", os.environ["PIP_CERT"])
        run_commands(
            (uv.find_uv_bin(), "-q", "venv", "--clear", "--python", sys.executable, folder),
            (uv.find_uv_bin(), "-q", "pip", "sync", "--python", python, lock),
            (python, "-c", imports),
            **environ,
        )

    digest = hashlib.sha256(lock.read_bytes() + imports.encode()).hexdigest()[:12]
    installed = cached(f"{name}-{digest}-{sys.implementation.cache_tag}", install)
    folder = Path(tempfile.mkdtemp(prefix=f"tpuctl-{name}-", dir="/var/tmp"))
    try:
        folder.chmod(0o755)
        link_tree(installed, folder / "env")
        yield folder / "env" / "bin" / "python"
    finally:
        shutil.rmtree(folder)


FLAX = ("flax==0.12.8", "optax==0.2.8", "jax==0.10.2")


def flax_packages() -> Path:
    """A folder for PYTHONPATH with Flax and Optax, and the JAX of today."""
    return packages(*FLAX)


OLD_JAX = ("jax==0.4.30", "jaxlib==0.4.30", "numpy==1.26.4", "scipy==1.13.1")


def old_jax_packages() -> Path:
    """As `flax_packages`, with a JAX of 2024, which Python up to 3.12 can load."""
    if sys.version_info >= (3, 13):
        pytest.skip("jaxlib 0.4.30 has no wheel for this Python")
    return packages(*OLD_JAX)


def packages(*requirements: str) -> Path:
    """A folder for PYTHONPATH with these, installed once into the cache. Skips without an index."""

    def install(folder: Path) -> None:
        words = (uv.find_uv_bin(), "-q", "pip", "install", "--python", sys.executable, "--target", folder)
        run_commands((*words, *requirements), UV_SYSTEM_CERTS="1")

    return cached(f"{'-'.join(requirements)}-{sys.implementation.cache_tag}", install)


XPROF = "xprof==2.24.2"


def xprof_program() -> Path:
    """The viewer of traces, in an environment of its own: 300 MB in the cache, installed once. Skips without an
    index."""

    def install(folder: Path) -> None:
        python = folder / "bin" / "python"
        run_commands(
            (uv.find_uv_bin(), "-q", "venv", "--clear", "--relocatable", "--python", sys.executable, folder),
            (uv.find_uv_bin(), "-q", "pip", "install", "--python", python, XPROF, "setuptools"),
            UV_SYSTEM_CERTS="1",
        )

    return cached(f"{XPROF}-{sys.implementation.cache_tag}", install) / "bin" / "xprof"


def tpu_jax() -> Path:
    """An interpreter with the packages of `jax-tpu-0-10`, libtpu among them: 1.6 GB in the cache, installed
    once. Skips without an index or without the environment's version of Python."""
    from tpuctl.envs.load import pin, read_environment
    from tpuctl.preflight.local_env import ensure_interpreter

    pinned = pin(read_environment("jax-tpu-0-10", Path("/nowhere")))
    minor = pinned.spec.python[0]
    words = (uv.find_uv_bin(), "-q", "python", "find", "--no-python-downloads", minor)
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip(f"needs Python {minor}")
    require_index()
    folder = CACHE / "preflight"
    return ensure_interpreter(pinned, folder, lambda _text: None).python
