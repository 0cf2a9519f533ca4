"""The tpuctl that runs now as a wheel: another machine gets this very version, and nothing from an index.

The same files make the same bytes. Format:
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib import metadata

from tpuctl.model.shipped_files import read_package

NAME = "tpuctl"


def build_wheel() -> tuple[str, bytes]:
    """File name and content."""
    found = metadata.distribution(NAME)
    info = f"{NAME}-{found.version}.dist-info"
    requires = [line for line in found.requires or [] if "extra ==" not in line]
    head = [
        "Metadata-Version: 2.1",
        f"Name: {NAME}",
        f"Version: {found.version}",
        f"Requires-Python: {found.metadata['Requires-Python']}",
        *(f"Requires-Dist: {line}" for line in requires),
    ]
    files = {
        **read_package(),
        f"{info}/METADATA": _lines(head),
        f"{info}/WHEEL": _lines(
            ["Wheel-Version: 1.0", "Generator: tpuctl", "Root-Is-Purelib: true", "Tag: py3-none-any"]
        ),
        f"{info}/entry_points.txt": _lines(["[console_scripts]", "tpuctl = tpuctl.cli.main:main"]),
    }
    record = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = _lines([*record, f"{info}/RECORD,,"])
    return f"{NAME}-{found.version}-py3-none-any.whl", _zip(files)


def _zip(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            bundle.writestr(entry, content)
    return packed.getvalue()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _lines(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()
