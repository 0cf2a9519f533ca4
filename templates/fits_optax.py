"""What `tpuctl fits` compiles: a step with an optimizer of Optax, whose state is sharded as the parameters are.

tpuctl fits FILE --for v5e-8,v6e-8,v4-32 --mesh data=*
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, BATCH = 8, 4096, 512
SHARDED = {"layers": P(None, None, "data"), "scale": P()}


def init(key):
    """Parameters; only their shapes are asked for."""
    shape = (LAYERS, WIDTH, WIDTH)
    return {"layers": jax.random.normal(key, shape, jnp.bfloat16) * WIDTH**-0.5, "scale": jnp.ones(WIDTH)}


def loss(params, batch):
    def layer(x, weights):
        return jax.nn.relu(x @ weights), None

    x, _ = jax.lax.scan(jax.checkpoint(layer), batch, params["layers"])
    return ((x * params["scale"]).astype(jnp.float32) ** 2).mean()


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4))


@partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, state, batch):
    value, gradients = jax.value_and_grad(loss)(params, batch)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def shardings_of(state, params):
    """Moments lie as their parameters do; counters are on every device."""
    return optax.tree_map_params(
        optimizer, lambda _, sharding: sharding, state, params, transform_non_params=lambda _: P()
    )


def step():
    """(the step, its arguments, their shardings by the axes of --mesh)."""
    params = jax.eval_shape(init, jax.random.key(0))
    state = jax.eval_shape(optimizer.init, params)
    batch = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.bfloat16)
    return train_step, (params, state, batch), (SHARDED, shardings_of(state, SHARDED), P("data"))
