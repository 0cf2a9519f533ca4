import jax
from jax.experimental import multihost_utils


def save(state):
    if jax.process_index() == 0:
        multihost_utils.sync_global_devices("saved")  # here
