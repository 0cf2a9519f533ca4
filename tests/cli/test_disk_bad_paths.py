"""Places at which no host may have a disk: refused before anything changes, whichever command names them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.session import Session, open_session

ZONE = "us-central2-b"
UP = ("--spot", "--pay", "--zone", ZONE)
PLACES = ["data", "/mnt/../etc", "/mnt/x\ny", "/usr/local/x"]
"""Which others there are, tests/lib/test_mount_paths.py knows."""
TAKEN = ["/mnt/taken", "/mnt/taken/below"]
"""Those of another disk of the slice."""
COMMANDS = {
    "attach": ("disk", "attach", "data", "--to", "dev", "--path", "{path}"),
    "mount": ("disk", "mount", "bare", "--to", "dev", "--path", "{path}"),
    "clone": ("disk", "clone", "data", "--to", "dev", "--path", "{path}"),
    "up": ("up", "v4-8", "dev", "--disk", "data:{path}", *UP),
    "apply": ("apply", "--yes"),
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Mounting needs other hosts: what a disk has is written down all the same, before."""
    with open_session() as made:
        for name in ("taken", "data", "bare"):
            made.type("disk", "create", name, "--size", "10", "--zone", ZONE)
        made.type("up", "v4-8", "dev", *UP)
        made.type("disk", "attach", "bare", "--to", "dev", "--no-mount")
        made.type("up", "v4-8", "dev", *UP, "--disk", "taken:/mnt/taken", status=1)
        yield made


@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_cannot_be_is_refused_before_anything_changes(session: Session, command: str) -> None:
    before = (len(session.sim_journal()), session.json("disk", "ls"), session.json("status", "dev")["options"])
    # A clone for a slice whose hosts are not ready is refused for that.
    for path in PLACES if command == "clone" else [*PLACES, *TAKEN]:
        words = tuple(word.replace("{path}", path) for word in COMMANDS[command])
        if command == "apply":
            slice_ = {
                "accelerator": "v4-8",
                "disk": [f"data:{path}"],
                "tier": "spot",
                "zone": ZONE,
                "pay": True,
            }
            fleet = {"fleet": {"name": "lab", "slices": {"dev": slice_}}}
            (session.work / "tpuctl.yaml").write_text(json.dumps(fleet))
        done = session.type(*words, status=2)
        said = " ".join(done.stderr.split())
        assert any(each in said for each in ("is no place for a disk", "is not NAME", "disk taken is at")), said
        assert "hint: " in said
        assert "Traceback" not in said
    after = (len(session.sim_journal()), session.json("disk", "ls"), session.json("status", "dev")["options"])
    assert after == before
