"""SSH hosts that cost almost nothing: one asyncssh process answers for many loopback addresses by itself.

`python -m tests.bench.cheap_server FARM.json`; prints a line when it listens, ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import asyncssh


class _Welcome(asyncssh.SSHServer):
    """Checks the one key, as any server."""

    def __init__(self, accepted: bytes) -> None:
        self._accepted = accepted

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return key.export_public_key().split()[1] == self._accepted


def _answer(process: Any) -> None:
    """Every command prints which host it ran on."""
    address = process.get_extra_info("sockname")[0]
    process.stdout.write(f"host-{address}\n".encode())
    process.exit(0)


async def serve(farm: dict[str, Any]) -> None:
    """Until the end of stdin."""
    accepted = farm["public_line"].split()[1].encode()
    await asyncssh.create_server(
        lambda: _Welcome(accepted),
        farm["hosts"],
        farm["port"],
        backlog=1024,
        server_host_keys=[farm["host_private"]],
        process_factory=_answer,
        encoding=None,
        line_editor=False,
        compression_algs=None,
        gss_host=None,
    )
    print("listening", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
