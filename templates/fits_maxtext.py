"""What `tpuctl fits` compiles: a train state as MaxText's. Parameters of Flax Linen name logical axes, and
rules say over which axes of the mesh these are spread.

    tpuctl fits FILE --for v5e-8,v6e-8,v4-32 --mesh fsdp=*,tensor=2
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, BATCH = 8, 4096, 512
RULES = (("batch", "fsdp"), ("embed", "fsdp"), ("mlp", "tensor"), ("layers", None))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        draw = nn.initializers.lecun_normal()
        up = self.param("up", nn.with_logical_partitioning(draw, ("embed", "mlp")), (WIDTH, 4 * WIDTH))
        down = self.param("down", nn.with_logical_partitioning(draw, ("mlp", "embed")), (4 * WIDTH, WIDTH))
        hidden = nn.relu(x @ up.astype(x.dtype))
        return x + hidden @ down.astype(x.dtype), None


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        layers = nn.scan(
            nn.remat(Block, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return layers()(x, None)[0]


def new_state(key, batch):
    """The train state; only its shapes are asked for."""
    model = Model()
    params = model.init(key, batch)["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(3e-4))


@partial(jax.jit, donate_argnums=0)
def train_step(state, batch):
    def loss(params):
        return (state.apply_fn({"params": params}, batch).astype(jnp.float32) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), value


def step():
    """(the step, its arguments, their shardings by the axes of --mesh)."""
    batch = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.bfloat16)
    state = jax.eval_shape(new_state, jax.random.key(0), batch)
    shardings = nn.logical_to_mesh(nn.get_partition_spec(state), RULES)
    return train_step, (nn.unbox(state), batch), (shardings, P("fsdp"))
