"""Environment files: what a user may write in `envs/NAME.yaml`; `parse.py` says what makes no sense by itself.

The exact versions with their hashes stand beside it in `pylock.NAME.toml` (PEP 751), see `lock.py`; what is
known to be bad is in the version table, see `rules.py`. Nothing here reads files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Struct, field

from tpuctl.errors import UsageError
from tpuctl.lib.names import check_progress
from tpuctl.lib.options import Option
from tpuctl.model.processes import PER

NAME_PATTERN = r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
RESERVED = "none"
_NAME = re.compile(NAME_PATTERN + r"\Z")
_MINOR = re.compile(r"3\.\d{1,2}\Z")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?==[^\s;*,]+(\s*;.+)?\Z")
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_PER = re.compile(rf"({'|'.join(PER)})\Z")
_OS_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+\Z")
_FLAG = re.compile(r"--[A-Za-z][\w-]*(=.*)?\Z", re.DOTALL)
_URL = re.compile(r"https?://\S+\Z")


class Backend(StrEnum):
    """What computes: it decides what `verify` expects to find and which variables must be set."""

    JAX = "jax"
    TORCH_XLA = "torch_xla"
    TORCH_TPU = "torch_tpu"
    CPU = "cpu"


class InstallFrom(StrEnum):
    """Where hosts take packages from."""

    WHEELHOUSE = "wheelhouse"
    INDEX = "index"


def _matching(pattern: re.Pattern[str], what: str, hint: str) -> Any:
    def check(value: str) -> None:
        if not pattern.match(value):
            raise UsageError(f"{value!r} is not {what}", hint=hint)

    return check


def _check_destination(path: str) -> None:
    parts = path.split("/")
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise UsageError(
            f"{path!r} is not a path inside the environment", hint="to: lib/python3.12/site-packages/pkg/a.so"
        )


def _check_source(place: str) -> None:
    parts = place.split("/")
    if place.startswith("gs://") and len(place) > len("gs://b/"):
        return
    if not place or place.startswith("gs:") or ".." in parts or "\0" in place:
        raise UsageError(
            f"{place!r} is no place of a file",
            hint="from: gs://BUCKET/a.so, or /mnt/disk/a.so on the hosts, or a path beside this file",
        )


check_sha256 = _matching(_SHA256, "a sha256", "64 hexadecimal digits, as `sha256sum FILE` prints them")
check_minor = _matching(_MINOR, "a Python version", 'python: "3.12", in quotes')
check_variable = _matching(_VARIABLE, "the name of a variable", "letters, digits and _")
check_flag = _matching(_FLAG, "a flag", "--name=value")
_check_url = _matching(_URL, "the address of a package index", "https://HOST/simple")


def check_environment_name(name: str) -> str:
    """The name, or UsageError."""
    if name == RESERVED:
        raise UsageError(
            f"an environment cannot be called {name}: `up --env {name}` takes one off", hint="another name"
        )
    if not _NAME.match(name):
        raise UsageError(
            f"environment name {name!r} is not usable", hint="use up to 40 lower-case letters, digits and `-`"
        )
    return name


def _check_python(value: str) -> None:
    if value.startswith("/"):
        raise UsageError(
            f"{value} is a place, and not a version",
            hint=f"tpuctl env capture NAME --on SLICE --unmanaged --python {value}/bin/python",
        )
    check_minor(value)


def _check_progress(pattern: str) -> None:
    try:
        check_progress(pattern)
    except ValueError as error:
        raise UsageError(f"{pattern!r} {error}", hint=r"progress: 'step (\d+)'") from error


def _check_requirement(text: str) -> None:
    if not _PINNED.match(text):
        raise UsageError(
            f"{text!r} is not an exact version", hint="NAME==VERSION; `tpuctl env lock` adds what that needs"
        )


class BuiltFrom(Struct, frozen=True):
    """Where a file that somebody built came from; for the record."""

    repo: Annotated[str, Option("Repository.", examples=("https://github.com/pytorch/xla",))]
    commit: Annotated[str, Option("Commit.", examples=("c04e61c342",), text=True)]
    diff_sha256: Annotated[
        str | None, Option("sha256 of the changes on top of it.", check=check_sha256, text=True)
    ] = None


class ExtraFile(Struct, frozen=True):
    """A file beside the packages, or in the place of one of theirs."""

    source: Annotated[
        str,
        Option(
            "gs://BUCKET/PATH, a path on the hosts that begins with /, or a path beside this file.",
            check=_check_source,
            examples=("gs://my-builds/_XLAC.so",),
        ),
    ]
    to: Annotated[
        str,
        Option(
            "Its place, seen from the folder of the environment.",
            check=_check_destination,
            examples=("lib/python3.12/site-packages/_XLAC.cpython-312-x86_64-linux-gnu.so",),
        ),
    ]
    sha256: Annotated[str, Option("Its sha256.", check=check_sha256, text=True, examples=("a" * 64,))]
    built_from: Annotated[BuiltFrom | None, Option("What it was built from.")] = None


class PythonArchive(Struct, frozen=True):
    """An interpreter as a tar archive with a folder `python` (what python-build-standalone calls
    `install_only`)."""

    source: Annotated[
        str,
        Option(
            "https://… or gs://… or a path beside this file.",
            examples=("gs://my-builds/cpython-3.12.16-x86_64-unknown-linux-gnu-install_only.tar.gz",),
        ),
    ]
    sha256: Annotated[str, Option("Its sha256.", check=check_sha256, text=True, examples=("a" * 64,))]


def _check_tree(path: str) -> None:
    parts = path.split("/")[1:]
    if not path.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise UsageError(f"{path!r} is not the path of a folder of the hosts", hint="path: /mnt/data/venv")


class Unmanaged(Struct, frozen=True):
    """A Python environment that is on the hosts already. It is compared with its digest, and never changed."""

    path: Annotated[
        str, Option("Its folder on every host.", check=_check_tree, examples=("/mnt/data/venv",), text=True)
    ]
    sha256: Annotated[
        str,
        Option(
            "Digest of all its files, as `tpuctl env capture --unmanaged` writes it.",
            check=check_sha256,
            text=True,
            examples=("a" * 64,),
        ),
    ]


class KernelSettings(Struct, frozen=True):
    """Settings of the hosts' kernels. They need root on the hosts."""

    transparent_hugepages: Annotated[
        str | None,
        Option(
            "always, madvise or never. With always, JAX starts on v5e and newer in 8 instead of 17 s.",
            check=_matching(re.compile(r"(always|madvise|never)\Z"), "a mode", "always, madvise or never"),
            examples=("always",),
        ),
    ] = None


