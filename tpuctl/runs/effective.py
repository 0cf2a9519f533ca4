"""Effective variables: with what programs were started, whoever set it, for manifests. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.lib.text import fold_workers
from tpuctl.model.secret_patterns import MASK, SecretPatterns

EFFECTIVE = (
    "XLA_", "LIBTPU_", "JAX_", "PJRT_", "TPU_", "MEGASCALE_", "PT_XLA_", "TORCH_", "HF_", "TF_CPP_",
    "OMP_", "LD_PRELOAD", "PYTHONHASHSEED",
)  # fmt: skip
"""How variables begin that manifests have as the program saw them: those that steer compilers, devices and
loaders, whoever set them."""


def effective_rows(
    seen: Mapping[int, Mapping[str, str]], patterns: SecretPatterns
) -> tuple[Mapping[str, str], ...]:
    """A row for each variable and value, with the workers that have it. What looks like a secret is masked."""
    workers: dict[tuple[str, str], list[int]] = {}
    for worker, variables in sorted(seen.items()):
        for name, value in variables.items():
            shown = MASK if patterns.find_named(name, value) else value
            workers.setdefault((name, shown), []).append(worker)
    return tuple(
        {"name": name, "value": value, "workers": fold_workers(having)}
        for (name, value), having in sorted(workers.items())
    )
