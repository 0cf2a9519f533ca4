"""Runs the checks of a script one by one and prints what came of each, a JSON object on a line.

Scripts run in the client's own virtual environment, where nothing of tpuctl is.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback

BUCKET = os.environ.get("CONFORMANCE_BUCKET", "sim-bucket")
WORK = os.environ.get("CONFORMANCE_WORK") or tempfile.mkdtemp()
ENDPOINT = os.environ.get("STORAGE_EMULATOR_HOST", "")
_CHECKS = []


def check(function):
    """A check: it fails by raising; what it returns is the detail. Its docstring is its name."""
    _CHECKS.append(function)
    return function


def raises(kind, function, *args, **kwargs):
    """The exception of that kind (or with that text) that the call must raise."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        if isinstance(kind, str) and kind in str(error):
            return error
        if not isinstance(kind, str) and isinstance(error, kind):
            return error
        raise
    raise AssertionError(f"nothing was raised, {kind} expected")


def sim(*words):
    """Has the simulator do something: `tpuctl sim …`."""
    subprocess.run([os.environ["CONFORMANCE_TPUCTL"], "sim", *words], check=True, capture_output=True)


def main():
    wanted = sys.argv[1:]
    for function in _CHECKS:
        if wanted and function.__name__ not in wanted:
            continue
        started, ok = time.monotonic(), True
        try:
            detail = function()
        except Exception as error:  # noqa: BLE001 - any exception is a failed check
            ok, detail = False, f"{type(error).__name__}: {error}"
            traceback.print_exc()
        spent = f"{time.monotonic() - started:.1f} s"
        name = (function.__doc__ or function.__name__).strip()
        row = {"name": name, "ok": ok, "detail": str(detail or spent)[:500]}
        print(json.dumps(row), flush=True)
