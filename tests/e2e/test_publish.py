"""`tpuctl ui --publish` as processes: killed, two at once, by passes; and what a browser makes of a copy."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import requests

from tests.support.browser import find_violations, open_browser
from tests.support.session import Session, open_session

pytestmark = pytest.mark.slow
BUCKET, FOLDER = "sim-bucket", "pages"
PUBLISH = ("ui", "--publish", f"gs://{BUCKET}/{FOLDER}")
HOSTILE = "<script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.type("up", "v4-8", "big", "--spot", "--pay")
        words = ("run", "--on", "big", "--no-checkpoint", "--name", "bad", "--max-failures", "0")
        session.type(*words, "--", "sh", "-c", 'printf "%s\\n" "$0"; exit 3', HOSTILE, status=None)
        yield session


def read_page(session: Session, name: str) -> str | None:
    """As a person who may read the bucket; None where there is no such page."""
    info = session.sim()
    url = f"{info.http}/storage/v1/b/{BUCKET}/o/{quote(f'{FOLDER}/{name}', safe='')}?alt=media"
    answer = requests.get(url, headers={"Authorization": f"Bearer {info.token}"}, timeout=60)
    return None if answer.status_code == 404 else answer.content.decode()


def read_site(session: Session) -> dict[str, str]:
    """Every page from the index on; nothing before there is an index. Fails where a link leads to nothing."""
    pages: dict[str, str] = {}
    due = ["index.html"] if read_page(session, "index.html") is not None else []
    while due:
        name = due.pop()
        if name not in pages:
            page = read_page(session, name)
            assert page is not None, f"a link leads to {name}, which is not there"
            pages[name] = page
            due += re.findall(r'href="([^"#:]+\.html)"', page)
    return pages


def test_a_copy_opens_in_a_browser_and_its_links_lead_on(session, tmp_path):
    session.type(*PUBLISH)
    for name, page in read_site(session).items():
        (tmp_path / name).write_text(page)
    with open_browser() as browser:
        for name in sorted(each.name for each in tmp_path.iterdir()):
            for width, dark in ((400, True), (1280, False)):
                browser.open(tmp_path / name, width=width, dark=dark)
                assert browser.problems == []
                assert all(each.startswith(("file:", "data:")) for each in browser.requests)
                assert browser.evaluate("document.title").endswith("· tpuctl"), name
                assert browser.evaluate("document.documentElement.scrollWidth") <= width, name
        browser.open(tmp_path / "index.html", width=1280, dark=False)
        links = browser.evaluate("[...document.links].map((each) => each.href)")
        assert {Path(each).name for each in links} >= {"runs.html", "money.html", "slice-big.html"}
        browser.open(tmp_path / "run-bad.html", width=1280, dark=False)
        assert HOSTILE[:8] in browser.evaluate("document.body.innerText")
        browser.open(tmp_path / "slice-big.html", width=1280, dark=False)
        assert "ready" in browser.evaluate("document.querySelector('figure svg').ariaLabel")


@pytest.mark.long
def test_every_published_page_is_accessible(session, tmp_path):
    session.type(*PUBLISH)
    with open_browser() as browser:
        for name, page in read_site(session).items():
            (tmp_path / name).write_text(page)
            for width, dark in ((400, True), (1280, False)):
                browser.open(tmp_path / name, width=width, dark=dark)
                assert find_violations(browser) == [], (name, width)


def test_passes_publish_and_go_on_where_they_cannot(session):
    session.environ["TPUCTL_PUBLISH"] = f"gs://{BUCKET}/{FOLDER}"
    session.type("watch", "once", status=None)
    assert "written" in (read_page(session, "index.html") or "")
    session.environ["TPUCTL_PUBLISH"] = "gs://no-such-bucket/pages"
    session.type("watch", "once", status=None)
    assert "publish: there is no bucket gs://no-such-bucket" in session.type("watch", "status").stderr
    del session.environ["TPUCTL_PUBLISH"]
    told = session.type("watch", "install", "--publish", f"gs://{BUCKET}/x", "--dry-run", status=None).stdout
    assert f"export TPUCTL_PUBLISH=gs://{BUCKET}/x" in told.replace("'", "")


def test_a_pass_is_told_before_it_publishes_and_whatever_happens_there(session):
    """It is killed at its first change, which is its heartbeat; then a folder where a log should be is a defect
    that pages do not expect."""
    session.environ["TPUCTL_PUBLISH"] = f"gs://{BUCKET}/{FOLDER}"
    session.type("watch", "once", status=None)
    passes = passes_of(session)
    assert session.type_killed(1, "after", "watch", "once", "--every", "5").returncode == -signal.SIGKILL
    assert passes_of(session) == passes + 1
    folder = session.root / "state" / "sim" / "sim-project" / "runs" / "bad" / "1"
    log = folder / "worker-0.stdout.log"
    log.rename(folder / "away")
    log.mkdir()
    session.type("watch", "once", status=None, later_s=120.0)
    log.rmdir()
    (folder / "away").rename(log)
    del session.environ["TPUCTL_PUBLISH"]
    assert passes_of(session) == passes + 2
    assert "publish: a defect of tpuctl: IsADirectoryError" in session.type("watch", "status").stderr.replace(
        "\n", " "
    )
    logs = (session.root / "state" / "sim" / "sim-project" / "logs").glob("*.log")
    assert any("Traceback" in each.read_text() and "IsADirectoryError" in each.read_text() for each in logs)


def passes_of(session: Session) -> int:
    return sum(beat["passes"] for beat in session.json("watch", "status")["watchdogs"])


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--publish", "s3://bucket/x"), 2, "is not a bucket prefix"),
        (("--publish", "gs://my-bucket/../x"), 2, "pages cannot be at"),
        (("--publish", "gs://no-such-bucket/x"), 5, "there is no bucket gs://no-such-bucket"),
        (("--publish", f"gs://{BUCKET}/x", "--port", "8700"), 2, "--publish serves nothing"),
        (("--dry-run",), 2, "--dry-run goes with --publish"),
    ],
)
def test_what_cannot_be_is_one_line(session, words, status, said):
    refused = session.type("ui", *words, status=status)
    assert said in refused.stderr.replace("\n", " ")
    assert len([line for line in refused.stderr.splitlines() if line.startswith("error:")]) == 1


def test_a_bucket_that_everybody_can_read_is_a_warning(session):
    policy = {"bindings": [{"role": "roles/storage.objectViewer", "members": ["allUsers"]}]}
    session.ask("PUT", f"/storage/v1/b/{BUCKET}/iam", policy)
    told = session.type("ui", "--publish", f"gs://{BUCKET}/{FOLDER}", "--dry-run")
    assert "anybody on the internet can read the pages" in told.stderr.replace("\n", " ")
    assert "--public-access-prevention" in told.stderr
    assert "would write:" in told.stdout
