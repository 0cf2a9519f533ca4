"""Packages that a program imports, read out of wheels of a pinned environment."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tpuctl.errors import BadManifestError
from tpuctl.lint.lint import lint_wheel
from tpuctl.lint.project import LintTarget
from tpuctl.lint.rules import LintBackend, Severity, load_rules

FILES = {
    "lab/attention.py": "import torch.nn.functional as F\n\ndef attend(q):\n"
    "    return F.scaled_dot_product_attention(q, q, q)\n",
    "lab/blocks.py": "import torch.nn.functional as F\nx = F.scaled_dot_product_attention\n",
    "lab/tests/test_a.py": "import torch\ntorch.cuda.set_device(0)\n",
    "lab/old.py": "print 1\n",
    "lab/data.bin": "import torch\ntorch.cuda.set_device(0)\n",
}


def test_each_rule_is_said_once_for_a_package_as_a_warning(tmp_path: Path) -> None:
    wheel = tmp_path / "lab-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    [found] = lint_wheel("lab 1.0", wheel, load_rules(), LintTarget(LintBackend.TORCH_XLA))
    assert (found.path, found.line, found.code) == ("lab 1.0/lab/attention.py", 4, "TPU302")
    assert found.severity is Severity.WARNING
    assert found.message.endswith("; 1 more in this package")


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lab.whl").write_text("no archive")
    with pytest.raises(BadManifestError, match=r"lab\.whl of lab 1 is no wheel"):
        lint_wheel("lab 1", tmp_path / "lab.whl", load_rules(), LintTarget())
