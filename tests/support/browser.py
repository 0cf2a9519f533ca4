"""A real Chromium without a window, spoken to over pipes (chromedevtools.github.io/devtools-protocol)."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.require import require_tool

AXE = "4.14.1"
ANSWER_S = 60.0
"""A busy machine starts a browser in ten seconds."""


class Page:
    """One tab. `problems` are messages in the console, exceptions, what its policy refused; `requests` every
    address it asked for, its own first."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.problems: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, params, self._session)

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, file: Path, *, width: int, dark: bool) -> None:
        """Shows a file as on a screen of this width, and waits until it is there."""
        self.visit(file.as_uri(), width=width, dark=dark)

    def visit(self, url: str, *, width: int, dark: bool, becomes: str = "") -> None:
        """The same of an address; it `becomes` another where that redirects."""
        self.problems.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + ANSWER_S
        while self.evaluate("document.URL + document.readyState") != f"{becomes or url}complete":
            assert time.monotonic() < deadline, "the page does not load"
            time.sleep(0.05)

    def screenshot(self, to: Path) -> None:
        """All of the page, as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        to.write_bytes(base64.b64decode(found["data"]))

    def hear(self, event: Mapping[str, Any]) -> None:
        params = event.get("params", {})
        match event["method"]:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params))
            case "Log.entryAdded":
                self.problems.append(params["entry"]["text"])


class Browser:
    """Sends commands and reads answers; events go to the one page."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._buffer, self._last = write, read, b"", 0
        self.page: Page | None = None

    def call(self, method: str, params: Mapping[str, Any], session: str | None = None) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            found = self._next(deadline)
            if found.get("id") == self._last:
                assert "error" not in found, found
                return dict(found["result"])
            if "method" in found and self.page is not None:
                self.page.hear(found)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def open_browser() -> Iterator[Page]:
    """A tab of a browser of its own, with an empty profile and no network of its own making. Skips, by name,
    where there is no Chromium."""
    program = require_tool("chromium")
    profile = tempfile.mkdtemp(prefix="tpuctl-browser-")
    pipes = [os.pipe(), os.pipe()]
    theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (pipes[0][0], pipes[1][1])]

    def at_3_and_4() -> None:
        os.dup2(theirs[0], 3)
        os.dup2(theirs[1], 4)

    flags = (
        "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
        f"--user-data-dir={profile}",
    )  # fmt: skip
    process = subprocess.Popen(
        [program, *flags],
        preexec_fn=at_3_and_4,
        pass_fds=(3, 4),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": profile},
    )
    for fd in (pipes[0][0], pipes[1][1], *theirs):
        os.close(fd)
    browser = Browser(pipes[0][1], pipes[1][0])
    try:
        target = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = browser.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        browser.page = Page(browser, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            browser.page.call(f"{domain}.enable")
        yield browser.page
    finally:
        process.terminate()
        try:
            process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for fd in (pipes[0][1], pipes[1][0]):
            os.close(fd)
        shutil.rmtree(profile, ignore_errors=True)


def find_violations(page: Page) -> list[list[str]]:
    """What axe-core finds on the page that is open, each with the first element that has it."""
    page.evaluate(f"{_read_axe()}; 0")
    each = "[each.id, each.impact, each.nodes[0].html.slice(0, 200)]"
    expression = f"axe.run().then((found) => found.violations.map((each) => {each}))"
    found = page.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
    return list(found["result"]["value"])


def _read_axe() -> str:
    """Deque's judge of accessible pages, as npm has it."""
    kept = Path.home() / ".cache" / "tpuctl-tests" / f"axe-core-{AXE}.js"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as work:
            words = [require_tool("npm"), "pack", "--silent", f"axe-core@{AXE}"]
            if subprocess.run(words, cwd=work, check=False, timeout=120, stdout=subprocess.DEVNULL).returncode:
                pytest.skip("needs npm's registry, which does not answer here")
            with tarfile.open(next(Path(work).glob("axe-core-*.tgz"))) as archive:
                source = archive.extractfile("package/axe.min.js")
                assert source is not None
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(source.read())
    return kept.read_text()
