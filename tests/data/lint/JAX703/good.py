import jax
import jax.numpy as jnp
from jax import config, tree_util

tree = jax.tree.map(jnp.sin, {"a": 1.0})
tree = tree_util.tree_map(jnp.sin, tree)
if hasattr(jax, "tree_map"):
    tree = jax.tree_map(jnp.sin, tree)


def own(jax):
    return jax.tree_map
