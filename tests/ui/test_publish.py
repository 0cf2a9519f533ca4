"""Published pages: in a simulated bucket, by several writers, with crashes; what readers see at each moment."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from tests.support.builders import a_run, a_slice
from tests.support.crashing import Crash, Crashing, CrashPoint, Sleep
from tests.support.services import SimServices, sim_services
from tests.support.sim import RunningSim, running_sim
from tests.support.soak import soak
from tpuctl.cloud.storage import GoogleObjects
from tpuctl.errors import ConflictError, DeniedError, NotFoundError, UsageError
from tpuctl.lib.codec import to_data
from tpuctl.lib.names import check_page_uri
from tpuctl.model.records import RunRecord, RunState, SliceRecord
from tpuctl.sim.world.iam import account_token
from tpuctl.sim.world.identity import DEFAULT_ACCOUNT
from tpuctl.ui import static
from tpuctl.ui.publish import INDEX, Publication, publish

pytestmark = pytest.mark.slow

PLACE = "gs://sim-bucket/pages"
CHANGES = {"write", "delete"}
ALWAYS = {INDEX, "runs.html", "money.html"}
TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"
HOSTILE = "<script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSim]:
    with running_sim(tmp_path_factory.mktemp("sim")) as running:
        yield running


@pytest.fixture
def services(sim: RunningSim, tmp_path: Path) -> Iterator[SimServices]:
    with sim_services(sim, tmp_path / "state") as made:
        put(made, a_slice())
        put(made, a_run(id="first", attempt=None, created_at=1.0))
        yield made
        for item in made.objects.list("gs://sim-bucket/"):
            made.objects.delete(f"gs://sim-bucket/{item.name}")


def put(services: SimServices, record: RunRecord | SliceRecord) -> None:
    there = services.store.get(record.key)
    services.store.put(record.key, to_data(record), if_generation=there.generation if there else 0)


def read_site(services: SimServices, place: str = PLACE) -> dict[str, str]:
    """Every page that a reader comes to from the index; fails where a link leads to nothing."""
    pages: dict[str, str] = {}
    due = [INDEX]
    while due:
        name = due.pop()
        if name not in pages:
            pages[name] = services.objects.read(f"{place}/{name}")[0].decode()
            assert pages[name].endswith("</html>"), name
            due += re.findall(r'href="([^"#:]+\.html)"', pages[name])
    return pages


class Reader:
    """Reads the whole site after each change of a writer."""

    def __init__(self, services: SimServices) -> None:
        self._services, self._inner, self.count = services, services.objects, 0

    def around(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        found = call(*args, **kwargs)
        if self._inner.list(f"{PLACE}/{INDEX}"):
            read_site(self._services)
        return found


def publish_by(services: SimServices, point: Any, deadline: float = math.inf) -> Publication:
    """By another process of the same machine, whose changes go through `point`."""
    objects = services.objects
    services.objects = Crashing(objects, point, lambda name, _: name in CHANGES)
    try:
        return publish(services, PLACE, deadline=deadline)
    finally:
        services.objects = objects


def grow(services: SimServices) -> None:
    """The oldest run ends, and two newer ones take the places of others."""
    done = a_run(id="first", attempt=None, created_at=1.0, state=RunState.SUCCEEDED, ended_at=5.0)
    put(services, done)
    for number in (2, 3):
        put(services, a_run(id=f"later-{number}", attempt=None, created_at=float(number)))


def test_pages_lead_to_pages_and_only_what_differs_is_written(services):
    # The page of a run that goes on says for how long.
    put(services, a_run(id="first", attempt=None, state=RunState.SUCCEEDED, ended_at=5.0))
    done = publish(services, PLACE)
    assert set(read_site(services)) == ALWAYS | {"slice-big.html", "run-first.html"} == set(done.written)
    assert done.address == "https://storage.cloud.google.com/sim-bucket/pages/index.html"
    point = CrashPoint()
    again = publish_by(services, point)
    assert (again.written, again.same, point.count) == ((INDEX,), 4, 1)
    put(services, a_run(id="first", attempt=None, state=RunState.FAILED, reason="it broke", ended_at=5.0))
    changed = publish(services, PLACE)
    assert {"run-first.html", "runs.html", INDEX} <= set(changed.written)
    assert "slice-big.html" not in set(publish(services, PLACE).written)
    assert "it broke" in read_site(services)["run-first.html"]
    assert re.search(r"written 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", read_site(services)["run-first.html"])


def test_they_are_served_as_pages_and_kept_by_no_cache(services, sim):
    publish(services, PLACE)
    found = sim.call("GET", f"storage/v1/b/sim-bucket/o/pages%2F{INDEX}").json()
    assert (found["contentType"], found["cacheControl"]) == ("text/html; charset=utf-8", "no-cache")


def test_what_would_be_written_is_told_and_not_done(services):
    told = publish(services, PLACE, dry_run=True)
    assert set(told.written) == ALWAYS | {"slice-big.html", "run-first.html"}
    assert services.objects.list(PLACE) == ()


def test_a_run_that_is_long_over_is_not_even_made_again(services):
    over = a_run(id="first", attempt=None, created_at=1.0, state=RunState.SUCCEEDED, ended_at=5.0)
    put(services, over)
    assert "run-first.html" in publish(services, PLACE).written
    reads: list[str] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            reads.append(name)
            return getattr(store, name)

    store, services.store = services.store, Counted()
    assert publish(services, PLACE).written == (INDEX,)
    few = len(reads)
    for number in range(20):
        services.store = store
        put(services, a_run(id=f"old-{number}", attempt=None, state=RunState.SUCCEEDED, ended_at=6.0))
    publish(services, PLACE)
    reads.clear()
    services.store = Counted()
    assert publish(services, PLACE).written == (INDEX,)
    assert len(reads) <= few + 1, "the store is asked alike, however many runs are over"
    services.store = store


def test_readers_see_whole_pages_at_each_moment(services, monkeypatch):
    monkeypatch.setattr(static, "RUNS_MAX", 2)
    reader = Reader(services)
    publish_by(services, reader)
    grow(services)
    assert publish_by(services, reader).deleted == ()
    assert publish(services, PLACE, dry_run=True).deleted == ("run-first.html",)
    assert publish_by(services, reader).deleted == ("run-first.html",)
    assert reader.count > 8
    assert {"run-later-2.html", "run-later-3.html"} <= set(read_site(services))


MOMENTS = [*((at, False) for at in range(1, 9)), (8, True), *(soak(at, True) for at in range(1, 8))]
"""Before each change, and after the last. After another is, but for the time, before the next."""


@pytest.mark.parametrize(("at", "after"), MOMENTS)
def test_a_crash_at_any_change_leaves_whole_pages(services, monkeypatch, at, after):
    monkeypatch.setattr(static, "RUNS_MAX", 2)
    publish(services, PLACE)
    grow(services)
    try:
        point = CrashPoint(at, after=after)
        publish_by(services, point)
        publish_by(services, point)
        assert at > 6, "fewer changes than the test thinks"
    except Crash:
        pass
    for _ in range(2):
        read_site(services)
        publish(services, PLACE)
    assert set(read_site(services)) == ALWAYS | {"slice-big.html", "run-later-2.html", "run-later-3.html"}
    names = {item.name for item in services.objects.list(PLACE)}
    assert "pages/run-first.html" not in names


@pytest.mark.parametrize(("at", "after"), MOMENTS)
def test_two_writers_at_once_leave_whole_pages(services, monkeypatch, at, after):
    """The second knows more than the first, and publishes at one of its changes."""
    monkeypatch.setattr(static, "RUNS_MAX", 2)
    publish(services, PLACE)
    put(services, a_run(id="later-2", attempt=None, created_at=2.0))
    objects = services.objects

    def meanwhile() -> None:
        crashing, services.objects = services.objects, objects
        grow(services)
        publish_by(services, Reader(services))
        services.objects = crashing

    publish_by(services, Sleep(at, meanwhile, after=after))
    read_site(services)
    publish(services, PLACE)
    latest = read_site(services)
    if "later-3" in latest["runs.html"]:
        assert set(latest) >= {"run-later-2.html", "run-later-3.html"}


class Delayed:
    """Changes of a process that the machine does not let run; `release` lets it."""

    def __init__(self) -> None:
        self._held: list[Callable[[], Any]] = []

    def around(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._held.append(partial(call, *args, **kwargs))

    def release(self) -> None:
        assert self._held
        for change in self._held:
            with suppress(ConflictError):
                change()


@pytest.mark.parametrize("at", range(1, 4))
def test_a_page_that_one_deletes_and_another_wants_again_is_linked_only_when_it_is_there(
    services, monkeypatch, at
):
    monkeypatch.setattr(static, "RUNS_MAX", 1)
    put(services, a_run(id="first", attempt=None, created_at=1.0, state=RunState.SUCCEEDED, ended_at=5.0))
    publish(services, PLACE)
    put(services, a_run(id="urgent", attempt=None, created_at=0.5))
    objects, delayed = services.objects, Delayed()
    services.objects = Crashing(objects, delayed, lambda name, _: name == "delete")
    for _ in range(2):
        publish(services, PLACE)
    services.objects = objects
    put(services, a_run(id="urgent", attempt=None, created_at=0.5, state=RunState.SUCCEEDED, ended_at=6.0))
    publish_by(services, Sleep(at, delayed.release))
    read_site(services)
    publish(services, PLACE)
    assert "run-first.html" in read_site(services)


def test_a_lost_answer_is_no_failure(services, sim):
    sim.fault(preset="storage-lost-response")
    assert INDEX in publish(services, PLACE).written
    read_site(services)


def test_what_is_no_page_of_this_fleet_is_not_written_over(services, sim, tmp_path):
    services.objects.write(f"{PLACE}/{INDEX}", b"somebody's own")
    with pytest.raises(ConflictError, match=r"gs://sim-bucket/pages/index\.html is there already"):
        publish(services, PLACE)
    assert services.objects.read(f"{PLACE}/{INDEX}")[0] == b"somebody's own"
    assert len(services.objects.list(PLACE)) == 1
    services.objects.write("gs://sim-bucket/two/about.html", b"a page of somebody's")
    publish(services, "gs://sim-bucket/two")
    assert services.objects.read("gs://sim-bucket/two/about.html")[0] == b"a page of somebody's"
    with sim_services(sim, tmp_path / "other") as other, pytest.raises(ConflictError, match="of this fleet"):
        publish(other, "gs://sim-bucket/two")


def test_a_bucket_that_is_missing_or_refuses_is_one_line_before_anything_is_written(services, sim):
    with pytest.raises(NotFoundError, match="no bucket gs://nowhere-at-all") as missing:
        publish(services, "gs://nowhere-at-all/pages")
    assert "gcloud storage buckets create gs://nowhere-at-all" in missing.value.hint
    set_policy(sim, "roles/storage.objectViewer", f"serviceAccount:{DEFAULT_ACCOUNT}")
    token = Credentials(token=account_token(sim.token, DEFAULT_ACCOUNT))
    mine, services.objects = services.objects, GoogleObjects(sim.profile["project"], sim.endpoint, token)
    with pytest.raises(DeniedError) as refused:
        publish(services, PLACE)
    services.objects = mine
    assert "roles/storage.objectUser" in refused.value.hint
    assert services.objects.list(PLACE) == ()


def test_a_bucket_that_everybody_can_read_is_told(services, sim):
    assert not publish(services, PLACE).public
    set_policy(sim, "roles/storage.objectViewer", "allUsers")
    assert publish(services, PLACE).public
    set_policy(sim, "roles/storage.objectViewer", "user:ada@example.com")
    assert not publish(services, PLACE).public


def test_whether_everybody_can_read_a_bucket_is_asked_without_credentials_of_this_user(
    services, sim, tmp_path, monkeypatch
):
    set_policy(sim, "roles/storage.objectViewer", "allUsers")
    with monkeypatch.context() as patch:
        netrc = tmp_path / "netrc"
        netrc.write_text("default login ada password not-for-google\n")
        patch.setenv("NETRC", str(netrc))
        assert services.objects.is_public("sim-bucket") is True
    set_policy(sim, "roles/storage.objectViewer", "user:ada@example.com")
    assert services.objects.is_public("sim-bucket") is False


def test_what_no_answer_says_is_not_taken_for_private(services, sim):
    sim.fault(preset="storage-unavailable")
    assert services.objects.is_public("sim-bucket") is None
    away = GoogleObjects("p", "http://127.0.0.1:1", Credentials(token="t"))
    assert away.is_public("sim-bucket") is None


def set_policy(sim: RunningSim, role: str, member: str) -> None:
    policy = {"bindings": [{"role": role, "members": [member]}]}
    assert sim.call("PUT", "storage/v1/b/sim-bucket/iam", json=policy).status_code == 200


@pytest.mark.parametrize(
    "place",
    [
        "s3://bucket/x",
        "bucket",
        "gs://",
        "gs://b",
        "gs://my-bucket/../x",
        "gs://my-bucket//x",
        "gs://my-bucket/a[b]",
        "gs://my-bucket/*",
        "gs://my-bucket/a b",
        "gs://my-bucket/.x",
        "gs://my-bucket/<x>",
    ],
)
def test_a_place_that_is_none_is_refused(place):
    with pytest.raises(UsageError):
        check_page_uri(place)


def test_good_places():
    assert check_page_uri("gs://my-bucket/") == "gs://my-bucket"
    assert check_page_uri("gs://my-bucket/a/b.c_d-1") == "gs://my-bucket/a/b.c_d-1"


def test_a_bucket_without_a_prefix_has_its_pages_at_the_top(services):
    publish(services, "gs://sim-bucket")
    assert set(read_site(services, "gs://sim-bucket")) >= ALWAYS


def test_what_programs_and_people_wrote_is_text_and_secrets_are_masked(services, tmp_path):
    put(services, a_run(id="first", attempt=None, argv=("python3", HOSTILE, TOKEN), tags=(f"a={HOSTILE}",)))
    put(services, a_run(id="bad", attempt=None, state=RunState.FAILED, reason=f"{HOSTILE} {TOKEN}", group="g"))
    services.store.append("journal/slices/big/", {"at": 1.0, "action": HOSTILE, "reason": TOKEN})
    publish(services, PLACE)
    pages = read_site(services)
    assert set(pages) == ALWAYS | {"slice-big.html", "run-first.html", "run-bad.html"}
    for name, text in pages.items():
        assert HOSTILE not in text, name
        assert TOKEN not in text, name
        assert len(re.findall("<script", text)) == 1, name
    assert "***" in pages["run-first.html"]
    assert "&lt;script&gt;" in pages["slice-big.html"]


def test_names_that_lead_elsewhere_have_no_page(services):
    for number, name in enumerate(("../../evil", "..", "a/b", 'x"onload=1', "Big", "a" * 99)):
        data = {**to_data(a_run(attempt=None)), "id": name}
        services.store.put(f"runs/odd-{number}", data, if_generation=0)
        data = {**to_data(a_slice()), "name": name}
        services.store.put(f"slices/odd-{number}", data, if_generation=0)
    publish(services, PLACE)
    read_site(services)
    names = {item.name for item in services.objects.list("gs://sim-bucket/")}
    assert names == {f"pages/{name}" for name in ALWAYS | {"slice-big.html", "run-first.html"}}


def test_no_link_in_the_state_directory_is_followed(services, tmp_path):
    attempt = a_run().attempt
    put(services, a_run(id="first", attempt=attempt, created_at=1.0))
    logs = tmp_path / "state" / "runs" / "first" / "1"
    logs.mkdir(parents=True)
    (tmp_path / "outside").write_text("a secret of this machine\n")
    for stream in attempt.streams:
        (logs / f"worker-0.{stream}.log").symlink_to(tmp_path / "outside")
    publish(services, PLACE)
    assert not any("a secret of this machine" in text for text in read_site(services).values())


class SlowReader(Reader):
    """Each change of the writer takes so many seconds."""

    def __init__(self, services: SimServices, seconds: float) -> None:
        super().__init__(services)
        self._seconds = seconds

    def around(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = super().around(call, *args, **kwargs)
        self._services.clock.skip(self._seconds)
        return found


@pytest.mark.parametrize(("limit_s", "written"), [(250.0, [4, 4]), (0.0, [1, 2])])
def test_what_there_is_no_time_for_is_written_in_the_next_pass(services, monkeypatch, limit_s, written):
    """And readers see whole pages at each moment. However little time there is, one page is written."""
    monkeypatch.setattr(static, "RUNS_MAX", 2)
    publish(services, PLACE)
    grow(services)
    slow = SlowReader(services, 100.0)
    passes = [publish_by(services, slow, services.clock.now() + limit_s) for _ in written]
    assert [len(each.written) for each in passes] == written
    assert [INDEX in each.later for each in passes] == [limit_s == 0.0, False]
    assert (passes[0].deleted, bool(passes[0].later)) == ((), True)
    assert publish(services, PLACE).deleted == ("run-first.html",)
    assert set(read_site(services)) == ALWAYS | {"slice-big.html", "run-later-2.html", "run-later-3.html"}
