"""`env new`, `env lock`, `env derive` and `env capture`: what writes files of this project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.console import Console
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, OnSlice
from tpuctl.errors import UsageError
from tpuctl.lib.options import Flag, Option, argument

if TYPE_CHECKING:
    from tpuctl.envs.pinned import PinnedEnvironment
    from tpuctl.envs.spec import EnvironmentSpec, ExtraFile

Name = Annotated[str, argument("NAME", "Name of the environment.")]
NoLock = Annotated[bool, Option("Write the file only; `tpuctl env lock` makes the lock.")]
Requires = Annotated[
    list[str] | None, Option("A package with its exact version; repeatable.", metavar="X==VERSION")
]


def new(
    context: AppContext,
    console: Console,
    name: Name,
    like: Annotated[str | None, Option("Start from this environment.", metavar="NAME")] = None,
    backend: Annotated[str | None, Option("jax, torch_xla, torch_tpu or cpu.", metavar="NAME")] = None,
    python: Annotated[str | None, Option("Version of Python.", metavar="3.N")] = None,
    require: Requires = None,
    no_lock: NoLock = False,
) -> None:
    """Write an environment file that works, with its lock.

    Without --like it starts from what tpuctl ships for the backend; `tpuctl env ls` shows that.
    """
    from tpuctl.envs.load import environment_folder, environment_names, read_environment
    from tpuctl.envs.spec import check_environment_name
    from tpuctl.envs.write import new_environment

    folder = environment_folder()
    check_environment_name(name)
    bases = {"jax": "jax-tpu", "torch_xla": "torch-xla", "torch_tpu": "torch-tpu", "cpu": "cpu"}
    if backend is not None and backend not in bases:
        raise UsageError(f"no backend called {backend}", hint=f"one of: {', '.join(bases)}")
    if like is not None and backend is not None:
        raise UsageError("--like and --backend exclude each other", hint="keep one of them")
    if like is None and backend is None:
        backend = _ask_backend(console, list(bases))
    base = read_environment(like or bases[str(backend)], folder)
    if name in environment_names(folder) and (folder / f"{name}.yaml").exists():
        raise UsageError(f"there is an environment {name} already", hint=f"tpuctl env lock {name}")
    spec = _derived(base, name, require or [], [], python)
    _write(context, console, folder, new_environment(base, spec), name, no_lock=no_lock)


def _ask_backend(console: Console, known: list[str]) -> str:
    if not console.interactive:
        raise UsageError("neither --backend nor --like was given", hint="--backend jax, or --like NAME")
    while True:
        said = str(typer.prompt(f"What computes ({', '.join(known)})", default=known[0], err=True)).strip()
        if said in known:
            return said
        typer.echo(f"error: {said!r} is none of these (usage)", err=True)


def _derived(
    base: PinnedEnvironment, name: str, versions: list[str], files: list[ExtraFile], python: str | None
) -> EnvironmentSpec:
    from tpuctl.envs.write import derive as derived

    changes = {"python": (python,)} if python is not None else {}
    spec = derived(base.written or base.spec, name, versions=versions, files=files, **changes)
    untouched = not versions and not files and python is None
    return _with_verified(spec, base.spec.verified and untouched)


def _with_verified(spec: EnvironmentSpec, verified: bool) -> EnvironmentSpec:
    from msgspec.structs import replace

    return replace(spec, verified=verified)


def derive(
    context: AppContext,
    console: Console,
    base: Annotated[str, argument("BASE", "The environment to start from.")],
    name: Name,
    with_: Annotated[
        list[str] | None,
        Option("A package in this version instead; repeatable.", flags=(Flag("--with"),), metavar="X==VERSION"),
    ] = None,
    file: Annotated[
        list[str] | None,
        Option("A file in the environment: gs://… or a path here; repeatable.", metavar="DEST=SRC"),
    ] = None,
    no_lock: NoLock = False,
) -> None:
    """Copy an environment file with other versions or files.

    DEST is a path inside the environment. SRC is copied beside the new file if it is a path here.
    """
    from tpuctl.envs.load import environment_folder, read_environment
    from tpuctl.envs.spec import check_environment_name
    from tpuctl.envs.write import new_environment

    folder = environment_folder()
    check_environment_name(name)
    found = read_environment(base, folder)
    if not with_ and not file:
        raise UsageError("it says nothing that is different", hint="--with X==VERSION or --file DEST=SRC")
    files = [_extra_file(folder, name, words) for words in file or []]
    spec = _derived(found, name, with_ or [], files, None)
    _write(context, console, folder, new_environment(found, spec), name, no_lock=no_lock)


def capture(
    context: AppContext,
    console: Console,
    name: Name,
    python: Annotated[str, Option("Its interpreter, such as /home/me/venv/bin/python.", metavar="PATH")],
    on: OnSlice = None,
    worker: Annotated[int, Option("The host that has it.", metavar="N")] = 0,
    unmanaged: Annotated[
        bool, Option("Use what every host has there itself, with the digest of its files.")
    ] = False,
    no_lock: NoLock = False,
) -> None:
    """Write an environment file from a Python of a host.

    It has every package in the version that is installed there, and `verified: false` until you say otherwise.
    With --unmanaged nothing will be installed: the folder of that Python, which every host has, is used as it
    is, where all its files are those of today.
    """
    from tpuctl.envs.capture import capture_environment
    from tpuctl.envs.load import environment_folder
    from tpuctl.envs.spec import check_environment_name
    from tpuctl.envs.write import new_environment, save_environment
    from tpuctl.slices.choose import resolve_slice

    check_environment_name(name)
    record = resolve_slice(context, on, flag="--on")
    found = capture_environment(context, record, worker, python, name, unmanaged=unmanaged)
    for note in found.notes:
        console.caveat(note)
    if unmanaged:
        written = save_environment(environment_folder(), name, new_environment(None, found.spec))
        console.say(f"wrote {written}")
        return
    _write(context, console, environment_folder(), new_environment(None, found.spec), name, no_lock=no_lock)


def _extra_file(folder: Path, name: str, words: str) -> ExtraFile:
    """One `--file`; a file of this machine is copied beside the environment's."""
    from tpuctl.envs.spec import ExtraFile
    from tpuctl.envs.write import copy_beside

    destination, found, source = words.partition("=")
    if not found or not source:
        raise UsageError(f"--file {words!r} is not DEST=SRC", hint="--file lib/…/a.so=build/a.so")
    if source.startswith("gs://"):
        uri, _, digest = source.partition("#sha256=")
        if not digest:
            raise UsageError(f"{source} has no sha256", hint=f"--file {destination}={source}#sha256=…")
        return ExtraFile(uri, destination, digest)
    placed, digest = copy_beside(folder, name, Path(source))
    return ExtraFile(placed, destination, digest)


