"""Runs tpuctl and writes down which functions it calls, each once, in the order of their first calls.

`python traced.py FILE ARGUMENTS` writes a JSON list of [file, function]; with `--holding A,B` before
FILE, of those that are handed an object of the classes A or B.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any


def handed(frame: FrameType) -> list[Any]:
    """The arguments of a call that begins."""
    code = frame.f_code
    return [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]


def main() -> None:
    """As the console script does it."""
    del sys.path[0]  # what is beside this file hides modules of others
    classes = sys.argv.pop(1) and sys.argv.pop(1).split(",") if sys.argv[1] == "--holding" else []
    out = Path(sys.argv.pop(1))
    from tpuctl.cli.main import main as run

    root = Path(sys.modules["tpuctl"].__path__[0]).parent
    calls: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and (not classes or any(type(each).__name__ in classes for each in handed(frame))):
            calls.setdefault((code.co_filename, code.co_name))

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
