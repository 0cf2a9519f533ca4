"""Makes `docs/pictures/report.png`: the report of a run that was preempted once, as a browser shows it.

`python -m tests.docs.picture`, by hand where the page or the prices have changed: no two runs take the same
time.
"""

from __future__ import annotations

import base64
import time

from tests.support.browser import open_browser
from tests.support.jax_python import VARIABLES, jax_python
from tests.support.session import ROOT, Session, open_session

FILE = ROOT / "docs" / "pictures" / "report.png"
WIDTH, HEIGHT = 1000, 860
STEPS = ("--var", "STEPS=200", "--var", "CHECKPOINT_EVERY=40", "--var", "STEP_SECONDS=0.1")
PACE = ("--speed", "8")


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


def main() -> None:
    with open_session(*PACE) as session, open_browser() as page:
        train_disturbed(session)
        session.type("report", "disturbed", "-o", "report.html")
        page.open(session.work / "report.html", width=WIDTH, dark=False)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
        FILE.write_bytes(base64.b64decode(page.call("Page.captureScreenshot", format="png", clip=clip)["data"]))


if __name__ == "__main__":
    main()