def _write(context: AppContext, console: Console, folder: Path, text: str, name: str, *, no_lock: bool) -> None:
    from tpuctl.envs.write import save_environment

    path = save_environment(folder, name, text)
    console.say(f"wrote {path}")
    if no_lock:
        console.say(f"`tpuctl env lock {name}` makes its lock")
        return
    _lock(context, console, folder, name)


def lock(
    context: AppContext,
    console: Console,
    name: Name,
    python: Annotated[
        bool,
        Option(
            "Fetch an interpreter too, for hosts that lack it.", flags=(Flag("--python"), Flag("--no-python"))
        ),
    ] = True,
    dry_run: DryRun = False,
) -> None:
    """Resolve an environment into exact wheels with hashes.

    Asks the package index, or the one that UV_DEFAULT_INDEX names. The lock is pylock.NAME.toml beside the
    file (PEP 751); keep both under version control. Flags that its libtpu does not take are refused.
    """
    from tpuctl.envs.load import environment_folder

    _lock(context, console, environment_folder(), name, python=python, dry_run=dry_run)


def _lock(
    context: AppContext,
    console: Console,
    folder: Path,
    name: str,
    *,
    python: bool = True,
    dry_run: bool = False,
) -> None:
    import dataclasses

    from tpuctl.envs.lock import render_lock
    from tpuctl.envs.resolve import lock_environment
    from tpuctl.envs.wheelhouse import check_flags_of
    from tpuctl.envs.write import save_lock
    from tpuctl.lib.text import counted

    found, made, notes = lock_environment(name, folder, python=python)
    packages = counted(len(made.packages), "package")
    for note in notes:
        console.caveat(note)
    check_flags_of(context, dataclasses.replace(found, lock=render_lock(made)))
    if dry_run:
        console.say(f"would lock {packages}")
        return
    console.say(f"wrote {save_lock(folder, found, made)}: {packages}")
