"""Runs a hook's command or calls its webhook. Commands get no shell, a time limit and a process group."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import requests

from tpuctl.config.hooks import Hook
from tpuctl.config.proxy import check_ping_url
from tpuctl.errors import UsageError
from tpuctl.lib.input_files import read_text
from tpuctl.model.timeouts import PING_TIMEOUT_S

MAX_OUTPUT = 4096
"""Bytes of a command's output that go into the log."""


def send_event(hook: Hook, event: Mapping[str, Any], log: Callable[[str], None]) -> str:
    """Tells one hook; trouble in words, or an empty string. Output of commands goes to `log`."""
    body = json.dumps(event, ensure_ascii=False).encode()
    if hook.command:
        return _run(hook, event, body, log)
    try:
        url = hook.webhook or _read_url(hook.webhook_file or "")
    except (OSError, UsageError) as error:
        return f"webhook_file cannot be used: {getattr(error, 'strerror', None) or error}"
    return call_url(url, hook.timeout_s, body)


def unusable(hook: Hook) -> str:
    """Why `send_event` could not reach anything, found without sending; empty where it may."""
    if hook.command:
        program = Path(hook.command[0]).expanduser()
        return "" if shutil.which(program) else f"there is no program {program}"
    if hook.webhook_file:
        try:
            _read_url(hook.webhook_file)
        except (OSError, UsageError) as error:
            return f"webhook_file cannot be used: {getattr(error, 'strerror', None) or error}"
    return ""


def _read_url(path: str) -> str:
    return check_ping_url(read_text(Path(path).expanduser()).strip())


def _run(hook: Hook, event: Mapping[str, Any], body: bytes, log: Callable[[str], None]) -> str:
    """Input and output are files, so that a command that reads nothing or leaves a daemon behind holds nobody
    up."""
    variables = {
        "TPUCTL_EVENT": str(event["event"]),
        "TPUCTL_EVENT_ID": str(event["id"]),
        "TPUCTL_SUBJECT": str(event["name"]),
    }
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as output:
        stdin.write(body)
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                hook.command,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        except OSError as error:
            return f"{hook.command[0]}: {error.strerror}"
        try:
            status: int | None = process.wait(hook.timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
        output.seek(0)
        written = output.read(MAX_OUTPUT).decode(errors="replace")
    for line in written.splitlines():
        log(f"- hook {hook.name}: {line}")
    if status is None:
        return f"{hook.command[0]} took longer than {hook.timeout_s:.0f} s and was killed"
    return f"{hook.command[0]} ended with {status}" if status else ""


def ping(url: str) -> str:
    """Calls `url`, which `check_ping_url` accepted; trouble in words, or an empty string."""
    trouble = call_url(url, PING_TIMEOUT_S)
    return f"ping: {trouble}" if trouble else ""


def call_url(url: str, timeout_s: float, body: bytes | None = None) -> str:
    """Gets `url`, or posts JSON to it, and returns trouble in words, empty for a success. The words are without
    the URL, which may be a secret. The proxies of the environment are used.

    It takes no longer than `timeout_s` as a whole. A timeout of requests bounds each read, and a server that
    sends a byte now and then outlasts it: its thread is left behind.
    """
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=lambda: found.put(_call(url, timeout_s, body)), daemon=True).start()
    try:
        return found.get(timeout=timeout_s)
    except queue.Empty:
        return "timed out"


def _call(url: str, timeout_s: float, body: bytes | None) -> str:
    headers = {"User-Agent": "tpuctl"} | ({} if body is None else {"Content-Type": "application/json"})
    try:
        # What was checked is what is called: a redirect could lead to a plain http address.
        answer = requests.request(
            "GET" if body is None else "POST",
            url,
            data=body,
            headers=headers,
            timeout=timeout_s,
            allow_redirects=False,
            stream=True,
            auth=lambda request: request,  # not that of ~/.netrc
        )
    except requests.Timeout:
        return "timed out"
    except (requests.RequestException, ValueError) as error:
        return _root_of(error)
    answer.close()
    return "" if 200 <= answer.status_code < 300 else f"the answer was {answer.status_code}"


def _root_of(error: BaseException) -> str:
    """What lies below the layers of requests, whose words have the URL."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError) else type(error).__name__