class EnvironmentSpec(Struct, frozen=True):
    """What an environment file says."""

    name: Annotated[str, Option("Name of the environment; that of the file.", check=check_environment_name)]
    python: Annotated[
        tuple[str, ...],
        Option(
            "Version, such as 3.12, or several of which a host may have any.",
            check=_check_python,
            single=True,
            examples=("3.12",),
        ),
    ]
    backend: Annotated[
        Backend, Option("What computes: jax, torch_xla, torch_tpu or cpu.", examples=("jax",))
    ] = Backend.JAX
    description: Annotated[str, Option("What it is for.")] = ""
    generations: Annotated[
        tuple[str, ...],
        Option("Generations of TPUs that it is for; none means any.", examples=(["v4", "v6e"],)),
    ] = ()
    requirements: Annotated[
        tuple[str, ...],
        Option(
            "Packages with exact versions; the lock file has them with all that they need.",
            check=_check_requirement,
            examples=(["jax==0.12.0.1", "libtpu==0.0.50.1"],),
        ),
    ] = ()
    exclude: Annotated[
        tuple[str, ...],
        Option(
            "Packages that the lock leaves out although others need them, such as those for NVIDIA's devices.",
            check=_matching(_PACKAGE, "the name of a package", "exclude: [nvidia-ml-py]"),
            examples=(["nvidia-ml-py"],),
        ),
    ] = ()
    indexes: Annotated[
        tuple[str, ...],
        Option(
            "Package indexes that are asked before the default one.",
            check=_check_url,
            examples=(["https://download.pytorch.org/whl/cpu"],),
        ),
    ] = ()
    find_links: Annotated[
        tuple[str, ...],
        Option(
            "Pages or folders with links to wheels.",
            examples=(["https://storage.googleapis.com/libtpu-wheels/index.html"],),
        ),
    ] = ()
    python_archive: Annotated[
        PythonArchive | None, Option("The interpreter, for hosts that lack that version.")
    ] = None
    unmanaged: Annotated[
        Unmanaged | None, Option("A Python environment that is on the hosts already, in the place of packages.")
    ] = None
    files: Annotated[tuple[ExtraFile, ...], Option("Files that replace or complete what packages bring.")] = ()
    os_packages: Annotated[
        Mapping[str, str],
        Option(
            "Packages of the operating system with their versions. They need root on the hosts.",
            check_key=_matching(_OS_PACKAGE, "a package of Debian or Ubuntu", "as apt names it"),
            text=True,
            examples=({"libtcmalloc-minimal4": "2.9.1-0ubuntu3"},),
        ),
    ] = field(default_factory=dict)
    imports: Annotated[
        tuple[str, ...],
        Option(
            "Modules that every host must be able to import.",
            check=_matching(_MODULE, "a module", "imports: [jax]"),
            examples=(["jax"],),
        ),
    ] = ()
    variables: Annotated[
        Mapping[str, str],
        Option(
            "Variables of every run.",
            check_key=check_variable,
            text=True,
            examples=({"JAX_PLATFORMS": "tpu,cpu"},),
        ),
    ] = field(default_factory=dict)
    libtpu_flags: Annotated[
        tuple[str, ...],
        Option(
            "LIBTPU_INIT_ARGS; checked by the libtpu of the environment.",
            check=check_flag,
            examples=(["--xla_tpu_enable_latency_hiding_scheduler=true"],),
        ),
    ] = ()
    flag_profiles: Annotated[
        tuple[str, ...],
        Option(
            "Named sets of flags for LIBTPU_INIT_ARGS, before `libtpu_flags`, which win.",
            examples=(["vmem-dense", "async-all-gather"],),
        ),
    ] = ()
    xla_flags: Annotated[
        tuple[str, ...], Option("XLA_FLAGS; flags of libtpu do not belong here.", check=check_flag)
    ] = ()
    per: Annotated[
        str,
        Option(
            "Processes of each host in its runs, as `run --per`: host, chip or torchrun.",
            check=_matching(_PER, "known", f"per: {', '.join(PER)}"),
            examples=("chip",),
        ),
    ] = ""
    progress: Annotated[
        str,
        Option(
            "Regular expression for steps and numbers in the output of its runs, as `run --progress`.",
            check=_check_progress,
            text=True,
            examples=(r"step (?P<step>\d+) loss (?P<loss>\S+)",),
        ),
    ] = ""
    kernel: Annotated[KernelSettings, Option("Settings of the hosts' kernels.")] = KernelSettings()
    probe: Annotated[
        str | None,
        Option(
            "A script beside this file; an environment in which it fails is not used.", examples=("probe.py",)
        ),
    ] = None
    compile_cache: Annotated[
        str, Option("Where compiled programs are kept: gs://BUCKET/PATH, disk or off.", examples=("disk",))
    ] = "off"
    install_from: Annotated[
        InstallFrom,
        Option("Where hosts take packages from: `index` lets each host ask the package index, for rehearsals."),
    ] = InstallFrom.WHEELHOUSE
    verified: Annotated[
        bool, Option("false: nobody has seen these versions work together; said when it is used.")
    ] = True


def run_variables(spec: EnvironmentSpec) -> dict[str, str]:
    """What the environment sets for every run in it."""
    found = dict(spec.variables)
    if spec.libtpu_flags:
        found["LIBTPU_INIT_ARGS"] = " ".join(spec.libtpu_flags)
    if spec.xla_flags:
        found["XLA_FLAGS"] = " ".join(spec.xla_flags)
    return found
