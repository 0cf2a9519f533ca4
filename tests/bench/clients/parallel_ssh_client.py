"""parallel-ssh (libssh2) in its own virtual environment; it checks no host key: FARM.json COMMAND."""

from __future__ import annotations

import json
import sys

from pssh.clients import ParallelSSHClient


def main(farm_file: str, command: str) -> int:
    with open(farm_file) as file:
        farm = json.load(file)
    client = ParallelSSHClient(
        farm["hosts"],
        user=farm["user"],
        port=farm["port"],
        pkey=farm["key"],
        allow_agent=False,
        pool_size=len(farm["hosts"]),
    )
    failed = 0
    for index, output in enumerate(client.run_command(command)):
        for line in output.stdout:
            print(f"{index}: {line}")
        failed += output.exit_code != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
