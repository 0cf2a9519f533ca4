"""Entries for ssh_config(5): `ssh NAME-0`, `scp` and `rsync` reach workers with the keys that are pinned.

One file per slice below tpuctl's own directory. The user's ~/.ssh/config is never touched; it may include them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tpuctl.lib.files import write_private
from tpuctl.lib.input_files import naming
from tpuctl.model.hosts import HostTarget
from tpuctl.ssh.openssh import pinned_options, quoted_path, render_known_hosts, write_known_hosts

_SUFFIXES = (".conf", ".known_hosts")
_SPECIAL = r"""[*?\[\]\\%$"']"""


class SshConfigFiles:
    """The port `SshEntries`: files that the user asked for once are kept true from then on."""

    def __init__(self, folder: Path, key_path: Path, proxy: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._key_path = key_path
        self._proxy = proxy

    @property
    def include(self) -> str:
        """The line for ~/.ssh/config."""
        return f"Include {_quoted_pattern(self._folder)}"

    def path(self, slice_name: str) -> Path:
        return self._folder / f"{slice_name}.conf"

    def known_hosts(self, slice_name: str) -> Path:
        return self._folder / f"{slice_name}.known_hosts"

    def render(self, targets: Sequence[HostTarget]) -> str:
        """One Host block per worker."""
        return "\n".join(self._block(target) for target in targets)

    def names(self) -> frozenset[str]:
        """See `SshEntries`."""
        try:
            found = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return frozenset()
        return frozenset(
            name.removesuffix(suffix) for name in found for suffix in _SUFFIXES if name.endswith(suffix)
        )

    def write(self, slice_name: str, targets: Sequence[HostTarget]) -> Path:
        """Writes entries and pinned keys; each file appears whole."""
        self.write_pins(slice_name, targets)
        path = self.path(slice_name)
        with naming(path):
            write_private(path, self._file_text(slice_name, targets).encode())
        return path

    def write_pins(self, slice_name: str, targets: Sequence[HostTarget]) -> None:
        write_known_hosts(self.known_hosts(slice_name), targets)

    def update(self, slice_name: str, targets: Sequence[HostTarget]) -> None:
        """See `SshEntries`."""
        entries, pins = _read(self.path(slice_name)), _read(self.known_hosts(slice_name))
        if pins is not None and pins != render_known_hosts(targets):
            self.write_pins(slice_name, targets)
        if entries is not None and (entries != self._file_text(slice_name, targets) or pins is None):
            self.write(slice_name, targets)

    def _file_text(self, slice_name: str, targets: Sequence[HostTarget]) -> str:
        return f"# Written by tpuctl; it follows the slice {slice_name}.\n\n{self.render(targets)}"

    def remove(self, slice_name: str) -> None:
        """See `SshEntries`."""
        for path in (self.path(slice_name), self.known_hosts(slice_name)):
            path.unlink(missing_ok=True)

    def _block(self, target: HostTarget) -> str:
        options = {
            "HostName": target.address,
            "Port": str(target.port),
            "User": target.user,
            "IdentityFile": quoted_path(self._key_path),
            **pinned_options(target, self.known_hosts(target.slice_name), self._proxy),
        }
        lines = "".join(f"    {name} {value}\n" for name, value in options.items())
        return f"Host {target.label}\n{lines}"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _quoted_pattern(folder: Path) -> str:
    """The entries below `folder` as a value of Include, which takes patterns of glob(7).

    Whether it also expands tokens depends on OpenSSH's version (9.2 does not, and takes `%%` for two signs), so
    what could start one is matched as any character, like what glob would not take literally.
    """
    text = f"{re.sub(_SPECIAL, '?', str(folder))}/*.conf"
    return f'"{text}"' if any(character.isspace() for character in text) else text
