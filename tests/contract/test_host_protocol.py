"""The agent's protocol: the real agent on hosts of the simulator, and the one played in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import vocabulary as words
from tests.support.receivers import Kept
from tests.support.remotes import LABS, Lab, is_running
from tests.support.soak import soak
from tpuctl.engine.ports import Remote, RemoteCall
from tpuctl.hosts.agent import HostAgent, Reply
from tpuctl.hosts.commands import EXIT_NOT_INSTALLED, render_agent_command, render_install_command
from tpuctl.hosts.deadline import TimedRemote
from tpuctl.hosts.facts import Section
from tpuctl.hosts.log_news import LogNews
from tpuctl.hosts.protocol import CopyStatus, LacksReply, WorkerState
from tpuctl.hosts.requests import (
    AttemptsRequest,
    CopyName,
    CopyRequest,
    FollowRequest,
    HelloRequest,
    LacksRequest,
    NewsRequest,
    PrepareRequest,
    StartRequest,
    StatusRequest,
    StopRequest,
)
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.cloud import FailureKind, HostTarget
from tpuctl.model.shipped_files import read_agent
from tpuctl.ssh.keys import KeyPair, ensure_keypair
from tpuctl.transfer.distribute import distribute
from tpuctl.transfer.frames import render_contents, render_note
from tpuctl.transfer.host_copies import inside
from tpuctl.transfer.tree import (
    Blob,
    Content,
    TreeFile,
    TreeLink,
    make_tree,
    render_tree,
)
from tpuctl.workers.copy_from import Pulled, pull
from tpuctl.workers.copy_to import Pushed, push

CODE = make_tree({"main.py": b"print('hello')\n", "data/table": b"1,2\n"})
BIG = make_tree({"main.py": b"x" * 700_000, "weights": bytes(range(256)) * 4000})


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return ensure_keypair(tmp_path_factory.mktemp("state"))


@pytest.fixture(params=["memory", "simulated"])
def lab(request: pytest.FixtureRequest, tmp_path: Path, key: KeyPair) -> Iterator[Lab]:
    made = LABS[request.param](tmp_path, key)
    yield made
    made.close()


@pytest.fixture
def remote(lab: Lab) -> Remote:
    return lab.remote()


@pytest.fixture
def agent(remote: Remote) -> HostAgent:
    return HostAgent(remote, read_agent())


@pytest.fixture
def target(lab: Lab) -> HostTarget:
    return lab.add(0)


class Runs:
    """Short words for the life of an attempt of run r1 on one host."""

    def __init__(self, lab: Lab, agent: HostAgent, target: HostTarget) -> None:
        self.lab = lab
        self.agent = agent
        self.target = target

    def prepare(self, attempt: str = "1", *, fence: int = 1, bundle: str | None = None) -> Any:
        request = {"run": "r1", "attempt": attempt, "fence": fence, "bundle": bundle}
        [answer] = self.agent.ask([self.target], PrepareRequest(**request))
        return answer

    def start(self, *argv: str, attempt: str = "1", fence: int = 1, **more: Any) -> Any:
        request = {"run": "r1", "attempt": attempt, "fence": fence, "argv": list(argv), "grace_s": 0.3, **more}
        [answer] = self.agent.ask([self.target], StartRequest(**request))
        return answer

    def status(self, attempt: str = "1") -> WorkerStatus:
        [answer] = self.agent.ask([self.target], StatusRequest("r1", attempt))
        assert answer.value is not None, answer
        return answer.value

    def ended(self, attempt: str = "1") -> WorkerStatus:
        self.lab.until(lambda: self.status(attempt).state.final, "the end of the attempt")
        return self.status(attempt)

    def log(self, stream: str) -> bytes:
        [answer] = self.agent.read_news([self.target], NewsRequest("r1", "1"))
        assert answer.value is not None, answer
        return bytes(getattr(answer.value, stream))


def cut(lab: Lab, agent: HostAgent, target: HostTarget) -> None:
    """Breaks the connections. What is asked before that is noticed is lost with them, and not asked again."""
    lab.cut(target)
    lab.until(lambda: agent.ask([target], HelloRequest())[0].value is not None, "another connection")


@pytest.fixture
def runs(lab: Lab, agent: HostAgent, target: HostTarget) -> Runs:
    return Runs(lab, agent, target)


def give(runs: Runs, content: Content = CODE) -> str:
    sent = distribute(runs.agent, [runs.target], content, clock=runs.lab.clock, emit=lambda _event: None)
    assert sent.failed == {}
    return content.sha256


def test_the_agent_installs_itself_and_says_what_the_host_is(agent: HostAgent, target: HostTarget):
    [answer] = agent.ask([target], HelloRequest(sections=[Section.KERNEL]))
    assert answer.value is not None
    assert answer.value.facts is not None
    assert (answer.value.facts.kernel is None, answer.value.facts.jobs) == (False, None)
    facts = answer.value.host
    assert facts.worker_id == "0"
    assert facts.boot_id
    assert facts.home
    assert facts.cpu_count > 0
    assert facts.disk_free_bytes > 0


def test_several_verbs_are_done_in_one_call_until_one_is_refused(runs: Runs):
    said, listed = runs.agent.ask_both([runs.target], HelloRequest(), AttemptsRequest())
    assert (said[0].value.host.worker_id, listed[0].value.attempts) == ("0", ())
    assert runs.prepare().value.prepared
    nothing, stop = StartRequest("r1", "1", 1, ()), StopRequest("r1", "1")
    [refused], [undone] = runs.agent.ask_both([runs.target], nothing, stop)
    assert (refused.error, undone.error) == ("bad-request", "bad-request")
    assert (runs.status().state, runs.status().stop_asked) == (WorkerState.PREPARED, False)


def test_an_agent_that_arrives_damaged_is_not_installed(remote: Remote, target: HostTarget):
    source = read_agent()
    digest = hashlib.sha256(source).hexdigest()
    [refused] = remote.run([target], RemoteCall(render_install_command(digest, len(source)), stdin=b"damaged"))
    assert (refused.exit_status, b"damaged" in refused.stderr) == (1, True)
    assert (
        remote.run([target], RemoteCall(render_agent_command("hello", digest)))[0].exit_status
        == EXIT_NOT_INSTALLED
    )


def test_a_host_gets_the_agent_while_another_one_still_says_nothing(tmp_path: Path, key: KeyPair):
    lab = LABS["memory"](tmp_path, key)
    timed = TimedRemote(lab.remote(), lab.clock, lab.clock.now() + 4.0)
    [silent, answer] = HostAgent(timed, read_agent()).ask([lab.mute(), lab.add(0)], HelloRequest())
    assert silent.result.failure is not None
    assert answer.value is not None, answer


def test_an_unreachable_worker_has_its_reply_in_its_place(lab: Lab, agent: HostAgent, target: HostTarget):
    answers = agent.ask([lab.refuse(target), target], HelloRequest())
    assert [answer.error for answer in answers] == ["connect", None]
    assert answers[0].result.failure is FailureKind.CONNECT


def test_a_run_goes_from_absent_to_exited_with_its_status_and_logs(runs: Runs):
    assert runs.status().state is WorkerState.ABSENT
    assert runs.prepare().value.prepared
    assert runs.status().state is WorkerState.PREPARED
    started = runs.start("sh", "-c", words.WORK)
    assert (started.value.state, started.value.already) == (WorkerState.RUNNING, False)
    ended = runs.ended()
    assert (ended.state, ended.exit_status, ended.signal, ended.stopped) == (
        WorkerState.EXITED,
        3,
        None,
        False,
    )
    assert ended.started_at is not None
    assert ended.ended_at is not None
    assert ended.ended_at >= ended.started_at
    assert (runs.log("stdout"), runs.log("stderr")) == (b"begin\nend\n", b"err\n")
    assert (ended.stdout_bytes, ended.stderr_bytes) == (10, 4)


def test_code_arrives_in_the_work_directory_and_variables_in_the_environment(runs: Runs):
    bundle = CODE.sha256
    assert not runs.prepare(bundle=bundle).value.prepared
    assert runs.prepare(bundle=give(runs)).value.prepared
    runs.start("sh", "-c", words.WHERE, env={"COLOUR": "blue"})
    assert runs.ended().exit_status == 0
    assert runs.log("stdout") == b"work\nprint('hello')\nblue 0\n"


def test_a_host_names_the_contents_that_it_lacks(runs: Runs):
    request = LacksRequest("blobs", CODE.sha256)
    [before] = runs.agent.ask([runs.target], request)
    assert before.error is None, before.result
    assert (before.value.has_tree, before.value.bits) == (False, "")
    frames = b"".join(render_contents([(Blob(CODE.sha256, len(CODE.tree)), 0, [CODE.tree])]))
    [after] = runs.agent.ask([runs.target], replace(request, follows=True), payload=frames)
    assert (after.value.has_tree, after.value.bits) == (True, "3")
    assert not runs.prepare(bundle=CODE.sha256).value.prepared
    give(runs)
    [done] = runs.agent.ask([runs.target], request)
    assert done.value.bits == "0"


def test_damaged_content_is_refused(runs: Runs):
    right = Blob(hashlib.sha256(b"right").hexdigest(), 5)
    for data, error in ((b"wrong", "bad-payload"), (b"rig", "changed")):
        frames = b"".join(render_contents([(right, 0, [data])]))
        [reply] = runs.agent.call([runs.target], "receive", {"area": "blobs"}, payload=frames)
        assert reply.error == error


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"no frames",
        (7).to_bytes(8, "big") + b"content",
        (-2).to_bytes(8, "big", signed=True) + b"[]",
        (-1 << 40).to_bytes(8, "big", signed=True),
        render_note({"file": "../x", "size": 1, "from": 0}),
        render_note({"file": "ab" * 32, "size": 1, "from": 2}),
        render_note({"file": "ab" * 32, "size": 1, "from": 1}) + render_note({"done": True}),
        render_note({"file": "ab" * 32, "size": 1, "from": 0}) + (2).to_bytes(8, "big") + b"ab",
    ],
    ids=["nothing", "text", "unbegun", "no-object", "endless", "leads-out", "beyond", "at-its-end", "longer"],
)
def test_what_is_no_frame_is_refused(runs: Runs, odd: bytes):
    [reply] = runs.agent.call([runs.target], "receive", {"area": "blobs"}, payload=odd)
    assert reply.error in {"bad-payload", "bad-request"}, reply


def test_preparing_twice_is_the_same_and_other_code_is_a_conflict(runs: Runs):
    assert [runs.prepare().value.prepared for _ in range(2)] == [True, True]
    assert runs.prepare(bundle=give(runs)).error == "conflict"


def test_a_second_start_does_nothing_and_what_is_not_prepared_does_not_start(runs: Runs):
    assert runs.start("true").error == "not-prepared"
    runs.prepare()
    first = runs.start("sh", "-c", words.HANG)
    second = runs.start("sh", "-c", words.HANG)
    assert (second.value.already, second.value.pid) == (True, first.value.pid)
    runs.agent.ask([runs.target], StopRequest("r1", "1", 0.1))
    runs.ended()
    assert runs.start("true").value.already


def test_an_older_fence_is_refused_by_prepare_and_start(runs: Runs):
    runs.prepare(fence=7)
    assert runs.prepare("2", fence=6).error == "stale-fence"
    assert runs.start("true", fence=6).error == "stale-fence"
    assert runs.start("true", fence=7).error is None
    runs.ended()


def test_bad_requests_are_refused(runs: Runs, agent: HostAgent, target: HostTarget):
    [reply] = agent.call([target], "status", {"run": "../r1", "attempt": "1"})
    assert reply.error == "bad-request"
    runs.prepare()
    assert runs.start("true", cwd="../..").error == "bad-request"
    assert runs.start().error == "bad-request"
    assert agent.call([target], "lacks", {"area": "etc", "tree": "0" * 64})[0].error == "bad-request"


def test_a_command_that_cannot_be_started_ends_as_a_shell_would_say(runs: Runs):
    runs.prepare()
    runs.start("no-such-program")
    ended = runs.ended()
    assert (ended.exit_status, "cannot run no-such-program" in ended.detail) == (127, True)
    assert b"cannot run no-such-program" in runs.log("stderr")


def test_a_run_killed_by_a_signal_records_which(runs: Runs):
    runs.prepare()
    runs.start("sh", "-c", words.DIE)
    ended = runs.ended()
    assert (ended.exit_status, ended.signal) == (None, 9)


def test_a_stop_ends_the_run_and_says_that_it_was_stopped(runs: Runs):
    runs.prepare()
    runs.start("sh", "-c", words.HANG)
    [before] = runs.agent.ask([runs.target], StopRequest("r1", "1", 5.0))
    assert before.value.state is WorkerState.RUNNING
    ended = runs.ended()
    assert (ended.signal, ended.stopped) == (15, True)


def test_who_ignores_a_stop_is_killed_after_the_grace_and_a_second_stop_may_shorten_it(runs: Runs):
    runs.prepare()
    runs.start("sh", "-c", words.DEAF)
    runs.lab.until(lambda: runs.log("stdout") == b"deaf\n", "the trap")
    runs.agent.ask([runs.target], StopRequest("r1", "1", 300.0))
    assert runs.status().state is WorkerState.RUNNING
    runs.agent.ask([runs.target], StopRequest("r1", "1", 0.2))
    assert (runs.ended().signal, runs.ended().stopped) == (9, True)


def test_a_stop_before_the_start_keeps_it_from_starting(runs: Runs):
    runs.prepare()
    runs.agent.ask([runs.target], StopRequest("r1", "1", 1.0))
    assert runs.start("true").error == "stopped"
    assert runs.status("9").state is WorkerState.ABSENT


def test_a_host_that_goes_down_ends_a_run_without_a_stop_of_ours(runs: Runs):
    runs.prepare()
    runs.start("sh", "-c", words.HANG)
    assert not runs.status().rebooted
    runs.lab.reboot(runs.target)
    ended = runs.status()
    assert (ended.state, ended.signal) == (WorkerState.EXITED, 15)
    assert (ended.stopped, ended.stop_asked, ended.rebooted) == (True, False, True)
    runs.prepare("2")
    runs.start("sh", "-c", words.HANG, attempt="2")
    runs.agent.ask([runs.target], StopRequest("r1", "2", 5.0))
    ended = runs.ended("2")
    assert (ended.stopped, ended.stop_asked, ended.rebooted) == (True, True, False)


def test_what_the_cloud_does_with_a_host_is_told_where_it_is_asked_for(runs: Runs):
    def told() -> tuple[bool, str]:
        [answer] = runs.agent.ask([runs.target], StatusRequest("r1", "1", host=True))
        return answer.value.preempted, answer.value.maintenance

    assert told() == (False, "")
    runs.lab.metadata["instance/maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    assert told() == (False, "TERMINATE_ON_HOST_MAINTENANCE")
    runs.lab.metadata["instance/preempted"] = "TRUE"
    assert told() == (True, "TERMINATE_ON_HOST_MAINTENANCE")
    assert not runs.status().preempted


def test_what_outlives_its_supervisor_is_found_and_ended_by_a_stop(runs: Runs):
    runs.prepare()
    runs.start("sh", "-c", words.DEAF)
    runs.lab.until(lambda: runs.log("stdout") == b"deaf\n", "the trap")
    runs.lab.kill_supervisor(runs.target)
    runs.lab.until(lambda: runs.status().state is WorkerState.LOST, "the loss of the supervisor")
    lost = runs.status()
    assert lost.survivors
    assert str(lost.survivors[0]) in lost.survivors_said
    runs.agent.ask([runs.target], StopRequest("r1", "1", 300.0))
    assert runs.status().survivors[:1] == lost.survivors[:1]
    runs.agent.ask([runs.target], StopRequest("r1", "1", 0.0))
    runs.lab.until(lambda: runs.status().survivors == (), "the end of the survivors")
    assert runs.status().state is WorkerState.LOST


def test_what_the_main_process_leaves_behind_ends_with_it(runs: Runs):
    runs.prepare()
    runs.start("sh", "-c", words.FAMILY)
    ended = runs.ended()
    assert (ended.exit_status, ended.survivors) == (4, ())


def test_a_run_outlives_a_cut_connection(runs: Runs):
    runs.prepare()
    runs.start("sh", "-c", words.WORK)
    cut(runs.lab, runs.agent, runs.target)
    assert runs.ended().exit_status == 3


def test_follow_delivers_everything_from_the_offsets_and_ends_with_the_attempt(runs: Runs):
    runs.prepare()
    runs.start("sh", "-c", words.WORK)
    heard: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def sink(worker: int, name: str, data: bytes) -> None:
        heard[name] += data

    request = FollowRequest("r1", "1", {"stdout": 2, "stderr": 0})
    [result] = runs.agent.stream([runs.target], request, sink)
    assert (result.exit_status, heard) == (0, {"stdout": b"gin\nend\n", "stderr": b"err\n"})
    [nothing] = runs.agent.stream([runs.target], FollowRequest("r1", "5"), sink)
    assert nothing.exit_status == 98


def test_news_are_what_both_logs_have_behind_the_offsets(runs: Runs):
    def news(limit: int = 1 << 20, **offsets: int) -> LogNews:
        [answer] = runs.agent.read_news([runs.target], NewsRequest("r1", "1", offsets, limit))
        assert (answer.value is None, answer.error) == (False, None), answer
        return answer.value

    assert news() == LogNews()
    runs.prepare()
    runs.start("sh", "-c", words.WORK)
    runs.ended()
    out, err = b"begin\nend\n", b"err\n"
    assert news() == LogNews(out, err)
    assert news(stdout=2, stderr=len(err)) == LogNews(out[2:])
    assert news(limit=len(out) + 1) == LogNews(out, err[:1], more=True)
    assert news(limit=1) == LogNews(out[:1], more=True)


def test_a_follower_goes_with_its_client_and_the_run_stays(runs: Runs):
    runs.prepare()
    runs.start("sh", "-c", words.HANG)
    heard: list[bytes] = []
    [result] = runs.agent.stream(
        [runs.target],
        FollowRequest("r1", "1"),
        lambda worker, name, data: heard.append(data),
        should_stop=lambda: bool(heard),
    )
    assert (result.failure, b"".join(heard)) == (FailureKind.LOST, b"up\n")
    assert runs.status().state is WorkerState.RUNNING
    runs.agent.ask([runs.target], StopRequest("r1", "1", 0.1))
    runs.ended()


@pytest.mark.parametrize(
    ("command", "status", "output"),
    [
        ("echo hi", 0, b"hi\n"),
        (["echo", "a b", "$HOME"], 0, b"a b $HOME\n"),
        (words.TELL, 0, b"I am 0\n"),
        (words.DIE, 137, b"before\n"),
        (words.FAMILY, 4, b"parent\n"),
        (["no-such-program"], 127, b""),
    ],
)
def test_a_session_passes_output_and_statuses_through(agent, target, command, status, output):
    said = {"stdout": b"", "stderr": b""}

    def sink(worker: int, name: str, data: bytes) -> None:
        said[name] += data

    [result] = agent.session([target], command, sink, grace_s=0.2)
    assert (result.exit_status, said["stdout"]) == (status, output)


def test_a_session_takes_even_the_deaf_along(lab: Lab, agent: HostAgent, target: HostTarget):
    heard: list[bytes] = []
    [result] = agent.session(
        [target],
        words.DEAF,
        lambda worker, name, data: heard.append(data),
        grace_s=0.1,
        should_stop=lambda: bool(heard),
    )
    assert result.failure is FailureKind.LOST
    lab.until(lambda: not is_running(lab, target, words.DEAF), "the end of the command")


class Given:
    """Input in pieces of its own; None among them stands for a pause of who writes it."""

    def __init__(self, *pieces: bytes | None) -> None:
        self.left = list(pieces)
        self.lost = 0
        self.taken: int | None = None

    def has_some(self) -> bool:
        return bool(self.left)

    def read(self) -> bytes | None:
        return self.left.pop(0) if self.left else b""

    def note_taken(self, count: int) -> None:
        self.taken = count


def feed(agent: HostAgent, target: HostTarget, given: Given, command: str) -> tuple[int | None, bytes]:
    said = bytearray()

    def sink(_worker: int, stream: str, data: bytes) -> None:
        said.extend(data)

    result = agent.session_fed(target, ["sh", "-c", command], given, sink)
    return result.exit_status, bytes(said)


def test_input_arrives_whole_with_its_end(agent: HostAgent, target: HostTarget):
    data = bytes(range(256)) * 12_000
    given = Given(data[:7], None, data[7:1_000_000], None, data[1_000_000:])
    assert feed(agent, target, given, "cat") == (0, data)
    assert given.taken == len(data)


def test_the_end_of_input_is_passed_on_where_there_is_none(agent: HostAgent, target: HostTarget, lab: Lab):
    assert feed(agent, target, Given(), words.UNTIL_EOF) == (0, b"up\n")
    assert lab.read(target, "gone") == "gone\n"


def test_a_command_may_leave_its_input_and_is_believed(agent: HostAgent, target: HostTarget):
    given = Given(*[b"x" * 100_000] * 90)
    assert feed(agent, target, given, words.TAKE_THREE) == (5, b"xxx")
    assert given.taken is not None
    assert given.taken < 9_000_000


@pytest.mark.parametrize("pieces", [(b"one\n",), (b"one\n", *[None] * 50, b"two\n")])
def test_a_command_that_reads_nothing_takes_nothing_of_its_input(
    agent: HostAgent, target: HostTarget, pieces: tuple[bytes | None, ...]
):
    given = Given(*pieces)
    assert feed(agent, target, given, "echo up") == (0, b"up\n")
    assert given.taken == 0


def test_input_is_not_touched_where_no_command_can_be(lab: Lab, agent: HostAgent, target: HostTarget):
    given = Given(b"precious")
    result = agent.session_fed(lab.refuse(target), ["cat"], given, lambda *_: None)
    assert (result.failure, given.left) == (FailureKind.CONNECT, [b"precious"])


def test_attempts_are_listed_with_their_states(runs: Runs):
    for attempt in ("1", "2", "3"):
        runs.prepare(attempt)
        runs.start("sh", "-c", words.HANG if attempt == "3" else "true", attempt=attempt)
    runs.ended("1")
    runs.ended("2")
    [listed] = runs.agent.ask([runs.target], AttemptsRequest())
    assert [(each.attempt, each.state) for each in listed.value.attempts] == [
        ("1", WorkerState.EXITED),
        ("2", WorkerState.EXITED),
        ("3", WorkerState.RUNNING),
    ]
    runs.agent.ask([runs.target], StopRequest("r1", "3", 0.1))
    runs.ended("3")


class Copies:
    """Two hosts, of which the first has the code, and copies of it in the name of attempt r1-1."""

    def __init__(self, lab: Lab, agent: HostAgent) -> None:
        self.lab = lab
        self.agent = agent
        self.source, self.sink = lab.add(0), lab.add(1)
        sent = distribute(agent, [self.source], BIG, clock=lab.clock, emit=lambda _event: None)
        assert sent.failed == {}

    def request(self, does: str, **more: Any) -> CopyRequest:
        name = (f"copy-{BIG.sha256[:16]}", f"r1-1-{does}")
        request = CopyRequest(*name, 1, does, "blobs", BIG.sha256, 60, inside(self.source))
        return replace(request, **more)

    def ask(self, target: HostTarget, does: str, **more: Any) -> Reply[CopyStatus]:
        [answer] = self.agent.ask([target], self.request(does, **more))
        return answer

    def serve(self, **more: Any) -> CopyStatus:
        answer = self.ask(self.source, "serve", **more)
        assert answer.value is not None, answer
        return answer.value

    def lacks(self, target: HostTarget, does: str = "fetch") -> LacksReply:
        request = self.request(does)
        name = CopyName(request.run, request.attempt)
        [answer] = self.agent.ask([target], LacksRequest("blobs", BIG.sha256, copy=name))
        assert answer.value is not None, answer
        return answer.value

    def ended(self, target: HostTarget, does: str) -> CopyStatus:
        def over() -> bool:
            copy = self.lacks(target, does).copy
            return copy is not None and copy.state.final

        self.lab.until(over, f"the end of {does}")
        copy = self.lacks(target, does).copy
        assert copy is not None
        return copy

    def stop(self, target: HostTarget, does: str) -> None:
        self.agent.ask([target], StopRequest(self.request(does).run, self.request(does).attempt, 0.1))


@pytest.fixture
def copies(lab: Lab, agent: HostAgent) -> Copies:
    return Copies(lab, agent)


def test_a_host_copies_from_another_while_nobody_is_connected(copies: Copies):
    nothing = copies.lacks(copies.sink)
    assert (nothing.has_tree, nothing.copy) == (False, CopyStatus(WorkerState.ABSENT))
    serving = copies.serve()
    assert (serving.state, serving.port is not None) == (WorkerState.RUNNING, True)
    begun = copies.ask(copies.sink, "fetch", port=serving.port, token=serving.token)
    assert begun.value is not None
    assert begun.value.error == ""
    for target in (copies.source, copies.sink):
        cut(copies.lab, copies.agent, target)
    done = copies.ended(copies.sink, "fetch")
    assert (done.state, done.error) == (WorkerState.EXITED, "")
    assert done.bytes == len(BIG.tree) + 700_000 + 256 * 4000
    assert int(copies.lacks(copies.sink).bits, 16) == 0
    copies.stop(copies.source, "serve")
    copies.ended(copies.source, "serve")


def test_a_copy_that_was_begun_is_not_begun_again_unless_it_has_ended_and_that_is_asked_for(copies: Copies):
    first = copies.serve()
    assert copies.serve(anew=True) == first
    copies.stop(copies.source, "serve")
    assert copies.ended(copies.source, "serve").port == first.port
    assert copies.serve().state is WorkerState.EXITED
    assert copies.serve(anew=True).state is WorkerState.RUNNING
    copies.stop(copies.source, "serve")
    copies.ended(copies.source, "serve")


def test_an_older_fence_begins_no_copy_and_odd_copies_are_refused(copies: Copies):
    serving = copies.serve(fence=7)
    door = {"port": serving.port, "token": serving.token}
    assert copies.ask(copies.source, "serve", fence=6).error == "stale-fence"
    for odd in ({"run": "r1"}, {"does": "session"}, {"deadline_s": 0}, {"attempt": "../x"}):
        request = replace(copies.request("fetch", **door), **odd)
        [answer] = copies.agent.ask([copies.sink], request)
        assert answer.error == "bad-request", odd
    assert copies.lacks(copies.sink).copy == CopyStatus(WorkerState.ABSENT)
    copies.stop(copies.source, "serve")
    copies.ended(copies.source, "serve")


def test_a_copy_that_fails_says_why(copies: Copies):
    serving = copies.serve()
    copies.ask(copies.sink, "fetch", port=serving.port, token="5a" * 32)
    failed = copies.ended(copies.sink, "fetch")
    assert failed.state is WorkerState.EXITED
    assert failed.error
    assert not copies.lacks(copies.sink).has_tree
    copies.stop(copies.source, "serve")
    copies.ended(copies.source, "serve")


def test_who_serves_ends_when_nobody_asks(copies: Copies):
    serving = copies.serve(idle_s=0.5)
    assert serving.state is WorkerState.RUNNING
    copies.ended(copies.source, "serve")


def test_contents_are_passed_on_from_host_to_host(lab: Lab, agent: HostAgent):
    targets = [lab.add(worker) for worker in range(6)]
    sent = distribute(agent, targets, BIG, clock=lab.clock, emit=lambda _event: None)
    assert (sent.failed, sent.relayed) == ({}, True)
    assert sent.sent_bytes < 2 * (700_000 + 256 * 4000)
    answers = agent.ask(targets, PrepareRequest(run="r1", attempt="1", fence=1, bundle=BIG.sha256))
    assert all(answer.value.prepared for answer in answers)


def test_files_go_where_cp_would_put_them_and_come_back(lab: Lab, agent: HostAgent):
    target = lab.add(0)
    content = b"alpha\n"
    blob = Blob(hashlib.sha256(content).hexdigest(), len(content))
    tree = render_tree([TreeFile("d/a", 0o640, blob, 1_700_000_000_000_000_000), TreeLink("d/link", "a")])
    packed = Content(tree, lambda _sha256: [content])
    for destination, lies_at in (("copy", "copy"), ("copy", "copy/d"), ("into/", "into/d")):
        pushed = push(agent, [target], packed, ["d"], destination, clock=lab.clock, emit=lambda _event: None)
        assert pushed.results[0].ok, pushed.results
        kept, pulled = fetch(lab, agent, target, f"{lies_at}/a")
        assert (pulled.results[0].ok, kept.names) == (True, {"": content})
    kept, pulled = fetch(lab, agent, target, "copy")
    assert pulled.results[0].ok
    assert {"a": content, "link": "a", "d/a": content}.items() <= kept.names.items()
    _, missing = fetch(lab, agent, target, "nothing")
    assert (missing.results[0].ok, "no such file" in missing.results[0].detail) == (False, True)


@pytest.mark.parametrize(
    ("on_host", "here", "lies_there", "kept"),
    [
        pytest.param({}, {"a": b"2"}, {"a": b"2"}, [], id="changed-here"),
        pytest.param({}, {"d/b": b"1"}, {"d/b": b"1"}, [], id="renamed-here"),
        pytest.param({"new": b"x"}, {"b": b"2"}, {"b": b"2", "new": b"x"}, [], id="made-there"),
        pytest.param({"a": b"x"}, {"a": b"1"}, {"a": b"1", "a.changed-here": b"x"},
                     [("p/a", "a.changed-here")], id="changed-there"),
        pytest.param({"a": b"x", "a.changed-here": b"y"}, {"a": b"2"},
                     {"a": b"2", "a.changed-here": b"y", "a.changed-here.2": b"x"},
                     [("p/a", "a.changed-here.2")], id="changed-there-again"),
        pytest.param({"a": b"2"}, {"a": b"2"}, {"a": b"2"}, [], id="changed-alike"),
        pytest.param({"d/c": b"x"}, {"a": b"1"}, {"a": b"1", "d/c": b"x"}, [("p/d/c", "")], id="deleted-here"),
        pytest.param({}, {"d": b"2"}, {"d": b"2"}, [], id="a-file-for-a-directory"),
        pytest.param({}, {"a/b": b"2"}, {"a/b": b"2"}, [], id="a-directory-for-a-file"),
        pytest.param({"d/new": b"x"}, {"d": b"2"}, {"d": b"2", "d.changed-here/new": b"x"},
                     [("p/d", "d.changed-here")], id="a-file-for-a-directory-with-more-in-it"),
        pytest.param({"a": b"x"}, {"a/b": b"2"}, {"a/b": b"2", "a.changed-here": b"x"},
                     [("p/a", "a.changed-here")], id="a-directory-for-a-file-that-changed-there"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", ["asked-first", "one-call"])
@pytest.mark.parametrize("lab", ["memory", soak("simulated")], indirect=True)  # the next test uses SSH, too
def test_a_mirror_removes_what_is_gone_and_keeps_what_was_changed_there(
    lab: Lab,
    agent: HostAgent,
    on_host: dict[str, bytes],
    here: dict[str, bytes],
    lies_there: dict[str, bytes],
    kept: list[tuple[str, str]],
    step: str,
):
    target = lab.add(0)

    last: list[bytes] = []

    def put(files: dict[str, bytes], *, mirror: bool) -> Pushed:
        tree = make_tree({f"p/{name}": data for name, data in files.items()})
        before = last[-1] if last and mirror and step == "one-call" else None
        last.extend([tree.tree] if mirror else [])
        emit = [].append
        return push(
            agent, [target], tree, ["p"], "./", clock=lab.clock, emit=emit, mirror=mirror, before=before
        )

    assert put({"a": b"1", "d/c": b"3"}, mirror=True).results[0].ok
    if on_host:
        assert put(on_host, mirror=False).results[0].ok
    pushed = put(here, mirror=True)
    assert pushed.results[0].ok, pushed.results
    assert list(pushed.kept.get(0, ())) == kept
    found, _ = fetch(lab, agent, target, "p")
    assert found.names == lies_there
    assert put(here, mirror=True).kept == {}


def test_a_mirror_that_is_a_link_on_the_host_keeps_what_was_changed_there(lab: Lab, agent: HostAgent):
    target = lab.add(0)

    def put(content: Content, *, mirror: bool) -> Pushed:
        emit = [].append
        return push(agent, [target], content, ["p"], "./", clock=lab.clock, emit=emit, mirror=mirror)

    disk, emit = make_tree({"disk/old": b"0"}), [].append
    assert push(agent, [target], disk, ["disk"], "./", clock=lab.clock, emit=emit).results[0].ok
    link = Content(render_tree([TreeLink("p", "disk")]), lambda _sha256: [])
    assert put(link, mirror=False).results[0].ok
    assert put(make_tree({"p/a": b"1", "p/gone": b"1"}), mirror=True).results[0].ok
    assert put(make_tree({"p/a": b"edited"}), mirror=False).results[0].ok
    assert put(make_tree({"p/a": b"2"}), mirror=True).kept[0] == (("p/a", "a.changed-here"),)
    found, _ = fetch(lab, agent, target, "disk")
    assert found.names == {"old": b"0", "a": b"2", "a.changed-here": b"edited"}


def fetch(lab: Lab, agent: HostAgent, target: HostTarget, path: str) -> tuple[Kept, Pulled]:
    kept = Kept()
    return kept, pull(agent, [target], path, lambda _target: kept, clock=lab.clock, emit=lambda _event: None)


def test_a_file_never_takes_the_place_of_a_directory(lab: Lab, agent: HostAgent):
    target = lab.add(0)

    def put(files: dict[str, bytes], destination: str) -> Any:
        names = sorted({name.split("/")[0] for name in files})
        emit = [].append
        return push(agent, [target], make_tree(files), names, destination, clock=lab.clock, emit=emit)

    assert put({"a/b": b"1"}, "place/").results[0].ok
    refused = put({"a": b"2"}, "place/")
    assert (refused.results[0].ok, "is a directory" in refused.results[0].detail) == (False, True)
