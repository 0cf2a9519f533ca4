import os

os.environ["LIBTPU_INIT_ARGS"] = "--xla_tpu_enable_latency_hiding_scheduler=true"
os.environ["XLA_FLAGS"] = "--xla_dump_to=/tmp/dump"
import jax
