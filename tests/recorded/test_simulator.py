"""The simulator's answers beside those of Google's servers to the same requests.

Compared are status codes, keys that are there and keys that are not, types, the spelling of enums, and the form
of names, times and addresses. What differs on purpose stands in `differences.yaml` with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.recorded.compare import Difference, differences
from tests.recorded.stories import Exchange, Story, stories
from tests.support.sim import RunningSim, running_sim
from tests.support.yaml_files import read_yaml
from tpuctl.sim.world.delays import Delays

DIFFERENCES = read_yaml(Path(__file__).parent / "differences.yaml")
PRESENT_HEADERS = ("X-Goog-", "Location", "Content-Disposition", "ETag")


@dataclass
class Played:
    """One story asked of the simulator. `swaps` turn what is recorded into what the simulator has instead."""

    sim: RunningSim
    story: Story
    swaps: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.swaps |= {row["recorded"]: row["simulated"] for row in DIFFERENCES["instead"]}
        if self.story.project != "-":
            self.swaps[self.story.project] = self.sim.profile["project"]

    def swap(self, text: str) -> str:
        for old, new in self.swaps.items():
            text = text.replace(old, new)
        return text

    def ask(self, method: str, url: str, sent: Any, media: str | None = None) -> requests.Response:
        parts = urlsplit(self.swap(url))
        target = f"{self.sim.endpoint}{parts.path}" + (f"?{parts.query}" if parts.query else "")
        headers = {"Authorization": f"Bearer {self.sim.token}"}
        if sent is not None:
            headers["Content-Type"] = "application/json"
        content = media if media is not None else None if sent is None else self.swap(json.dumps(sent))
        return requests.request(method, target, data=content, headers=headers, timeout=30)

    def settled(self, method: str, url: str, sent: Any) -> requests.Response:
        """Asks, and what is on its way when the answer comes is done when this returns."""
        answer = self.ask(method, url, sent)
        assert self.sim.world.settle()
        if answer.status_code == 200 and answer.json().get("kind") == "compute#operation":
            done = self.ask("POST", f"{answer.json()['selfLink']}/wait", None)
            assert done.json()["status"] == "DONE"
        return answer

    def asked(self, each: Exchange) -> requests.Response:
        """An operation that was done when it was recorded is asked for until it is done."""
        answer = self.ask(each.method, each.url, each.sent, each.media)
        ended = isinstance(each.body, Mapping) and each.body.get("status") == "DONE"
        if ended and answer.status_code == 200 and answer.json().get("status") != "DONE":
            answer = self.ask("POST", f"{answer.json()['selfLink']}/wait", None)
        return answer

    def prepare(self) -> None:
        if self.story.fault:
            self.sim.fault({"times": 1, **self.story.fault})
        self.sim.world.set_quotas(self.story.quota)
        self.sim.world.set_metadata(self.story.metadata)
        for each in self.story.setup:
            answer = self.settled(each["method"], each["url"], each.get("body"))
            assert answer.status_code in (200, 409), answer.text
        for key, content in self.story.objects.items():
            bucket, _, name = key.partition("/")
            at = f"https://storage.googleapis.com/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
            assert self.ask("POST", at, None, content).status_code == 200

    def learn(self, each: Exchange, answer: requests.Response) -> None:
        """Operations and sessions of uploads have other names here."""
        if isinstance(each.body, Mapping) and answer.headers.get("content-type", "").startswith(
            "application/json"
        ):
            old, new = each.body.get("name"), answer.json().get("name")
            if old and new and "operation" in str(old):
                self.swaps[str(old).rpartition("/")[2]] = str(new).rpartition("/")[2]
        old, new = each.headers.get("Location"), answer.headers.get("Location")
        if old and new:
            self.swaps[old.partition("upload_id=")[2]] = new.partition("upload_id=")[2]

    def play(self) -> Iterator[Difference]:
        self.prepare()
        for each in self.story.exchanges.values():
            answer = self.asked(each)
            yield from compared(each, answer)
            self.learn(each, answer)
            assert self.sim.world.settle()


def compared(each: Exchange, answer: requests.Response) -> Iterator[Difference]:
    if answer.status_code != each.status:
        detail = f"{each.status} recorded, {answer.status_code} simulated: {answer.text[:300]}"
        yield Difference(each.name, "status", "form", detail)
        return
    recorded, simulated = (found.headers.get("Content-Type", "").partition(";")[0] for found in (each, answer))
    if recorded != simulated and answer.content:
        yield Difference(
            each.name, "header Content-Type", "form", f"{recorded} recorded, {simulated} simulated"
        )
    for name in each.headers:
        if name.startswith(PRESENT_HEADERS) and name not in answer.headers:
            yield Difference(each.name, f"header {name}", "missing")
    if each.body is None:
        if answer.text != (each.content or ""):
            yield Difference(each.name, "", "extra", answer.text[:100])
        return
    yield from differences(each.name, each.body, answer.json() if answer.content else None)


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSim]:
    # An operation of Compute Engine is under way when it is answered; nothing else takes time.
    delays = {**asdict(Delays.instant()), "compute_operation": 0.1}
    with running_sim(tmp_path_factory.mktemp("recorded"), delays=delays) as running:
        yield running


COMPARED = [story for story in stories().values() if not story.client_only]


@pytest.fixture(scope="module")
def found(sim: RunningSim) -> Mapping[str, list[Difference]]:
    """Every difference, by exchange."""
    shown: dict[str, list[Difference]] = {}
    for story in COMPARED:
        shown |= {each.name: [] for each in story.exchanges.values()}
        played = Played(sim, story)
        assert played.ask("POST", f"{sim.endpoint}/_sim/reset", None).status_code == 200
        for difference in played.play():
            shown[difference.exchange].append(difference)
    return shown


def explains(row: Mapping[str, str], each: Difference) -> bool:
    at = row["at"].replace("[", "[[]")
    return each.what == row["what"] and fnmatchcase(each.exchange, row["of"]) and fnmatchcase(each.at, at)


@pytest.mark.parametrize("name", [each.name for story in COMPARED for each in story.exchanges.values()])
def test_the_simulator_answers_in_the_recorded_form(found: Mapping[str, list[Difference]], name: str) -> None:
    rows = DIFFERENCES["differences"]
    unexplained = [str(each) for each in found[name] if not any(explains(row, each) for row in rows)]
    assert not unexplained, "\n".join(unexplained)


def test_every_difference_in_the_list_is_met_and_has_a_reason(found: Mapping[str, list[Difference]]) -> None:
    met = [each for differing in found.values() for each in differing]
    for row in DIFFERENCES["differences"]:
        assert row["reason"].strip(), row
        assert any(explains(row, each) for each in met), f"nothing differs like this any more: {row}"


def test_what_the_simulator_has_instead_is_in_a_recording() -> None:
    texts = [path.read_text() for path in (Path(__file__).parent / "answers").rglob("*.yaml")]
    for row in DIFFERENCES["instead"]:
        assert row["reason"].strip(), row
        assert any(row["recorded"] in text for text in texts), row
