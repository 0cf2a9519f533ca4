"""Trains a small classifier on all hosts of a slice, and survives preemptions.

An example to copy from: data-parallel JAX with checkpoints in a bucket. It is the same program on one laptop
process, on simulated hosts (CPU) and on a TPU slice. tpuctl starts one copy of it on every host and tells it
through the environment who it is:

    TPUCTL_RANK, TPUCTL_WORLD_SIZE   which of how many processes this is
    TPUCTL_COORDINATOR               host:port on which rank 0 lets the others find each other
    TPUCTL_CHECKPOINT_DIR            gs://bucket/prefix, the same for every attempt of the run
    TPUCTL_RUN_ID, TPUCTL_ATTEMPT    for messages

Set with `tpuctl run --var`: STEPS, CHECKPOINT_EVERY, STEP_SECONDS (least time per step), SEED, and HOLD_AT, the
step after which the first attempt waits for whatever ends it.

What makes a run that was preempted end like one that was not:
  - everything that changes is in the checkpoint: parameters, optimizer state, step;
  - what is random depends on (SEED, step) only, so step 61 sees the same batch in every attempt;
  - rank 0 decides from which checkpoint to go on, and all others follow.
"""

import hashlib
import io
import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

CLASSES = 3
TRAIN_POINTS, TEST_POINTS = 6000, 2000
LAYERS = (2, 64, 64, CLASSES)
BATCH = 512  # over all processes together, so that the result does not depend on how many there are
LEARNING_RATE = 0.01
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
PRINT_EVERY = 10


@dataclass(frozen=True)
class Config:
    run_id: str
    attempt: int
    rank: int
    world_size: int
    coordinator: str
    checkpoint_dir: str
    steps: int
    checkpoint_every: int
    step_seconds: float
    seed: int
    hold_at: int


def read_config(env):
    return Config(
        run_id=env.get("TPUCTL_RUN_ID", "local"),
        attempt=int(env.get("TPUCTL_ATTEMPT", "1")),
        rank=int(env.get("TPUCTL_RANK", "0")),
        world_size=int(env.get("TPUCTL_WORLD_SIZE", "1")),
        coordinator=env.get("TPUCTL_COORDINATOR", ""),
        checkpoint_dir=env.get("TPUCTL_CHECKPOINT_DIR", ""),
        steps=int(env.get("STEPS", "120")),
        checkpoint_every=int(env.get("CHECKPOINT_EVERY", "20")),
        step_seconds=float(env.get("STEP_SECONDS", "0.1")),
        seed=int(env.get("SEED", "0")),
        hold_at=int(env.get("HOLD_AT", "0")),
    )


def say(text):
    """A progress line, visible at once in `tpuctl logs -f`."""
    print(text, flush=True)


# --- data: three interleaved spirals, made from the seed


