"""`python -m tests.preflight.measure [FUNCTION:TYPE …]`: compiles steps, and writes docs/develop/fits.md.

A row is written when it is there, and others stay: each takes about 15 s of a processor.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.support.jax_python import flax_packages, tpu_jax
from tests.support.session import ROOT
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.preflight.fits import Fit, StepFunction, compile_for, gib
from tpuctl.preflight.local_env import LocalPython
from tpuctl.preflight.topologies import find_topology, mesh_for, parse_mesh

PAGE = ROOT / "docs" / "develop" / "fits.md"
DECODER = ROOT / "tests" / "data" / "preflight" / "decoder.py"
TYPES = ("v4-8", "v5e-8", "v5p-8", "v6e-1", "v6e-8", "v6e-16", "v6e-256", "tpu7x-8")
CASES = {
    **{f"step:{each}": "" for each in TYPES},
    "unrolled:v6e-8": "",
    "too_large:v5e-8": "",
    "indivisible:v6e-8": "data=4,model=2",
    "fits_optax:v6e-8": "",
    "fits_nnx:v6e-8": "",
    "fits_maxtext:v6e-8": "fsdp=*,tensor=2",
}
"""Functions of decoder.py, and files of `templates/`; with the mesh."""
TIMEOUT_S = 3000.0
"""A machine that has much else to do takes ten minutes for one."""


def measure(case: str) -> Fit:
    name, _, type_ = case.partition(":")
    template = ROOT / "templates" / f"{name}.py"
    packages = {"PYTHONPATH": str(flax_packages())} if template.exists() else {}
    step = StepFunction(template, "step") if template.exists() else StepFunction(DECODER, name)
    topology, mesh = find_topology(load_accelerators(), type_), CASES[case]
    axes = mesh_for(parse_mesh(mesh) if mesh else {}, topology)
    return compile_for(step, topology, axes, LocalPython(tpu_jax(), packages), {}, TIMEOUT_S)


def row(case: str, fit: Fit) -> str:
    peak = f"{gib(fit.peak_bytes)} of {gib(fit.hbm_bytes)} GiB" if fit.peak_bytes else fit.problem
    flops = f"{fit.flops / 1e12:.3f}" if fit.flops else ""
    memory = f"{gib(fit.rss_bytes)}" if fit.rss_bytes else ""
    named = case.replace(":", "` | ")
    return f"| `{named} | {fit.devices} | {peak} | {flops} | {fit.cpu_s or 0:.0f} | {memory} |"


def write(page: Path, case: str, line: str) -> None:
    """In the order of CASES, in place of an older row."""
    text = page.read_text(encoding="utf-8")
    found = {f"{each[1]}:{each[2]}": each[0] for each in re.finditer(r"^\| `(\w+)` \| (\S+) \|.*$", text, re.M)}
    found[case] = line
    begin = text.index("|---")
    head = text[: text.index("\n", begin) + 1]
    tail = text[text.index("\n\n", begin) :]
    rows = "\n".join(found[each] for each in CASES if each in found)
    page.write_text(f"{head}{rows}{tail}", encoding="utf-8")


def main() -> None:
    for case in sys.argv[1:] or CASES:
        write(PAGE, case, row(case, measure(case)))


if __name__ == "__main__":
    main()
