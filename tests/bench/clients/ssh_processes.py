"""A thread and an `ssh` process per host, output captured and prefixed: FARM.json COMMAND SSH-OPTIONS…"""

from __future__ import annotations

import json
import subprocess
import sys
import threading


def main(farm_file: str, command: str, *options: str) -> int:
    with open(farm_file) as file:
        hosts = json.load(file)["hosts"]
    lock = threading.Lock()
    failed = []

    def work(index: int, address: str) -> None:
        done = subprocess.run(
            ["ssh", *options, address, command], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        with lock:
            for line in done.stdout.splitlines():
                print(f"{index}: {line}")
            if done.returncode:
                failed.append(done.stderr)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stderr.write("".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
