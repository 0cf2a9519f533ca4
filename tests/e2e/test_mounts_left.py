"""Bucket mounts at the end of their hosts, by the real gcsfuse: what programs have open is uploaded, or nothing
is deleted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.support.hosts import wait_until
from tests.support.require import require_gcsfuse, require_isolated_hosts
from tests.support.session import Session, open_session

PATH, SIZE = "/mnt/out", 20_000_000
UP = ("up", "v4-8", "--spot", "--pay", "--zone", "us-central2-b")
WRITER = f"""
import time
file = open("{PATH}/NAME", "wb")
file.write(bytes(range(250)) * {SIZE // 250})
file.flush()
open("/tmp/said", "w").close()
time.sleep(3600)
"""
SUM = hashlib.sha256(bytes(range(250)) * (SIZE // 250)).hexdigest()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    require_isolated_hosts()
    program = require_gcsfuse()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.environ["TPUCTL_GCSFUSE"] = program
        yield made


def begin(session: Session, name: str) -> None:
    """A slice whose host has 20 MB of an object open, of which the bucket has nothing yet."""
    session.type(*UP, name, "--mount", f"gs://sim-bucket/{name}:{PATH}:checkpoint")
    session.start("exec", name, "--", "python3", "-c", WRITER.replace("NAME", name))
    wait_until(lambda: "said" in session.type("exec", name, "--", "ls", "/tmp").stdout, 60.0)


def check_object(session: Session, name: str) -> None:
    """Read by another host."""
    session.type(*UP, "reader", "--mount", f"gs://sim-bucket/{name}:{PATH}:train")
    assert SUM in session.type("exec", "reader", "--", "sha256sum", f"{PATH}/{name}").stdout
    session.type("down", "reader", "--yes")


def test_what_a_program_has_open_is_in_the_bucket_after_down(session: Session) -> None:
    begin(session, "one")
    session.type("down", "one", "--yes")
    check_object(session, "one")


def test_mount_rm_names_who_has_it_open(session: Session) -> None:
    begin(session, "two")
    refused = " ".join(session.type("mount", "rm", PATH, "--on", "two", status=3).stderr.split())
    assert f"has {PATH}/two open" in refused
    assert "python" in refused
    assert session.json("mount", "ls")[0]["path"] == PATH
    session.type("down", "two", "--yes")
