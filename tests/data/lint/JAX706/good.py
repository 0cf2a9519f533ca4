import jax
from jax.experimental import multihost_utils


def save(state, write):
    if jax.process_index() == 0:
        write(state)
    multihost_utils.sync_global_devices("saved")
