"""What starts on every worker before the program of a run whose data has a probe: the probe, twice.

Prints one line behind MARK: digests and length of its output. One that fails keeps its status and messages.
"""

import hashlib
import json
import subprocess
import sys

MARK = "tpuctl-probe "


def main(argv):
    found = []
    for _ in range(2):
        done = subprocess.run(argv, stdout=subprocess.PIPE)
        if done.returncode:
            return done.returncode if done.returncode > 0 else 1
        found.append([hashlib.sha256(done.stdout).hexdigest(), len(done.stdout)])
    (first, size), (second, _) = found
    print(MARK + json.dumps({"first": first, "second": second, "bytes": size}), flush=True)
    return 0


sys.exit(main(sys.argv[1:]))
