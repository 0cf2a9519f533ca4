"""What happens when bad samples run under JAX on the CPU, beside what is advised; see with_torch_xla.py."""

import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

STATE = jnp.ones((1000, 1000))
BATCH = STATE / 1000


@jax.jit
def train_step(state, batch):
    for _ in range(8):
        state = jnp.tanh(state @ batch)
    return state, state.mean()


def share_issued(loop):
    """How much of the time of a loop passes before it has issued its last step."""
    jax.block_until_ready(train_step(STATE, BATCH))
    begun = time.perf_counter()
    state = loop(STATE)
    issued = time.perf_counter() - begun
    jax.block_until_ready(state)
    return issued / (time.perf_counter() - begun)


def bad_JAX707():
    def loop(state):
        for _ in range(8):
            state, loss = train_step(state, BATCH)
            float(loss)
        return state

    return share_issued(loop) > 0.9


def good_JAX707():
    def loop(state):
        losses = []
        for _ in range(8):
            state, loss = train_step(state, BATCH)
            losses.append(loss)
        return state

    return share_issued(loop) > 0.9


def bad_JAX704():
    @jax.jit
    def positives(x):
        return jnp.nonzero(x > 0)[0]

    return positives(jnp.ones(4)).tolist()


def good_JAX704():
    @jax.jit
    def positives(x):
        return jnp.nonzero(x > 0, size=4)[0]

    return positives(jnp.ones(4)).tolist()


def bad_JAX705():
    @jax.jit
    def train_step(x):
        jax.debug.print("{}", x)
        return x + 1

    return "callback" in train_step.lower(jnp.ones(4)).as_text()


def good_JAX705():
    @jax.jit
    def train_step(x):
        return x + 1

    return "callback" in train_step.lower(jnp.ones(4)).as_text()


def bad_JAX702():
    from jax.experimental import host_callback

    return host_callback.id_print(np.ones(1))


def bad_JAX703():
    return jax.tree_map(abs, [1])


def run(name):
    try:
        return globals()[name]()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    print(json.dumps({name: run(name) for name in sys.argv[1:]}))
