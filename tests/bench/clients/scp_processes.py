"""A thread and an `scp` process per host: FARM.json FILE TARGET SCP-OPTIONS…"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor


def main(farm_file: str, file: str, target: str, *options: str) -> int:
    with open(farm_file) as source:
        hosts = json.load(source)["hosts"]

    def copy(address: str) -> int:
        return subprocess.run(["scp", "-q", *options, file, f"{address}:{target}"]).returncode

    with ThreadPoolExecutor(len(hosts)) as pool:
        return 1 if any(pool.map(copy, hosts)) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
