"""How long checkpoints and data take, as Orbax and Grain tell it on a Prometheus port of their process. Pure.

Names are those of their metrics with `_` for `/` (tpu-info 0.14.2, `tpu_info.metrics`), the form is that of
Prometheus' text ("Exposition formats").
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

DEFAULT_PORT = 9431
"""Of both, unless `ORBAX_PROMETHEUS_PORT` or `PYGRAIN_PROMETHEUS_PORT` says another one."""
FIGURES: Mapping[str, tuple[tuple[str, ...], float]] = {
    "checkpoint_s": (("jax_checkpoint_write_async_total_duration_secs",), 1.0),
    "checkpoint_blocks_s": (("jax_checkpoint_write_async_blocking_duration_secs",), 1.0),
    "since_checkpoint_s": (("jax_checkpoint_write_duration_since_last_checkpoint_secs",), 1.0),
    "data_wait_s": (("grain_python_dataset_next_duration_ns",), 1e-9),
}
"""What is told of a program → the metrics that may say it, and what makes seconds of them."""
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{[^}]*\})?\s+(\S+)")


def parse_figures(text: str) -> dict[str, float]:
    """Of those of `FIGURES` that are there: the mean of a histogram or summary, whatever its labels; the value
    of a gauge. Lines that are none are passed over."""
    totals: dict[str, float] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        value = _number(found[2]) if found is not None else None
        if found is not None and value is not None:
            totals[found[1]] = totals.get(found[1], 0.0) + value
    told = {}
    for figure, (names, scale) in FIGURES.items():
        for name in names:
            count = totals.get(f"{name}_count")
            value = (
                totals.get(name) if count is None else totals.get(f"{name}_sum", 0.0) / count if count else None
            )
            if value is not None:
                told[figure] = value * scale
    return told


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
