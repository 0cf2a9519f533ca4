"""What `tpuctl fits` compiles: a model of Flax NNX with its nnx.Optimizer, sharded by what its parameters say.

tpuctl fits FILE --for v5e-8,v6e-8,v4-32 --mesh data=*
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, BATCH = 8, 4096, 512


class Block(nnx.Module):
    """Two products, with kernels that name the axes over which they are spread."""

    def __init__(self, rngs):
        draw = nnx.initializers.lecun_normal()
        out, back = (nnx.with_partitioning(draw, axes) for axes in ((None, "data"), ("data", None)))
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, kernel_init=out, param_dtype=jnp.bfloat16, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, kernel_init=back, param_dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.relu(self.up(x)))


class Model(nnx.Module):
    """A stack of blocks: compiled once, however many there are."""

    def __init__(self, rngs):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0, transform_metadata={nnx.PARTITION_NAME: None})
        def blocks(rngs):
            return Block(rngs)

        self.blocks = blocks(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, transform_metadata={nnx.PARTITION_NAME: None})
        @nnx.remat
        def layer(x, block):
            return block(x)

        return layer(x, self.blocks)


def new():
    """The model with its optimizer; only their shapes are asked for."""
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adamw(3e-4), wrt=nnx.Param)


def loss(model, batch):
    return (model(batch).astype(jnp.float32) ** 2).mean()


def step():
    """(the step, its arguments, their shardings by the axes of --mesh)."""
    graph, state = nnx.split(nnx.eval_shape(new))

    @partial(jax.jit, donate_argnums=0)
    def train_step(state, batch):
        model, optimizer = nnx.merge(graph, state)
        value, gradients = nnx.value_and_grad(loss)(model, batch)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    batch = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.bfloat16)
    return train_step, (state, batch), (nnx.get_partition_spec(state), P("data"))