def make_spirals(count, rng):
    label = rng.integers(0, CLASSES, count)
    radius = np.sqrt(rng.uniform(0.02, 1.0, count))
    angle = 4.0 * radius + label * (2 * np.pi / CLASSES) + rng.normal(0.0, 0.15, count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points.astype(np.float32), label.astype(np.int32)


def batch_of(devices):
    """BATCH or a little more: each device has the same share."""
    return -(-BATCH // devices) * devices


def batch_rows(config, step, batch):
    """The rows of the training set that this process sees at `step`: a pure function of its arguments."""
    rows = np.random.default_rng([config.seed, step]).integers(0, TRAIN_POINTS, batch)
    share = batch // config.world_size
    return rows[config.rank * share : (config.rank + 1) * share]


# --- model and optimizer: a multi-layer perceptron and Adam, in plain JAX


def initial_state(seed=0):
    """Parameters and Adam's two moments, as flat {name: array}: easy to save."""
    rng = np.random.default_rng([seed, 0xA11])
    state = {}
    for i, (fan_in, fan_out) in enumerate(pairwise(LAYERS)):
        state[f"param/w{i}"] = rng.normal(0, np.sqrt(2 / fan_in), (fan_in, fan_out)).astype(np.float32)
        state[f"param/b{i}"] = np.zeros(fan_out, np.float32)
    for name in [name for name in state if name.startswith("param/")]:
        state[name.replace("param/", "mean/")] = np.zeros_like(state[name])
        state[name.replace("param/", "square/")] = np.zeros_like(state[name])
    return state


def params_of(state):
    return {name: value for name, value in state.items() if name.startswith("param/")}


def logits_of(params, x):
    last = len(LAYERS) - 2
    for i in range(last):
        x = jnp.tanh(x @ params[f"param/w{i}"] + params[f"param/b{i}"])
    return x @ params[f"param/w{last}"] + params[f"param/b{last}"]


def loss_of(params, x, y):
    log_probability = jax.nn.log_softmax(logits_of(params, x))
    return -jnp.mean(jnp.take_along_axis(log_probability, y[:, None], axis=1))


def train_step(state, step, x, y):
    """One step of Adam.

    x and y are spread over all devices of all hosts, so the mean in the loss is over the whole batch, and
    XLA inserts the all-reduce of the gradients.
    """
    loss, gradients = jax.value_and_grad(loss_of)(params_of(state), x, y)
    time_step = step.astype(jnp.float32) + 1
    new = {}
    for name, gradient in gradients.items():
        mean_name, square_name = name.replace("param/", "mean/"), name.replace("param/", "square/")
        mean = BETA1 * state[mean_name] + (1 - BETA1) * gradient
        square = BETA2 * state[square_name] + (1 - BETA2) * gradient**2
        corrected = jnp.sqrt(square / (1 - BETA2**time_step)) + EPSILON
        new[name] = state[name] - LEARNING_RATE * mean / (1 - BETA1**time_step) / corrected
        new[mean_name], new[square_name] = mean, square
    return new, loss


def step(mesh):
    """For `tpuctl fits`: the step, its arguments as shapes, and how these are spread."""
    state, count = jax.eval_shape(initial_state), jax.ShapeDtypeStruct((), jnp.int32)
    batch = batch_of(mesh.size)
    x, y = jax.ShapeDtypeStruct((batch, 2), jnp.float32), jax.ShapeDtypeStruct((batch,), jnp.int32)
    whole, split = PartitionSpec(), PartitionSpec("data")
    return jax.jit(train_step, donate_argnums=0), (state, count, x, y), (whole, whole, split, split)


# --- checkpoints: one object per step, then `latest` that names it


class Checkpoints:
    """Checkpoints below a gs:// prefix. Without one nothing is saved."""

    def __init__(self, url):
        self._bucket = None
        if not url:
            return
        from google.cloud import storage

        name, _, self._prefix = url.removeprefix("gs://").strip("/").partition("/")
        # On a Cloud TPU host the credentials come from the metadata server; the project is needed only for
        # calls about buckets, of which there are none here.
        project = os.environ.get("GOOGLE_CLOUD_PROJECT", "unused")
        self._bucket = storage.Client(project=project).bucket(name)

    def _blob(self, name):
        return self._bucket.blob(f"{self._prefix}/{name}" if self._prefix else name)

    def latest_step(self):
        """The step of the newest complete checkpoint, or 0."""
        from google.cloud.exceptions import NotFound

        if self._bucket is None:
            return 0
        try:
            return int(json.loads(self._blob("latest").download_as_bytes())["step"])
        except NotFound:
            return 0

    def load(self, step, seed):
        content = self._blob(f"step-{step:08d}.npz").download_as_bytes()
        with np.load(io.BytesIO(content)) as arrays:
            state = dict(arrays)
        saved_step, saved_seed = (int(n) for n in state.pop("step_and_seed"))
        if (saved_step, saved_seed) != (step, seed):
            raise ValueError(f"checkpoint is of step {saved_step}, seed {saved_seed}; wanted {step}, {seed}")
        return state

    def save(self, step, seed, state):
        if self._bucket is None:
            return
        buffer = io.BytesIO()
        np.savez(buffer, step_and_seed=np.array([step, seed]), **state)
        self._blob(f"step-{step:08d}.npz").upload_from_string(buffer.getvalue())
        # Only now may a reader find it.
        self.write_json("latest", {"step": step})
        say(f"saved step {step}")

    def write_json(self, name, data):
        if self._bucket is not None:
            self._blob(name).upload_from_string(json.dumps(data), content_type="application/json")


# --- the run


def join_the_others(config):
    """After this, `jax.devices()` are the devices of all hosts. A lost host ends all within half a minute."""
    # JAX would catch SIGTERM and only take note of it. Here `tpuctl stop` just ends the process, at any moment:
    # a checkpoint object is either complete or absent.
    jax.config.update("jax_enable_preemption_service", False)
    if config.world_size > 1:
        jax.distributed.initialize(
            coordinator_address=config.coordinator,
            num_processes=config.world_size,
            process_id=config.rank,
            initialization_timeout=300,
            heartbeat_timeout_seconds=30,
        )


def agree_on_start(config, checkpoints):
    """The step to go on from, as rank 0 sees it."""
    mine = checkpoints.latest_step() if config.rank == 0 else 0
    if config.world_size == 1:
        return mine
    return int(multihost_utils.broadcast_one_to_all(np.int32(mine)))


def train(config):
    join_the_others(config)
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("data",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    batch = batch_of(len(devices))
    train_x, train_y = make_spirals(TRAIN_POINTS, np.random.default_rng([config.seed, 0x7A1]))
    if config.rank == 0:
        say(f"{config.world_size} processes, {len(devices)} {devices[0].platform} devices")

    checkpoints = Checkpoints(config.checkpoint_dir)
    start = agree_on_start(config, checkpoints)
    state = checkpoints.load(start, config.seed) if start else initial_state(config.seed)
    if start:
        say(f"resumed from step {start} (attempt {config.attempt})")
    # Every process holds the same values, so each can hand in its own copy as the replicated global array.
    everywhere = partial(jax.make_array_from_process_local_data, whole)
    state = {name: everywhere(value) for name, value in state.items()}
    step_function = jax.jit(train_step, out_shardings=(whole, whole), donate_argnums=0)

    loss = None
    for step in range(start, config.steps):
        began = time.monotonic()
        rows = batch_rows(config, step, batch)
        x = jax.make_array_from_process_local_data(split, train_x[rows])
        y = jax.make_array_from_process_local_data(split, train_y[rows])
        state, loss = step_function(state, everywhere(np.int32(step)), x, y)
        loss.block_until_ready()
        done = step + 1
        if config.rank == 0 and (done % config.checkpoint_every == 0 or done == config.steps):
            checkpoints.save(done, config.seed, {name: np.asarray(value) for name, value in state.items()})
        if done % PRINT_EVERY == 0 or done == config.steps:
            say(f"step {done}/{config.steps} loss {float(loss):.4f}")
        while done == config.hold_at and config.attempt == 1:
            time.sleep(1)
        time.sleep(max(0.0, config.step_seconds - (time.monotonic() - began)))

    if config.rank == 0:
        report(config, checkpoints, {name: np.asarray(value) for name, value in state.items()})


def report(config, checkpoints, state):
    """Measures the trained model on points it has not seen, prints and stores the result."""
    test_x, test_y = make_spirals(TEST_POINTS, np.random.default_rng([config.seed, 0x7E57]))
    params = params_of(state)
    digest = hashlib.sha256()
    for name in sorted(params):
        digest.update(params[name].tobytes())
    metrics = {
        "final_loss": round(float(loss_of(params, test_x, test_y)), 6),
        "accuracy": round(float(np.mean(np.argmax(logits_of(params, test_x), axis=1) == test_y)), 6),
        "steps": config.steps,
        "params_sha256": digest.hexdigest(),
    }
    checkpoints.write_json("metrics.json", metrics)
    shown = f"final loss {metrics['final_loss']:.4f} accuracy {metrics['accuracy']:.4f}"
    say(f"{shown} parameters {metrics['params_sha256'][:12]}")


def main():
    config = read_config(os.environ)
    try:
        train(config)
    except Exception:
        # Not by the usual way out: it would wait for the other hosts to leave too, and they may be gone.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
