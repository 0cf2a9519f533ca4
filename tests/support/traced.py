"""Runs tpuctl and writes down which functions it calls, each once, in the order of their first calls.

`python traced.py FILE ARGUMENTS` writes a JSON list of [file, function].
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any


def main() -> None:
    """As the console script does it."""
    del sys.path[0]  # what is beside this file hides modules of others
    out = Path(sys.argv.pop(1))
    from tpuctl.cli.main import main as run

    root = Path(sys.modules["tpuctl"].__path__[0]).parent
    calls: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            calls.setdefault((frame.f_code.co_filename, frame.f_code.co_name))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        seen = [(Path(file), name) for file, name in list(calls) if file.startswith(str(root))]
        out.write_text(json.dumps([(str(file.relative_to(root)), name) for file, name in seen]))


if __name__ == "__main__":
    main()
