import jax
import jax.numpy as jnp
from jax.config import config  # here

tree = jax.tree_map(jnp.sin, {"a": 1.0})  # here
spread = jax.device_put_replicated(tree, jax.devices())  # here
