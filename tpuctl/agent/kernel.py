"""`set_hugepages`: a setting of this host's kernel, which lasts until the next boot."""

from facts import HUGEPAGES, hugepages
from operations import Failed

SET_S = 10.0


def set_hugepages(parameters, job):
    """`mode`: always, madvise or never."""
    mode = parameters["mode"]
    if hugepages() != mode:
        job.run(["sh", "-c", 'echo "$1" > "$2"', "sh", mode, HUGEPAGES], root=True, seconds=SET_S)
    found = hugepages()
    if found != mode:
        raise Failed("transparent hugepages are still %s" % (found or "not there"), permanent=True)
    return {"transparent_hugepages": found}
