"""Interpreters with the packages of an environment, for programs that need no environment on hosts."""

from __future__ import annotations

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
    """With the packages of environment `name`, linked out of uv's cache, in a folder that hosts see, and those
    of `imports` compiled once. Skips without an index."""
    require_index()
    folder = Path(tempfile.mkdtemp(prefix=f"tpuctl-{name}-", dir="/var/tmp"))
    try:
        folder.chmod(0o755)
        python = folder / "env" / "bin" / "python"
        environ = {**os.environ, "UV_LINK_MODE": "hardlink"}
        if "PIP_CERT" in environ:  # behind a proxy with certificates of its own
            environ.setdefault("SSL_CERT_FILE", environ["PIP_CERT"])
        lock = ROOT / "manifests" / "env" / f"pylock.{name}.toml"
        for words in (
            (uv.find_uv_bin(), "-q", "venv", "--python", sys.executable, str(folder / "env")),
            (uv.find_uv_bin(), "-q", "pip", "sync", "--python", str(python), str(lock)),
            (str(python), "-c", imports),
        ):
            subprocess.run(words, env=environ, check=True, timeout=400)
        yield python
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
    folder = (
        Path.home() / ".cache" / "tpuctl-tests" / f"{'-'.join(requirements)}-{sys.implementation.cache_tag}"
    )
    if not folder.exists():
        require_index()
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            words = (uv.find_uv_bin(), "-q", "pip", "install", "--python", sys.executable, "--target", made)
            environ = {"UV_SYSTEM_CERTS": "1", **os.environ}
            subprocess.run((*words, *requirements), env=environ, check=True, timeout=400)
            shutil.move(made, folder)
            Path(made).mkdir()
    return folder


XPROF = "xprof==2.24.2"


def xprof_program() -> Path:
    """The viewer of traces, in an environment of its own: 300 MB in the cache, installed once. Skips without an
    index."""
    folder = Path.home() / ".cache" / "tpuctl-tests" / f"{XPROF}-{sys.implementation.cache_tag}"
    program = folder / "bin" / "xprof"
    if not program.exists():
        require_index()
        environ = {"UV_SYSTEM_CERTS": "1", **os.environ}
        python = str(folder / "bin" / "python")
        for words in (
            ("venv", "--clear", "--python", sys.executable, str(folder)),
            ("pip", "install", "--python", python, XPROF, "setuptools"),
        ):
            subprocess.run((uv.find_uv_bin(), "-q", *words), env=environ, check=True, timeout=400)
    return program


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
    folder = Path.home() / ".cache" / "tpuctl-tests" / "preflight"
    return ensure_interpreter(pinned, folder, lambda _text: None).python
