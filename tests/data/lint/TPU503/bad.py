import os

os.environ["XLA_FLAGS"] = "--xla_tpu_enable_latency_hiding_scheduler=true"  # here
import jax

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --megascale_verify_checksums=true"  # here
