"""What `tpuctl fits` compiles: the step of a training program, its arguments without their contents, and how
they are sharded. Nothing is allocated, so any size will do.

    tpuctl fits FILE --for v5e-8,v6e-8,v4-32 --mesh data=*
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, BATCH = 8, 4096, 512


def init(key):
    """Parameters; only their shapes are asked for."""
    shape = (LAYERS, WIDTH, WIDTH)
    return {"layers": jax.random.normal(key, shape, jnp.bfloat16) * WIDTH**-0.5}


def loss(params, batch):
    def layer(x, weights):
        return jax.nn.relu(x @ weights), None

    x, _ = jax.lax.scan(jax.checkpoint(layer), batch, params["layers"])
    return (x.astype(jnp.float32) ** 2).mean()


@partial(jax.jit, donate_argnums=0)  # else old and new parameters are in memory together
def train_step(params, batch):
    value, gradients = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), value


def step():
    """(the step, its arguments, their shardings by the axes of --mesh).

    `tpuctl fits --new FILE --library optax`, `nnx` or `maxtext` shows the same with their states.
    """
    params = jax.eval_shape(init, jax.random.key(0))
    batch = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.bfloat16)
    # One sharding for a whole argument, or a tree like it. P() is a copy on every device.
    return train_step, (params, batch), ({"layers": P(None, None, "data")}, P("data"))
