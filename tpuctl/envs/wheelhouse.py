"""The wheelhouse: every file that an environment needs, by its sha256, so that no host asks a package index.

It is a folder of this machine first, and from there it goes to a prefix of a bucket, or without one into the
store. A file is fetched once, whatever environment needs it.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from tpuctl.engine.events import Note
from tpuctl.engine.services import Services
from tpuctl.envs.addresses import open_address
from tpuctl.envs.flags import check_flags
from tpuctl.envs.lock import Wheel, normal, versions_of, wheels_for
from tpuctl.envs.pinned import PinnedEnvironment, contents_for
from tpuctl.errors import BadManifestError, ConflictError, TpuctlError, UnreachableError
from tpuctl.lib.text import counted
from tpuctl.transfer.tree import Blob

FETCH_TIMEOUT_S = 60.0
"""Without a byte, for an index on the internet."""


def fill_wheelhouse(services: Services, pinned: PinnedEnvironment) -> None:
    """Brings all that hosts need for an environment to where they get it: below the prefix of the bucket, else
    into the store. What is there is not sent again.

    Raises BadManifestError for a file that is not what the lock says or flags that its libtpu refuses,
    UnreachableError where a file cannot be had.
    """
    check_flags_of(services, pinned)
    wanted = {each.sha256: each for minor in pinned.spec.python for each in contents_for(pinned, minor)}
    if not wanted:
        return
    if pinned.wheelhouse:
        there = _in_bucket(services, pinned.wheelhouse)
        _upload(services, pinned, [w for digest, w in wanted.items() if digest not in there])
        return
    young = services.store.young_blobs(list(wanted))
    lacking = [each for digest, each in wanted.items() if digest not in young]
    paths = [local_file(services, pinned, each) for each in lacking]
    services.store.put_blobs(path.read_bytes() for path in paths)


def store_environment(services: Services, environment: PinnedEnvironment) -> None:
    """Brings an environment into the store, and its packages to where hosts get them."""
    fill_wheelhouse(services, environment)
    services.store.put_blob(environment.content)


def check_flags_of(services: Services, pinned: PinnedEnvironment) -> None:
    """See `check_flags`; a library that is not on this machine is fetched."""
    check_flags(services, pinned, lambda file: local_file(services, pinned, file))


def _in_bucket(services: Services, house: str) -> set[str]:
    """The digests of what is there."""
    prefix = f"{house.removeprefix('gs://').partition('/')[2]}/".lstrip("/")
    return {item.name.removeprefix(prefix).partition("/")[0] for item in services.objects.list(f"{house}/")}


def _upload(services: Services, pinned: PinnedEnvironment, lacking: Sequence[Wheel]) -> None:
    for each in lacking:
        content = local_file(services, pinned, each).read_bytes()
        with suppress(ConflictError):  # another machine was faster: by its name it is the same content
            services.objects.write(f"{pinned.wheelhouse}/{each.sha256}/{each.name}", content, if_generation=0)
    if lacking:
        told = f"uploaded {counted(len(lacking), 'file')} to {pinned.wheelhouse}"
        services.emit(Note(pinned.spec.name, told))


def blobs_of(services: Services, pinned: PinnedEnvironment) -> dict[str, dict[str, Blob]]:
    """What travels to hosts as files of the installation, by Python and path; empty where a bucket has it."""
    if pinned.wheelhouse:
        return {}
    return {
        minor: {
            f"wheels/{each.sha256}": Blob(each.sha256, each.size or len(services.store.get_blob(each.sha256)))
            for each in contents_for(pinned, minor)
        }
        for minor in pinned.spec.python
    }


def local_file(services: Services, pinned: PinnedEnvironment, item: Wheel) -> Path:
    """The file on this machine, fetched where it is not there. Raises BadManifestError for another one."""
    cache, name = services.wheel_cache, pinned.spec.name
    path = cache / item.sha256
    if path.is_file() and _digest(path) == item.sha256:
        return path
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = cache / f".{item.sha256[:16]}-{secrets.token_hex(4)}"
    try:
        _fetch(services, pinned, item, temporary)
        digest = _digest(temporary)
        if digest != item.sha256:
            raise BadManifestError(
                f"{item.name} of environment {name} has the sha256 {digest}, not {item.sha256}",
                hint=f"was it changed at its place? tpuctl env lock {name}",
            )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def imported_wheels(services: Services, pinned: PinnedEnvironment, imports: Collection[str]) -> dict[str, Path]:
    """The wheels of packages with these names on this machine, by `NAME VERSION`. Packages that are imported by
    another name than they are installed by are not found."""
    wanted = {normal(each) for each in imports}
    minor = pinned.spec.python[0]
    versions = versions_of(pinned.packages, minor)
    found = {}
    for wheel in wheels_for(pinned.packages, minor):
        name = normal(wheel.name.partition("-")[0])
        if name in wanted:
            found[f"{name} {versions[name]}"] = local_file(services, pinned, wheel)
    return found


def _fetch(services: Services, pinned: PinnedEnvironment, item: Wheel, target: Path) -> None:
    import urllib.error  # it takes as long to import as all else that `env verify` needs

    if item.url.startswith("gs://"):
        target.write_bytes(services.objects.read(item.url)[0])
        return
    if "://" not in item.url:
        name, folder = pinned.spec.name, pinned.folder
        if folder is None or not (folder / item.url).is_file():
            raise TpuctlError(f"environment {name} names {item.url}, which is not beside its file")
        shutil.copyfile(folder / item.url, target)
        return
    try:
        with open_address(item.url, FETCH_TIMEOUT_S) as answer, target.open("wb") as file:
            shutil.copyfileobj(answer, file, 1 << 20)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise UnreachableError(
            f"{item.name} of environment {pinned.spec.name} cannot be fetched: {error}",
            hint="is this machine online? another one may fill the wheelhouse: tpuctl env apply",
        ) from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
