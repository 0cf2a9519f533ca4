"""The processes of an attempt on this host, with the arguments and variables of each.

`launch` of a request to start says `per`: `host` (one process), `chip` (one for each) or `torchrun` (one that
starts the others, each through `member.py`). `processes` is how many take part here, `node` of `nodes` is this
host's place, and `given` names variables that a person set: those stay as they are.
"""

import os
import sys

import launch
from base import Refused, make_dir, root, source_of
from log_times import STREAMS
from state import MEMBERS

JOINT = "TPUCTL_JOIN_JOINT"  # as in `join_hook.py`: all processes together have all chips
MASTER_OF_ONE = "127.0.0.1"


def logins(request):
    """The variables of this host's login that a program may have."""
    return launch.without_family(os.environ) if request["launch"] else dict(os.environ)


def variables(request):
    """The variables with which a program starts; in a container, none from this host's login."""
    found = dict(request["env_defaults"])
    if request["container"]:
        import containers

        found.update(containers.names(request))
    else:
        found.update(logins(request))
    for name, place in request["env_dirs"].items():
        found[name] = make_dir(root(place))
    found.update(request["env"])
    return found


def programs(request, attempt, argv, environment):
    """(arguments, variables) of each process that the supervisor starts. Refused if the host cannot say."""
    asked = request["launch"]
    if not asked:
        return [(argv, environment)]
    count = int(asked["processes"])
    whole = {"TPUCTL_LOCAL_WORLD_SIZE": str(count)}
    if asked["per"] == "torchrun":
        words = torchrun(asked, attempt, argv, environment, bool(request["container"]))
        return [(words, with_more(environment, asked, joint(whole, asked)))]
    rows = [{}] if asked["per"] == "host" else chips(count)
    first = int(asked["node"]) * count
    return [
        (
            argv,
            with_more(
                environment,
                asked,
                joint(dict(row, **whole), asked) if asked["per"] == "chip" else whole,
                {"TPUCTL_RANK": str(first + index), "TPUCTL_LOCAL_RANK": str(index)},
            ),
        )
        for index, row in enumerate(rows)
    ]


def with_more(environment, asked, *rows):
    """The environment plus the rows that nobody set by hand."""
    given = set(asked.get("given") or ())
    return dict(environment, **{name: row[name] for row in rows for name in row if name not in given})


def joint(row, asked):
    """A row whose process shares all chips with the others, unless the user set bounds."""
    return row if set(launch.FAMILY).intersection(asked.get("given") or ()) else dict(row, **{JOINT: "1"})


def chips(count):
    """A row of variables for each chip, from the metadata of this host."""
    import metadata

    said = {name: metadata.value("attributes/" + name) for name in ("tpu-env", "worker-network-endpoints")}
    silent = [name for name, text in said.items() if text is None]
    if silent:
        raise Refused("no-topology", "the metadata server does not say %s" % " and ".join(silent))
    try:
        rows = launch.joint(
            launch.parse_tpu_env(said["tpu-env"]), launch.parse_endpoints(said["worker-network-endpoints"])
        )
    except ValueError as error:
        raise Refused("no-topology", str(error)) from error
    if len(rows) != count:
        raise Refused("no-topology", "its metadata (tpu-env) say %d chips, not %d" % (len(rows), count))
    return rows


def torchrun(asked, attempt, argv, environment, boxed):
    """`torchrun` of the run's environment, which starts each process through `member.py`."""
    with open(attempt.path("member.py"), "wb") as file:
        file.write(source_of("member"))
    make_dir(attempt.path(MEMBERS))
    address, _, port = environment.get("TPUCTL_COORDINATOR", "").rpartition(":")
    master = address if int(asked["nodes"]) > 1 else MASTER_OF_ONE
    named = os.path.basename(argv[0]).startswith("python")
    return [
        argv[0] if named else "python3",
        "-m",
        "torch.distributed.run",
        "--nnodes=%d" % int(asked["nodes"]),
        "--node-rank=%d" % int(asked["node"]),
        "--nproc-per-node=%d" % int(asked["processes"]),
        "--master-addr=" + master,
        "--master-port=" + port,
        "--no-python",
        "python3" if boxed else sys.executable,
        "-I",
        "-S",
        attempt.path("member.py"),
        attempt.dir,
        *argv,
    ]


def stream_names(request):
    """The logs of these processes: each of several has its own, next to those of their parent."""
    count = int((request["launch"] or {}).get("processes", 1))
    return [*STREAMS, *("%d.%s" % (n, stream) for n in range(count if count > 1 else 0) for stream in STREAMS)]
