"""A small decoder without attention, and steps with one fault each; the line with the fault says its name."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, HIDDEN, BATCH, LENGTH = 4, 512, 2048, 32, 256


def shapes(hidden=HIDDEN, width=WIDTH):
    up, down = (LAYERS, width, hidden), (LAYERS, hidden, width)
    return {name: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for name, shape in (("up", up), ("down", down))}


def layer(x, weights):
    return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"]


def loss(params, batch, scan=True):
    once = jax.checkpoint(layer)
    if scan:
        batch, _ = jax.lax.scan(lambda x, weights: (once(x, weights), None), batch, params)
    else:
        for i in range(LAYERS):
            batch = once(batch, {name: leaf[i] for name, leaf in params.items()})
    return (batch.astype(jnp.float32) ** 2).mean()


def training(scan=True):
    def train_step(params, batch):
        # The batch's, too, as for a table of embeddings: a scan computes it for each layer, needed or not.
        gradients, of_batch = jax.grad(loss, (0, 1))(params, batch, scan)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), of_batch.max()

    return train_step


def batch(width=WIDTH):
    return jax.ShapeDtypeStruct((BATCH, LENGTH, width), jnp.bfloat16)


SHARDED = {"up": P(None, None, "data"), "down": P(None, "data", None)}


def step():
    return jax.jit(training(), donate_argnums=0), (shapes(), batch()), (SHARDED, P("data") if large() else P())


def large():
    """Whether the batch divides: not by the 256 devices of a v6e-256."""
    mesh = jax.sharding.get_abstract_mesh()
    return BATCH % mesh.shape.get("data", 1) == 0


def unrolled():
    return jax.jit(training(scan=False), donate_argnums=0), (shapes(), batch()), (SHARDED, P("data"))


def too_large():
    whole = {"up": P(), "down": P()}
    return jax.jit(training(), donate_argnums=0), (shapes(1 << 16, 1 << 14), batch(1 << 14)), (whole, P())


def not_donated():
    return training(), (shapes(1 << 16, 1 << 13), batch(1 << 13)), (SHARDED, P("data"))


def indivisible():  # indivisible
    return training(), (shapes(2049), batch()), ({"up": P(None, None, "model"), "down": P()}, P())


def two_things():  # two_things
    return training(), (shapes(), batch())


def wrong_axis():  # wrong_axis
    return training(), (shapes(), batch()), (P(), P("modle"))


def inside():
    def constrained(params, batch):
        return jax.lax.with_sharding_constraint(batch, P("nope"))  # inside

    return constrained, (shapes(), batch()), (P(), P())


def raises():
    raise RuntimeError("no such data set")  # raises


def no_shape():  # no_shape
    def train_step(params, batch):
        return batch

    return train_step, (shapes(), 3), (P(), P())
