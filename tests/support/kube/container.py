"""One container as processes, with the time of each line that it writes.

It has its own root, a layer above this machine's, its own process numbers and host name, and its volumes in
place. Its network is this machine's, as of pods with `hostNetwork`.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENTER = """
set -eu
box=$1 host=$2 directory=$3 count=$4
shift 4
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/,upperdir=$box/upper,workdir=$box/work" "$box/root"
mount -t proc proc "$box/root/proc"
mount --rbind /dev "$box/root/dev"
mount --rbind /sys "$box/root/sys"
while [ "$count" -gt 0 ]; do
    if [ -d "$1" ]; then mkdir -p "$box/root$2"; else touch "$box/root$2"; fi
    mount --bind "$1" "$box/root$2"
    [ "$3" = rw ] || mount -o remount,bind,ro "$box/root$2"
    shift 3
    count=$((count - 1))
done
hostname "$host"
exec /usr/sbin/chroot "$box/root" /bin/sh -c 'cd "$0" && exec "$@"' "$directory" "$@"
"""


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine, where a container has it."""

    source: Path
    path: str
    read_only: bool = False


def now() -> str:
    """As Kubernetes writes moments."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Container:
    """Runs from its construction on. `box` is a new folder for what it writes, `log` the file of its output."""

    def __init__(
        self,
        box: Path,
        words: Sequence[str],
        variables: Mapping[str, str],
        mounts: Sequence[Mount],
        *,
        host: str,
        directory: str,
        log: Path,
    ) -> None:
        for name in ("upper", "work", "root"):
            (box / name).mkdir(parents=True)
        placed = [
            word for each in mounts for word in (str(each.source), each.path, "ro" if each.read_only else "rw")
        ]
        spaces = ("/usr/bin/unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
        script = ("/bin/sh", "-c", ENTER, "sh", str(box), host, directory, str(len(mounts)))
        self.started = now()
        self.log = log
        self._process = subprocess.Popen(
            (*spaces, *script, *placed, *words),
            env={"PATH": SYSTEM_PATH, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output = self._process.stdout
        assert output is not None
        self._pump = threading.Thread(target=self._keep, args=(output,), daemon=True)
        self._pump.start()

    def _keep(self, output: IO[bytes]) -> None:
        with output, self.log.open("ab", buffering=0) as log:
            for line in output:
                log.write(f"{now()} ".encode() + line.rstrip(b"\n") + b"\n")

    def send(self, number: signal.Signals) -> None:
        """To its first process, which ignores what it has no handler for, as always. KILL ends all."""
        if self._process.poll() is not None:
            return
        if number == signal.SIGKILL:
            self._process.kill()
            return
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if children:
            subprocess.run(("kill", f"-{number.value}", *children), check=False, stderr=subprocess.DEVNULL)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit status, 128 + N after signal N; None if it still runs then."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._pump.join()
        return status if status >= 0 else 128 - status
