import os
import subprocess

import jax

os.environ["JAX_PLATFORMS"] = "cpu"
subprocess.run(["python", "-c", "import jax"], check=True)
