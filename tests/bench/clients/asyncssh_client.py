"""asyncssh as a client, host keys checked, one event loop: FARM.json COMMAND."""

from __future__ import annotations

import asyncio
import json
import sys

import asyncssh


async def work(index: int, address: str, farm: dict, key: asyncssh.SSHKey, known, command: str) -> int:
    connection = await asyncssh.connect(
        address,
        farm["port"],
        username=farm["user"],
        client_keys=[key],
        known_hosts=known,
        config=None,
        agent_path=None,
        compression_algs=None,
        encryption_algs=["aes128-gcm@openssh.com"],
        kex_algs=["curve25519-sha256"],
        server_host_key_algs=["ssh-ed25519"],
    )
    async with connection:
        done = await connection.run(command, stdin=asyncssh.DEVNULL)
        for line in str(done.stdout).splitlines():
            print(f"{index}: {line}")
        return done.exit_status


async def main(farm_file: str, command: str) -> int:
    with open(farm_file) as file:
        farm = json.load(file)
    key = asyncssh.read_private_key(farm["key"])
    known = ([asyncssh.import_public_key(farm["host_public"])], [], [])
    codes = await asyncio.gather(
        *(work(index, address, farm, key, known, command) for index, address in enumerate(farm["hosts"]))
    )
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
