"""Trains with JAX on all hosts of a slice, and survives preemptions: an example to copy from.

    tpuctl run train_jax.py --on big --checkpoint-dir gs://BUCKET/first

The hosts need jax, numpy and google-cloud-storage; on the simulator `--env demo-cpu` brings them. The three
rules:

  - everything that changes is in the checkpoint (parameters, optimizer, step), and what is random follows from
    (SEED, step), so that an attempt that resumes goes on as if nothing had happened;
  - rank 0 says from which checkpoint to go on, and the others load the same one;
  - SIGTERM (a preemption, a reboot, `tpuctl stop`) is noted, all ranks agree on it after the step, rank 0
    saves, and all leave with 75: "start me again".
"""

import hashlib
import io
import os
import signal
import sys
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

RANK, WORLD = int(os.environ.get("TPUCTL_RANK", "0")), int(os.environ.get("TPUCTL_WORLD_SIZE", "1"))
STEPS = int(os.environ.get("STEPS", "100"))  # `tpuctl run --var STEPS=1000`, and so on
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "20"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # makes steps longer, to try things out
SEED, SHARE, WIDTH = 7, 256, 64
RATE, MOMENTUM = 0.05, 0.9
RESTART = 75  # to tpuctl: not a failure, start me again

asked_to_leave = False


def note_sigterm(_signal, _frame):
    global asked_to_leave
    asked_to_leave = True


def say(text):
    print(text, flush=True)


def join_the_others():
    """After this `jax.devices()` are those of all hosts."""
    # JAX's own handler of SIGTERM would take the place of the one below.
    jax.config.update("jax_enable_preemption_service", False)
    if WORLD > 1:
        jax.distributed.initialize(os.environ["TPUCTL_COORDINATOR"], WORLD, RANK)
    signal.signal(signal.SIGTERM, note_sigterm)


def agree(value):
    """The largest number that a rank says, on all ranks."""
    return int(np.max(multihost_utils.process_allgather(np.int32(value))))


def checkpoint_blob(bucket, prefix, step):
    return bucket.blob(f"{prefix}/step-{step:08d}.npz")


def newest_step(bucket, prefix):
    """The newest checkpoint's step, or 0. An object in a bucket is there whole or not at all."""
    names = [blob.name for blob in bucket.list_blobs(prefix=f"{prefix}/step-")]
    return max((int(name[-12:-4]) for name in names if name.endswith(".npz")), default=0)


def save(blob, step, state):
    content = io.BytesIO()
    np.savez(content, **{name: np.asarray(value) for name, value in state.items()})
    blob.upload_from_string(content.getvalue())
    say(f"saved step {step}")


def load(blob):
    with np.load(io.BytesIO(blob.download_as_bytes())) as arrays:
        return dict(arrays)


def new_state():
    """Parameters, and the momentum of each."""
    random = np.random.default_rng(SEED)
    params = {
        "w1": random.normal(0, 1, (2, WIDTH)),
        "b1": np.zeros(WIDTH),
        "w2": random.normal(0, 0.1, (WIDTH, 1)),
    }
    momentum = {f"{name}/momentum": np.zeros_like(value) for name, value in params.items()}
    return {name: value.astype(np.float32) for name, value in (params | momentum).items()}


def loss_of(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] - y) ** 2)


def train_step(state, x, y):
    """x and y are spread over all devices, so the mean is over the whole batch: XLA adds the gradients up."""
    params = {name: value for name, value in state.items() if not name.endswith("/momentum")}
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    new = {}
    for name, gradient in gradients.items():
        momentum = MOMENTUM * state[f"{name}/momentum"] + gradient
        new[name], new[f"{name}/momentum"] = state[name] - RATE * momentum, momentum
    return new, loss


def my_share(step, devices):
    """What this rank sees of the batch of `step`: a function of its arguments and nothing else."""
    random = np.random.default_rng([SEED, step])
    x = random.uniform(-1, 1, (SHARE * devices, 2)).astype(np.float32)
    x = np.split(x, WORLD)[RANK]
    return x, np.sin(3 * x[:, :1]) * x[:, 1:]


def step(mesh):
    """For `tpuctl fits`: the step, its arguments as shapes, and how these are spread."""
    x, y = (jax.ShapeDtypeStruct((SHARE * mesh.size, width), jnp.float32) for width in (2, 1))
    split = PartitionSpec("data")
    arguments = (jax.eval_shape(new_state), x, y)
    return jax.jit(train_step, donate_argnums=0), arguments, (PartitionSpec(), split, split)


def train():
    from google.cloud import storage  # here, so that who only compiles the step does not need it

    join_the_others()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    bucket_name, _, prefix = os.environ["TPUCTL_CHECKPOINT_DIR"].removeprefix("gs://").strip("/").partition("/")
    # Hosts get credentials from their metadata server; the project matters only for calls about buckets.
    bucket = storage.Client(project=os.environ.get("GOOGLE_CLOUD_PROJECT", "unused")).bucket(bucket_name)

    start = agree(newest_step(bucket, prefix) if RANK == 0 else 0)
    state = load(checkpoint_blob(bucket, prefix, start)) if start else new_state()
    if start:
        say(f"resumed from step {start} (attempt {os.environ['TPUCTL_ATTEMPT']})")
    state = {name: jax.make_array_from_process_local_data(whole, value) for name, value in state.items()}
    step_function = jax.jit(train_step, out_shardings=(whole, whole), donate_argnums=0)

    for done in range(start + 1, STEPS + 1):
        began = time.monotonic()
        x, y = (
            jax.make_array_from_process_local_data(split, part) for part in my_share(done, jax.device_count())
        )
        state, loss = step_function(state, x, y)
        leave = agree(asked_to_leave)
        if RANK == 0 and (leave or done % SAVE_EVERY == 0 or done == STEPS):
            save(checkpoint_blob(bucket, prefix, done), done, state)
        if leave and done < STEPS:
            multihost_utils.sync_global_devices("saved")  # nobody is gone before rank 0 has saved
            say(f"asked to leave at step {done}")
            sys.exit(RESTART)
        if done % 10 == 0:
            say(f"step {done}/{STEPS} loss {float(loss):.6f}")
        time.sleep(max(0.0, STEP_SECONDS - (time.monotonic() - began)))

    if RANK == 0:
        weights = b"".join(np.asarray(state[name]).tobytes() for name in sorted(state))
        say(f"finished: parameters {hashlib.sha256(weights).hexdigest()[:16]}")


def main():
    try:
        train()
    except Exception:
        # Not by the usual way out: it would wait for the other hosts to leave too, and they may be gone.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
