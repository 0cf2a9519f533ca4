"""The verbs of the agent on a host in memory.

What handles files alone is done by the agent's own modules (`agent.py`). What needs processes is played here:
requests, answers, refusals and their order are those of `tpuctl/agent/`, and the shared suite of the agent's
protocol holds both to it.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.support.memory import disks, placing, provision
from tests.support.memory.agent import Conversation, Json, Refused, agent, answer, converse, need, on
from tests.support.memory.host import MemoryAttempt, MemoryRun
from tests.support.memory.process import Killed, Process, Program, Steps, Terminated, Wait, end_tree

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost

EXIT_NOTHING_TO_FOLLOW = 98
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
ENDED = ("exited", "lost")
STARTING_GRACE_S = 15.0
FREE_PORT = 40000
FEED_POLL_S = 0.05


Answering = Callable[[Process, Json], Generator["Wait | float", None, "Json | int"]]


def verb(body: Answering) -> Program:
    """A verb as a program: reads the request, answers with what `body` returns, or exits with it."""

    def program(process: Process) -> Steps:
        line = yield from process.read_line()
        try:
            answer = yield from body(process, json.loads(line or b"{}"))
        except Refused as error:
            process.print(json.dumps({"error": error.code, "message": str(error)}))
            return 1
        if isinstance(answer, int):
            return answer
        process.print(json.dumps(answer))
        return 0

    return program


def at_once(body: Callable[[MemoryHost, Json], Json]) -> Answering:
    def answering(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
        return body(process.host, request)
        yield

    return answering


def activity(_host: MemoryHost, _request: Json) -> Json:
    """Nobody uses hosts in memory but runs."""
    nobody = {"sessions": 0, "chip_users": 0, "chips_unknown": False, "writers": 0, "writers_unknown": False}
    return {**nobody, "load": 0.0, "cpus": 240}


def warn(_host: MemoryHost, request: Json) -> Json:
    need(request, "text", str)
    return {"terminals": 0}


def hello(host: MemoryHost, request: Json) -> Json:
    if host.unfit:
        raise Refused("failed", host.unfit)
    return {
        "schema": 1,
        "time": host.time,
        "boot_id": host.boot_id,
        "hostname": host.hostname,
        "user": host.user,
        "home": host.home,
        "python_version": "3.10.12",
        "kernel": "6.8.0-memory",
        "disk_free_bytes": 80 << 30,
        "cpu_count": 240,
        "chips": None,
        "worker_id": host.environment().get("TPU_WORKER_ID"),
        "facts": facts(host, request) if request.get("sections") else None,
    }


def vacate(host: MemoryHost, request: Json) -> Json:
    need(request, "only", list)
    return disks.vacate(host, request)


# Attempts.


def ids(request: Json) -> tuple[str, str]:
    run, number = str(request.get("run", "")), str(request.get("attempt", ""))
    for name in (run, number):
        if not NAME.match(name):
            raise Refused("bad-request", f"not a run or attempt id: {name!r}")
    return run, number


def find_attempt(host: MemoryHost, request: Json) -> MemoryAttempt | None:
    run, number = ids(request)
    return host.runs.get(run, MemoryRun()).attempts.get(number)


def check_fence(run: MemoryRun, fence: int) -> None:
    if fence < run.fence:
        raise Refused("stale-fence", f"fence {fence} is older than {run.fence}: another tpuctl took over")
    run.fence = fence


def look(host: MemoryHost, request: Json) -> dict[str, Any]:
    run, number = ids(request)
    attempt = find_attempt(host, request)
    answer: dict[str, Any] = {
        "run": run,
        "attempt": number,
        "state": "absent",
        "exit_status": None,
        "signal": None,
        "started_at": None,
        "ended_at": None,
        "pid": None,
        "stopped": False,
        "stop_asked": attempt is not None and attempt.stop_asked,
        "rebooted": False,
        "detail": "",
        "survivors": [],
        "stdout_bytes": len(attempt.stdout) if attempt else 0,
        "stderr_bytes": len(attempt.stderr) if attempt else 0,
        "disk_free_bytes": 80 << 30,
        "boot_id": host.boot_id,
        "time": host.time,
    }
    if attempt is None:
        return answer
    supervisor = attempt.supervisor
    if attempt.status:
        answer.update(attempt.status)
        answer["rebooted"] = attempt.boot_id != host.boot_id
        alive = supervisor is not None and supervisor.alive and attempt.boot_id == host.boot_id
        if answer["state"] != "exited" and not alive:
            answer.update(state="lost", detail="the supervisor is gone and left no end")
            left = [process for process in attempt.tree if process.alive]
            if left:
                answer["survivors"] = [process.pid for process in left]
                answer["survivors_said"] = ", ".join(f"{p.pid} {p.argv[0]} of {host.user}" for p in left)
    elif attempt.started_at is not None:
        fresh = host.time - attempt.started_at < STARTING_GRACE_S and attempt.boot_id == host.boot_id
        answer["state"] = "starting" if fresh else "lost"
    else:
        answer["state"] = "prepared"
    return answer


def read_bundle(host: MemoryHost, bundle: str | None) -> tuple[Sequence[Any], list[str]]:
    """The entries of a tree, and the contents of it that are missing."""
    with on(host):
        found: tuple[Sequence[Any], list[str]] = agent.prepare.read_bundle(bundle)
    return found


def make_prepared(host: MemoryHost, request: Json, entries: Sequence[Any]) -> MemoryAttempt:
    run, number = ids(request)
    attempts = host.runs.setdefault(run, MemoryRun()).attempts
    if number not in attempts:
        attempts[number] = MemoryAttempt(request.get("bundle"), request["fence"])
        work = work_dir(host, run, number)
        with on(host):
            agent.contents.materialise(entries, os.fsencode(agent.base.make_dir(work)), "blobs", 0o700)
    elif attempts[number].bundle != request.get("bundle"):
        raise Refused("conflict", f"attempt {number} was prepared with other code")
    return attempts[number]


def prepare(host: MemoryHost, request: Json) -> Json:
    run, _ = ids(request)
    fence = need(request, "fence", int)
    entries, missing = read_bundle(host, request.get("bundle"))
    if missing:
        return {"missing": missing}
    check_fence(host.runs.setdefault(run, MemoryRun()), fence)
    make_prepared(host, request, entries)
    answer: dict[str, Any] = {"prepared": True}
    if request.get("want_port"):
        answer["free_port"] = FREE_PORT
        answer["taken_port"] = host.network.taken_port
    return answer


def reach(host: MemoryHost, request: Json) -> Json:
    if host.network.filtered & {request["port"], (request["port"], host.hostname)}:
        return {"reached": False, "why": f"no answer in {request['seconds']} s"}
    return {"reached": True}


def bucket_access(host: MemoryHost, request: Json) -> Json:
    """Hosts in memory have no account."""
    return {}


def work_dir(host: MemoryHost, run: str, number: str) -> str:
    return f"{host.home}/.tpuctl/runs/{run}/{number}/work"


def start(host: MemoryHost, request: Json) -> Json:
    run, number = ids(request)
    fence, argv = need(request, "fence", int), need(request, "argv", list)
    if not argv or not all(isinstance(part, str) for part in argv):
        raise Refused("bad-request", "argv must be a list of strings with at least one")
    check_fence(host.runs.setdefault(run, MemoryRun()), fence)
    found, attempt = look(host, request), find_attempt(host, request)
    if attempt is None:
        raise Refused("not-prepared", f"attempt {number} of run {run} is not prepared here")
    if found["state"] != "prepared":
        env = attempt.supervisor.env if attempt.supervisor is not None else {}
        return {"state": found["state"], "pid": found["pid"], "already": True, **told(request, env)}
    work = work_dir(host, run, number)
    cwd = os.path.normpath(os.path.join(work, request.get("cwd") or "."))
    if cwd != work and not cwd.startswith(work + "/"):
        raise Refused("bad-request", f"cwd leaves the work directory: {request.get('cwd')!r}")
    if attempt.stop_grace_s is not None:
        raise Refused("stopped", f"attempt {number} was stopped before it started")
    env = {**(request.get("env_defaults") or {}), "HOME": host.home, **host.environment(), "PWD": cwd}
    env.update({str(key): str(value) for key, value in (request.get("env") or {}).items()})
    attempt.beats = bool(request.get("beat_s"))
    launch(host, attempt, host.network.find_program(host, argv), argv, env, float(request.get("grace_s", 30.0)))
    found = look(host, request)
    return {"state": found["state"], "pid": found["pid"], "already": False, **told(request, env)}


def told(request: Json, env: Mapping[str, str]) -> dict[str, Any]:
    names, hidden = tuple(request.get("tell") or ()), request.get("secrets") or ()
    return {"variables": {k: v for k, v in env.items() if k.startswith(names) and k not in hidden}}


def launch(
    host: MemoryHost,
    attempt: MemoryAttempt,
    body: Program | None,
    argv: list[str],
    env: dict[str, str],
    grace_s: float,
) -> None:
    attempt.started_at, attempt.boot_id = host.time, host.boot_id
    attempt.status = {"state": "starting"}
    attempt.supervisor = host.start(supervise(attempt, body, argv, grace_s), env=env)
    attempt.supervisor.outbox = None
    attempt.supervisor.resume()  # who starts answers when the first status is written


def supervise(attempt: MemoryAttempt, body: Program | None, argv: list[str], default_grace_s: float) -> Program:
    def program(process: Process) -> Steps:
        if body is None:
            why = f"cannot run {argv[0]}: No such file or directory"
            attempt.stderr += f"tpuctl: {why}\n".encode()
            now = process.now
            attempt.status = {"state": "exited", "exit_status": 127, "detail": why}
            attempt.status |= {"started_at": now, "ended_at": now}
            return 1
        tree = attempt.tree
        main = process.host.start(body, argv=argv, env=process.env, tree=tree)
        main.outbox = None
        main.emit = log_to(attempt, process)
        attempt.status = {"state": "running", "pid": main.pid, "started_at": process.now}
        told = False
        try:
            while main.alive and attempt.stop_grace_s is None:
                yield Wait(change=(main,))
        except Terminated:
            told = True
            attempt.stop_grace_s = default_grace_s if attempt.stop_grace_s is None else attempt.stop_grace_s
        attempt.status["stopped"] = main.alive or told

        def grace() -> float:
            return default_grace_s if attempt.stop_grace_s is None else attempt.stop_grace_s

        try:
            yield from end_tree(tree, grace, process.now)
        except Terminated:
            attempt.status["stopped"] = attempt.status["stopped"] or main.exit_status != 0
            yield from end_tree(tree, grace, process.now)
        attempt.status |= {"state": "exited", "exit_status": main.exit_status, "signal": main.signal}
        attempt.status["ended_at"] = process.now
        return 0

    return program


def log_to(attempt: MemoryAttempt, supervisor: Process) -> Callable[[str, bytes], None]:
    def emit(stream: str, data: bytes) -> None:
        attempt.log(stream).extend(data)
        supervisor.poke()  # who follows waits for the supervisor

    return emit


COPY = "copy-"
COPY_GRACE_S = 2.0


def copy(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
    """`serve` or `fetch` under a supervisor; who serves is answered for when it has a port."""
    begin_copy(process.host, request)
    while True:
        found = stands(process.host, request)
        if request["does"] == "fetch" or "port" in found or found["state"] in ENDED:
            return found
        yield 0.02


def begin_copy(host: MemoryHost, request: Json) -> None:
    run, number = ids(request)
    fence, does = need(request, "fence", int), request.get("does")
    lasts = need(request, "deadline_s", int)
    if does not in ("serve", "fetch") or not run.startswith(COPY) or lasts < 1:
        raise Refused("bad-request", f"no such copy: {does!r} of {run!r}")
    record = host.runs.setdefault(run, MemoryRun())
    check_fence(record, fence)
    state = look(host, request)["state"]
    if state in ENDED and request.get("anew"):
        del record.attempts[number]
        state = "absent"
    if state in ("absent", "prepared"):
        attempt = record.attempts.setdefault(number, MemoryAttempt(None, fence))
        attempt.wanted = request.get("tree")
        body = placing.serve if does == "serve" else placing.fetch
        launch(host, attempt, carry(body, request), ["carry", does], {}, COPY_GRACE_S)


def carry(body: Answering, request: Json) -> Program:
    def program(process: Process) -> Steps:
        alarm = process.now + request["deadline_s"]
        steps = body(process, request)
        try:
            wanted = next(steps)
            while process.now < alarm:
                limited = wanted if isinstance(wanted, Wait) else Wait(min(wanted, alarm - process.now))
                yield limited
                if process.now < alarm:
                    wanted = next(steps)
        except StopIteration as end:
            process.print(json.dumps(end.value))
            return 0
        except Refused as error:
            process.print(json.dumps({"error": error.code, "message": str(error)}))
            return 1
        steps.close()
        raise Killed(signal.SIGALRM)

    return program


def stands(host: MemoryHost, request: Json) -> Json:
    """The state of a copy, and of what it told last what others need."""
    attempt = find_attempt(host, request)
    lines = bytes(attempt.stdout).splitlines() if attempt is not None else []
    told = json.loads(lines[-1]) if lines else {}
    kept = {key: told[key] for key in ("bytes", "port", "token", "error", "message") if key in told}
    return {"state": look(host, request)["state"], **kept}


def facts_waited(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
    """`facts`, which waits for jobs where it is asked to."""
    yield from wait_for_jobs(process, request)
    return facts(process.host, request)


def job_begun(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
    """`provision`, with the facts of after it where the job ends in time."""
    answer = begin_job(process.host, request)
    if "missing" in answer or not (yield from wait_for_jobs(process, request)):
        return answer
    return {**job_stands(process.host, request), "facts": facts(process.host, request)}


def wait_for_jobs(
    process: Process, request: Json, kind: str = provision.PROVISION
) -> Generator[Wait | float, None, bool]:
    """Whether all of a kind ended within `patience_s`; not without."""
    until = process.now + float(request.get("patience_s") or 0)
    while going := [
        attempt.supervisor
        for run, _, attempt in list_attempts(process.host)
        if run.startswith(kind) and attempt.supervisor is not None and attempt.supervisor.alive
    ]:
        if process.now >= until:
            return False
        yield Wait(until - process.now, change=tuple(going))
    return bool(request.get("patience_s"))


def facts(host: MemoryHost, request: Json) -> Json:
    known = [(run, number) for run, number, _ in list_attempts(host) if run.startswith(provision.PROVISION)]
    jobs = [job_stands(host, {"run": run, "attempt": number}) for run, number in known]
    return provision.facts_of(host, request, jobs)


def job_stands(host: MemoryHost, request: Json) -> Json:
    attempt, found = find_attempt(host, request), look(host, request)
    told = ("run", "attempt", "state", "exit_status", "detail", "started_at", "ended_at")
    job = attempt.job.stands() if attempt is not None and attempt.job is not None else {}
    return {**{name: found[name] for name in told}, **job}


def begin_job(host: MemoryHost, request: Json) -> Json:
    """`provision`: the job, unless it was begun."""
    run, number = ids(request)
    need(request, "fence", int)
    provision.check_request(request)
    entries, missing = read_bundle(host, request.get("bundle"))
    if missing:
        return {"missing": missing}
    record, tries = host.runs.setdefault(run, MemoryRun()), 1
    check_fence(record, request["fence"])
    state = look(host, request)["state"]
    if state in ENDED and request.get("anew"):
        before = record.attempts.pop(number).job
        tries, state = 1 + (before.tries if before is not None else 0), "absent"
    if state in ("absent", "prepared"):
        for other, other_number, attempt in list_attempts(host):
            going = look(host, {"run": other, "attempt": other_number})["state"] in ("starting", "running")
            if attempt.job is not None and going:
                raise Refused("busy", f"{other} is at work: {attempt.job.doing}")
        attempt = make_prepared(host, request, entries)
        attempt.job = provision.Job(list(request["operations"]), tries)
        body = provision.work(attempt.job, work_dir(host, run, number))
        launch(host, attempt, body, ["work", run, number], {"HOME": host.home, **host.environment()}, 5.0)
    return job_stands(host, request)


def lacks(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
    named = request.get("copy")
    plain = {key: value for key, value in request.items() if key not in ("copy", "patience_s")}
    if named is not None:
        yield from wait_for_jobs(process, request, named["run"])
    found: Any = yield from converse(agent.placing.lacks, process, plain, request.get("size") or 0)
    return found if named is None else {**found, "copy": stands(process.host, named)}


def status(host: MemoryHost, request: Json) -> Json:
    answer = look(host, request)
    if request.get("host"):
        answer["preempted"] = host.metadata().get("instance/preempted") == "TRUE"
        answer["maintenance"] = str(host.metadata().get("instance/maintenance-event", ""))
    return answer


def diagnose(_host: MemoryHost, _request: Json) -> Json:
    return {"text": "== kernel\nnot known\n"}


def tree(host: MemoryHost, request: Json) -> Json:
    return answer(agent.tree.tree, host, request)


def stacks(host: MemoryHost, request: Json) -> Json:
    return {"state": look(host, request)["state"], "processes": []}


def stop(host: MemoryHost, request: Json) -> Json:
    found, attempt = look(host, request), find_attempt(host, request)
    grace_s = float(request.get("grace_s", 30.0))
    if attempt is not None and found["state"] in ("prepared", "starting", "running"):
        attempt.stop_grace_s, attempt.stop_asked = grace_s, True
        if attempt.supervisor is not None:
            attempt.supervisor.wake()
    elif attempt is not None and found["survivors"]:
        left = [process for process in attempt.tree if process.alive]
        if attempt.survivors_told_at is None:
            attempt.survivors_told_at, attempt.stop_asked = host.time, True
            for process in left:
                process.terminate()
        if host.time - attempt.survivors_told_at >= grace_s:
            for process in left:
                process.kill()
    return found


def list_attempts(host: MemoryHost) -> list[tuple[str, str, MemoryAttempt]]:
    return [
        (run, number, attempt)
        for run, record in sorted(host.runs.items())
        for number, attempt in sorted(record.attempts.items())
    ]


def attempts(host: MemoryHost, _request: Json) -> Json:
    return {"attempts": [look(host, {"run": run, "attempt": n}) for run, n, _ in list_attempts(host)]}


def follow(process: Process, request: Json) -> Generator[Wait | float, None, int]:
    process.silence_s = float(request.get("silence_s") or "inf")
    host = process.host
    offsets = {name: int(request.get(f"{name}_offset", 0)) for name in ("stdout", "stderr")}
    while True:
        state, attempt = look(host, request)["state"], find_attempt(host, request)
        moved = False
        for name in offsets:
            if attempt is None:
                break
            data = bytes(attempt.log(name)[offsets[name] : offsets[name] + (1 << 18)])
            offsets[name] += len(data)
            process.write(data, name)
            moved = moved or bool(data)
        if not moved and state in ("absent", "lost"):
            return EXIT_NOTHING_TO_FOLLOW
        if not moved and state == "exited":
            return 0
        drop_heartbeats(process)
        if process.at_eof:
            return 0
        yield 0.0 if moved else look_again(attempt)


def look_again(attempt: MemoryAttempt | None) -> Wait:
    """When anything of this attempt moves; the starting grace ends by itself."""
    supervisor = attempt.supervisor if attempt is not None else None
    if supervisor is None:
        return Wait(1.0, stdin=True)
    return Wait(stdin=True, change=(supervisor,))


def drop_heartbeats(process: Process) -> None:
    process.stdin.clear()


def news(process: Process, request: Json) -> Generator[Wait | float, None, int]:
    attempt, limit = find_attempt(process.host, request), int(request.get("limit", 1 << 20))
    found, data = {"stdout": 0, "stderr": 0}, b""
    for stream in () if request.get("times_only") else ("stdout", "stderr"):
        offset = int(request.get(f"{stream}_offset", 0))
        part = bytes(attempt.log(stream)[offset : offset + limit]) if attempt is not None else b""
        limit -= len(part)
        found[stream] = len(part)
        data += part
    process.print(json.dumps({"news": found, "more": limit <= 0}))
    for start in range(0, len(data), 1 << 18):
        process.write(data[start : start + (1 << 18)])
        yield 0.0
    return 0


def session(process: Process) -> Steps:
    size = yield from process.read_line()
    words = (yield from process.read_exactly(int(size))).decode().split("\0")
    grace, silence_s, _, pipe, text, count = float(words[0]), float(words[1]), *words[2:6]
    argv, variables = words[6 : 6 + int(count)], words[6 + int(count) : -1]
    process.silence_s = silence_s
    host = process.host
    if argv:
        body = host.network.find_program(host, argv)
        if body is None:
            process.print(f"tpuctl: cannot run {argv[0]}: No such file or directory", "stderr")
            return 127
    else:
        argv = ["/bin/bash", "-c", text]
        body = host.network.shell(host, text)
    tree: list[Process] = []
    env = {**process.env, **dict(variable.split("=", 1) for variable in variables)}
    main = host.start(body, argv=argv, env=env, tree=tree)
    main.outbox, main.emit, main.reader = None, process.emit, process
    if pipe:
        host.fed[pipe] = main
    else:
        main.end_stdin()
    try:
        while main.alive and not process.at_eof:
            drop_heartbeats(process)
            yield Wait(stdin=True, change=(main,))
    except Terminated:
        drop_heartbeats(process)
    ended_by_itself = not main.alive
    yield from end_tree(tree, lambda: grace, process.now)
    if ended_by_itself and main.exit_status is not None:
        return main.exit_status
    return 128 + (main.signal or 9) if main.exit_status is None else main.exit_status


def feed(process: Process) -> Steps:
    """Hands a piece on when the command wants one, so that what it leaves is known."""
    pipe, host, taken = (yield from process.read_line()).decode(), process.host, 0
    while pipe not in host.fed:
        if process.at_eof:
            return 1
        yield FEED_POLL_S
    main = host.fed.pop(pipe)
    while main.alive and (size := (yield from process.read_line())):
        piece = yield from process.read_exactly(int(size))
        while main.alive and not main.wants_stdin:
            yield FEED_POLL_S
        if not piece:
            main.end_stdin()
            break
        main.feed(piece)
        taken += len(piece)
    process.print(json.dumps({"taken": taken - main.unread}))
    return 0


# Contents.


def receive(process: Process, request: Json) -> Conversation:
    listed = need(request, "blobs", list)
    size = sum(int(size) - int(start) for _, size, start in listed)
    return (yield from converse(agent.contents.receive, process, request, size))


def survey(process: Process, request: Json) -> Conversation:
    return (yield from converse(agent.sending.survey, process, request, 0))


def send(process: Process, request: Json) -> Conversation:
    process.silence_s = float(request.get("silence_s", 15.0))
    return (yield from converse(agent.sending.send, process, request, need(request, "size", int)))


def place(host: MemoryHost, request: Json) -> Json:
    return answer(agent.placing.place, host, request)


ANSWERS: dict[str, Answering] = {
    "hello": at_once(hello),
    "facts": facts_waited,
    "provision": job_begun,
    "activity": at_once(activity),
    "warn": at_once(warn),
    "vacate": at_once(vacate),
    "prepare": at_once(prepare),
    "reach": at_once(reach),
    "bucket_access": at_once(bucket_access),
    "start": at_once(start),
    "status": at_once(status),
    "diagnose": at_once(diagnose),
    "stacks": at_once(stacks),
    "tree": at_once(tree),
    "stop": at_once(stop),
    "attempts": at_once(attempts),
    "place": at_once(place),
    "copy": copy,
    "lacks": lacks,
    "receive": receive,
    "survey": survey,
    "send": send,
    "serve": placing.serve,
    "fetch": placing.fetch,
    "follow": follow,
    "news": news,
}
VERBS: dict[str, Program] = {
    **{name: verb(body) for name, body in ANSWERS.items()},
    "session": session,
    "feed": feed,
}


def find_program(name: str) -> Program:
    """A verb, or several that are joined by a plus."""
    return verb(several(name.split("+"))) if "+" in name else VERBS[name]


def several(names: Sequence[str]) -> Answering:
    def answering(process: Process, request: Json) -> Generator[Wait | float, None, Json]:
        answers: list[Json | int] = []
        for name, each in zip(names, need(request, "calls", list), strict=True):
            try:
                answers.append((yield from ANSWERS[name](process, each)))
            except Refused as error:
                answers.append({"error": error.code, "message": str(error)})
                break
        return {"answers": answers}

    return answering
