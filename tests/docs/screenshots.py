"""Makes docs/pictures/*.png: pages of tpuctl as a browser shows them, of stories on the simulator.

`python -m tests.docs.screenshots [report] [ui]`, by hand where pages or prices have changed: no two runs take
the same time.
"""

from __future__ import annotations

import base64
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

from tests.support.browser import Page, open_browser
from tests.support.jax_python import VARIABLES, jax_python
from tests.support.session import ROOT, Session, open_session

FOLDER = ROOT / "docs" / "pictures"
PATIENCE_S = 600.0
LARGEST = 200_000
"""Bytes of a picture."""
STEPS = ("--var", "STEPS=200", "--var", "CHECKPOINT_EVERY=40", "--var", "STEP_SECONDS=0.1")
PACE = ("--speed", "8")
TRAIN = """\
import os, random, time
seed, last = int(os.environ.get("SEED", "1")), int(os.environ.get("STEPS", "400"))
chance = random.Random(seed)
for step in range(1, last + 1):
    loss = 1.9 + 9 / (step + 8) ** 0.4 + chance.gauss(0, 0.03)
    print(f"step {step}/{last} loss {loss:.4f} tokens/s {chance.gauss(412, 6):.1f}", flush=True)
    time.sleep(float(os.environ.get("PACE", "0.01")))
if seed == 3:
    raise ValueError("batch 412 has token id 50304, the embedding has 50304 rows")
"""
PROGRESS = r"step (?P<step>\d+)/(?P<steps>\d+) loss (?P<loss>[\d.]+) tokens/s (?P<tokens_per_s>[\d.]+)"


def train_disturbed(session: Session) -> None:
    """Two hosts; they are taken away between two checkpoints."""
    session.type("up", "v4-16", "--spot", "--pay")
    (session.work / "train.py").write_text((ROOT / "templates" / "demo_train.py").read_text())
    with jax_python() as python:
        options = ("--on", "v4-16", "--name", "disturbed", "--checkpoint-dir", "gs://sim-bucket/run1")
        words = ("run", *options, *VARIABLES, *STEPS, "--", str(python), "train.py")
        following = session.start(*words)
        while "step 110/200" not in session.type("logs", "disturbed", status=None).stdout:
            assert following.poll() is None, following.communicate()
            time.sleep(0.2)
        session.type("sim", "preempt", "v4-16-1")
        assert session.finish(following, 900).returncode == 0


def make_report() -> None:
    """The report of a run that was preempted once."""
    with open_session(*PACE) as session, open_browser() as page:
        train_disturbed(session)
        session.type("report", "disturbed", "-o", "report.html")
        page.open(session.work / "report.html", width=1000, dark=False)
        save(page, "report", 1000, 860)


def live_a_day(session: Session) -> None:
    """Slices in several states; a run that goes on after a preemption, one that failed, and a sweep."""
    session.environ.update(LOGNAME="ada", TPUCTL_USER="ada")
    (session.work / "train.py").write_text(TRAIN)
    for name, kind in (("big", "v4-32"), ("night", "v4-16"), ("bench", "v4-8")):
        session.type("up", kind, name, "--spot", "--pay")

    def run(slice_name: str, name: str, *options: str, status: int = 0, **variables: str) -> None:
        given = [word for key, value in variables.items() for word in ("--var", f"{key}={value}")]
        common = ("--on", slice_name, "--name", name, "--no-checkpoint", "--progress", PROGRESS)
        session.type("run", *common, *options, *given, "train.py", status=status)

    for seed in ("1", "2"):
        run("night", f"lr-{seed}e-4", "--group", "lr-sweep", SEED=seed)
    run("night", "lr-3e-4", "--group", "lr-sweep", "--max-failures", "0", status=1, SEED="3", STEPS="120")
    run("big", "pretrain-7b", "--detach", STEPS="40000", PACE="0.1")
    session.type("sim", "preempt", "big-1")
    trained = partial(session.json, "status", "pretrain-7b")
    session.watch_until(lambda: trained()["attempts"] == 2, within_s=PATIENCE_S)
    session.watch_until(
        lambda: any(number["low"] < 2.9 for number in trained()["metrics"]), within_s=PATIENCE_S
    )
    session.type("sim", "delay", "node_create=600")
    session.type("up", "v4-64", "next", "--spot", "--pay", "--queued", "--no-wait")
    session.type("sim", "preempt", "night-1")
    session.type("watch", "once")


def make_ui() -> None:
    """The pages of `tpuctl ui`."""
    with open_session() as session, open_browser() as page:
        live_a_day(session)
        process = session.start("ui", "--no-open")
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        base = address.partition("/?")[0]
        page.visit(address, becomes=f"{base}/", width=1280, dark=False)
        for name, path, width, height, dark in PICTURES:
            page.visit(base + path, width=width, dark=dark)
            wait(lambda: page.evaluate(WHOLE))
            hide_machine(page)
            save(page, f"ui-{name}", width, height)
        process.send_signal(signal.SIGINT)
        session.finish(process)


PICTURES = (
    ("fleet", "/", 1280, 760, False),
    ("runs", "/runs", 1280, 520, True),
    ("run", "/runs/pretrain-7b", 1280, 1000, False),
    ("log", "/runs/lr-3e-4/log", 1280, 820, False),
    ("slice", "/slices/big", 1280, 1160, True),
    ("phone", "/", 400, 800, True),
)
"""Name, path, size in pixels, and whether it is dark."""
WHOLE = (
    "!!document.querySelector('#content h1') && "
    "(document.getElementById('log-lines') ?? document.body).textContent != ''"
)


def wait(seen: Callable[[], bool], within_s: float = 120.0) -> None:
    end = time.monotonic() + within_s
    while not seen():
        assert time.monotonic() < end, "the page does not become what it should be"
        time.sleep(0.1)


def hide_machine(page: Page) -> None:
    """Gives this machine another name, also in what the page shows next."""
    page.evaluate(
        f"""(() => {{
          const put = () => {{
            const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            while (texts.nextNode())
              if (texts.currentNode.nodeValue === {json.dumps(socket.gethostname())})
                texts.currentNode.nodeValue = "workstation";
          }};
          put();
          new MutationObserver(put).observe(document.body, {{ childList: true, subtree: true }});
        }})()"""
    )


def save(page: Page, name: str, width: int, height: int) -> None:
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    found = page.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    content = base64.b64decode(found["data"])
    assert len(content) < LARGEST, f"{name} has {len(content)} bytes"
    (FOLDER / f"{name}.png").write_bytes(content)


STORIES: Mapping[str, Callable[[], None]] = {"report": make_report, "ui": make_ui}


def main() -> None:
    for name in sys.argv[1:] or STORIES:
        STORIES[name]()


if __name__ == "__main__":
    main()
