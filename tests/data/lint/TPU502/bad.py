import os

import jax

os.environ["JAX_ENABLE_X64"] = "1"  # here


def main():
    os.environ["JAX_PLATFORMS"] = "cpu"  # here
    print(jax.devices())
