"""Variables by which the processes of a host share its chips; pure.

What a process must be told depends on the shape of its host and of its slice, which the host's metadata says
(`tpu-env`); nothing is worked out from the name of a type. Sources: `configure_topology` of PyTorch/XLA 2.9
(torch_xla._internal.tpu), and the helper of JAX 0.10.2 for tests (jax._src.test_multiprocess). Where these two
differ (eight chips, one for each process: `2,4,1` and `4,2,1`) the metadata decide.
"""

FIRST_PORT = 8476  # of libtpu's processes, one each; as PyTorch/XLA has it
FIRST_METRICS_PORT = 8431  # what the metadata of a v4 say for its first chip
ONE = "1,1,1"
BOXES = {1: ONE, 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
"""So many chips as a box, as JAX's helper has them. Of 1 and of all chips of a host it is known that they start
alone; one report of another number on a v6e says that it does not."""

FAMILY = (
    "ALLOW_MULTIPLE_LIBTPU_LOAD",
    "CLOUD_TPU_TASK_ID",
    "PJRT_LOCAL_PROCESS_COUNT",
    "PJRT_LOCAL_PROCESS_RANK",
    "TPU_ACCELERATOR_TYPE",
    "TPU_CHIPS_PER_HOST_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_HOST_BOUNDS",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_BOUNDS",
    "TPU_PROCESS_PORT",
    "TPU_RUNTIME_METRICS_PORTS",
    "TPU_SKIP_MDS_QUERY",
    "TPU_VISIBLE_CHIPS",
    "TPU_VISIBLE_DEVICES",
    "TPU_WORKER_HOSTNAMES",
)
"""What libtpu and PyTorch/XLA take for the topology before they ask the metadata server. Left by an earlier
shell, each of them starts a program on the wrong chips, or lets it wait for processes that are not there."""


def without_family(environment):
    """The environment of a host's login without what would win over the topology of a program."""
    return {name: value for name, value in environment.items() if name not in FAMILY}


def parse_tpu_env(text):
    """The attribute `tpu-env`: lines of `KEY: 'value'`."""
    rows = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, colon, value in rows if colon}


def parse_endpoints(text):
    """The addresses in `worker-network-endpoints`: hosts as `name:uid:ip`, or by their names alone."""
    return [each.strip().split(":")[-1] for each in text.split(",") if each.strip()]


def bounds(tpu_env, *keys):
    """A box of three numbers, by the first of the keys that is there. ValueError where none is."""
    for key in keys:
        if tpu_env.get(key):
            found = [int(each) for each in tpu_env[key].split(",")]
            if len(found) == 3 and min(found) > 0:
                return found
            raise ValueError("its metadata (tpu-env) say %s=%r, which is no box" % (key, tpu_env[key]))
    raise ValueError("its metadata (tpu-env) have no %s" % keys[0])


def host_box(tpu_env):
    """The chips of this host as a box."""
    return bounds(tpu_env, "TPU_CHIPS_PER_PROCESS_BOUNDS", "CHIPS_PER_HOST_BOUNDS")


def volume(box):
    return box[0] * box[1] * box[2]


def joint(tpu_env, addresses):
    """One process for each chip, all processes of the slice together: the variables of each on this host.

    `addresses` are those of all hosts in their order. ValueError where the metadata do not say what is needed.
    """
    box, hosts = host_box(tpu_env), bounds(tpu_env, "TPU_PROCESS_BOUNDS", "HOST_BOUNDS")
    count = volume(box)
    if len(addresses) != volume(hosts):
        raise ValueError("its metadata name %d hosts, in a slice of %d" % (len(addresses), volume(hosts)))
    if not str(tpu_env.get("WORKER_ID", "")).isdigit():
        raise ValueError("its metadata (tpu-env) have no WORKER_ID")
    where = addresses if len(addresses) > 1 else ["localhost"]
    shared = {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": ONE,
        "TPU_PROCESS_BOUNDS": ",".join(str(one * many) for one, many in zip(box, hosts)),
        "TPU_PROCESS_ADDRESSES": ",".join(
            "%s:%d" % (host, FIRST_PORT + index) for host in where for index in range(count)
        ),
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    first, metrics = int(tpu_env["WORKER_ID"]) * count, metrics_ports(tpu_env, count)
    return [
        dict(
            shared,
            TPU_VISIBLE_CHIPS=str(index),
            TPU_PROCESS_PORT=str(FIRST_PORT + index),
            CLOUD_TPU_TASK_ID=str(first + index),
            TPU_RUNTIME_METRICS_PORTS=metrics[index],
        )
        for index in range(count)
    ]


def metrics_ports(tpu_env, count):
    """A port for each chip."""
    told = [port.strip() for port in tpu_env.get("TPU_RUNTIME_METRICS_PORTS", "").split(",") if port.strip()]
    return told if len(told) == count else [str(FIRST_METRICS_PORT + index) for index in range(count)]


def independent(chips):
    """The variables of a program that has these chips of a host for itself, beside others. KeyError for a
    number of chips that is no box."""
    port = str(FIRST_PORT + min(chips))
    return {
        "TPU_VISIBLE_CHIPS": ",".join(map(str, chips)),
        "TPU_PROCESS_BOUNDS": ONE,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": BOXES[len(chips)],
        "TPU_PROCESS_ADDRESSES": "localhost:" + port,
        "TPU_PROCESS_PORT": port,
        "CLOUD_TPU_TASK_ID": "0",
        "TPU_RUNTIME_METRICS_PORTS": ",".join(str(FIRST_METRICS_PORT + chip) for chip in chips),
    }
