import os

os.environ["JAX_ENABLE_X64"] = "1"
import jax

os.environ["XLA_FLAGS"] = "--xla_dump_to=/tmp/dump"
jax.config.update("jax_log_compiles", True)
