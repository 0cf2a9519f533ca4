"""What a pinned environment costs: beside pip on each host, verified beside a command, and in a run.

CPU is that of the command and of all hosts together: they share this machine, and what else runs here changes
the wall time more than the job does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from tests.bench.harness import (
    Budget,
    Contender,
    Line,
    Plan,
    Report,
    Sample,
    cpu_of_tree,
    execute,
    scratch,
    unmeasured,
)
from tests.support.session import TPUCTL, Session, open_session
from tests.support.wheels import MINOR, Project
from tpuctl.envs.lock import Lock, parse_lock

INSTALL_HOSTS = 8
VERIFY_HOSTS = 32
ACCELERATORS = {2: "v4-16", 8: "v4-64", 32: "v4-256"}
FILES = 3300
"""As many as JAX on the CPU has with all that it needs."""
PIP = "venv and pip on each host"
APPLY = "tpuctl env apply"
LEAST = "uv once, cp and imports"
"""Without hosts, transport and checks: nothing that brings these files to each host can need less."""
NOT_COMPILED = "env verify, data only"
"""What a verification costs that asks for nothing compiled."""
FIND = "exec -- find"
"""Looks at size and time of the same files: hosts share these processors, and none can verify without that."""
KEPT = Path.home() / ".cache/tpuctl-bench/wheels"


class _Index(SimpleHTTPRequestHandler):
    """A package index of files (PEP 503), which counts what it gives away."""

    sent = 0
    lock = threading.Lock()

    def log_message(self, *_words: object) -> None:
        pass

    def copyfile(self, source, outputfile) -> None:  # type: ignore[no-untyped-def]
        with self.lock:
            type(self).sent += os.fstat(source.fileno()).st_size if hasattr(source, "fileno") else 0
        shutil.copyfileobj(source, outputfile, 1 << 20)


def _real_environment(folder: Path) -> Lock:
    """JAX on the CPU, for the Python of these hosts, as the package index has it; its wheels are fetched once.
    Raises OSError without an index."""
    with open_session("--instant") as session:
        _lock_real(session)
        lock = parse_lock((session.work / "envs/pylock.real.toml").read_text(), "real")
    KEPT.mkdir(parents=True, exist_ok=True)
    for wheel in [wheel for package in lock.packages for wheel in package.wheels] + [lock.installer]:
        assert wheel is not None
        kept = KEPT / wheel.sha256
        if not kept.exists() or hashlib.sha256(kept.read_bytes()).hexdigest() != wheel.sha256:
            with urllib.request.urlopen(wheel.url, timeout=60) as answer:
                kept.write_bytes(answer.read())
        project = folder / "simple" / wheel.name.partition("-")[0].replace("_", "-").lower()
        project.mkdir(parents=True, exist_ok=True)
        os.symlink(kept, project / wheel.name)
        link = f'<a href="{wheel.name}#sha256={wheel.sha256}">{wheel.name}</a>\n'
        (project / "index.html").write_text(link)
    return lock


def _lock_real(session: Session) -> None:
    session.type("env", "new", "real", "--like", "cpu", "--python", MINOR, "--no-lock")
    session.type("env", "lock", "real", "--no-python", within_s=300)


@contextmanager
def _index(folder: Path) -> Iterator[str]:
    """The address of an index of the projects in `folder`, which hosts of this machine reach."""

    def handler(*given: object) -> _Index:
        return _Index(*given, directory=str(folder))  # type: ignore[arg-type]

    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple/"
    finally:
        server.shutdown()
        server.server_close()


def measure(plan: Plan) -> list[Report]:
    """Installing is about time and about what the index has to give; verifying about time."""
    return [_installing(plan), _verifying(plan)]


def _installing(plan: Plan) -> Report:
    hosts = plan.hosts(INSTALL_HOSTS)
    title = f"JAX on the CPU, installed on {hosts} hosts"
    samples: dict[str, list[Sample]] = {PIP: [], APPLY: [], LEAST: []}
    taken: dict[str, list[int]] = {PIP: [], APPLY: []}
    with scratch() as folder:
        try:
            lock = _real_environment(folder)
        except (OSError, AssertionError) as error:
            return unmeasured(title, "real wheels of pypi.org", f"no package index: {error}", plan)
        with _index(folder) as index:
            few = _install(APPLY, 2, lock, index)[1]
            for _ in range(plan.rounds):
                for name, sizes in taken.items():
                    sample, sent = _install(name, hosts, lock, index)
                    samples[name].append(sample)
                    sizes.append(sent)
                samples[LEAST].append(_least(hosts, lock, index))
    pip, applied, least = rows = tuple(_line(name, found) for name, found in samples.items())
    most = max(taken[APPLY])
    # Whichever is more: where even the least takes over a fifth of pip's, nothing is five times faster.
    most_wall_s = max(pip.wall_s / 5, 1.1 * least.wall_s)
    most_cpu_s = max(pip.cpu_s / 5, 1.1 * least.cpu_s)
    return Report(
        title=title,
        setting=f"{len(lock.packages)} packages of an index on this machine: pip took {max(taken[PIP]) >> 20} "
        f"MiB from it, apply {most >> 20}. Only apply checks each file and imports what it installed",
        baseline=PIP,
        lines=rows,
        budgets=(
            Budget("wall, of a fifth of pip's or of 1.1 times the least", applied.wall_s / most_wall_s, 1),
            Budget("CPU, of a fifth of pip's or of 1.1 times the least", applied.cpu_s / most_cpu_s, 1),
            Budget(f"bytes from the index, of those for 2 hosts ({few >> 20} MiB)", most / few, 1.05),
        ),
    )


def _install(name: str, hosts: int, lock: Lock, index: str) -> tuple[Sample, int]:
    """On hosts and from a machine that have nothing yet; the bytes that the index gave."""
    with open_session("--instant") as session:
        session.environ["UV_DEFAULT_INDEX"] = index
        session.type("up", ACCELERATORS[hosts], "big", "--spot", "--pay", within_s=300)
        session.type("exec", "big", "--", "true")  # brings the agent, whoever needs it
        script = f"{TPUCTL} env apply real --on big"
        if name == PIP:
            install = f"pip/bin/python -m pip -q install -i {index} {_wanted(lock)}"
            # As on a host: pip of this machine may know other places.
            installed = f"unset PIP_FIND_LINKS PIP_NO_INDEX; python{MINOR} -m venv pip && {install}"
            script = f"{TPUCTL} exec big -- sh -c '{installed}'"
        else:
            _lock_real(session)
        before = _Index.sent
        sample = _execute(session, _shell(name, session, script))
        return sample, _Index.sent - before


def _wanted(lock: Lock) -> str:
    versions = {each.name: each.version for each in lock.packages}
    return f"jax=={versions['jax']} jaxlib=={versions['jaxlib']}"


def _least(hosts: int, lock: Lock, index: str) -> Sample:
    """As many folders on this machine; the first import compiles what the copies then have."""
    uv = Path(TPUCTL).with_name("uv")
    others = " ".join(f"h{each}" for each in range(1, hosts))
    script = f"""set -e
        {uv} venv -q --python {MINOR} h0
        {uv} pip install -q --no-cache --default-index {index} --python h0/bin/python {_wanted(lock)}
        h0/bin/python -c 'import jax'
        for each in {others}; do cp -r h0 $each & done; wait
        for each in {others}; do $each/bin/python -c 'import jax' & done; wait"""
    with scratch() as folder:
        return execute(Contender(LEAST, ["sh", "-c", f"cd {folder} && {script}"]))


def _verifying(plan: Plan) -> Report:
    """One question to each host, and what a run pays for asking it."""
    hosts = plan.hosts(VERIFY_HOSTS)
    with open_session("--instant") as session:
        project = Project(session.work, whole_installer=True)
        files = {f"tiny/f{each}.py": "" for each in range(FILES)}
        project.add("tiny", {"tiny": "1.0"}, "imports: [tiny]", files={"tiny/__init__.py": "", **files})
        data = {f"plain/f{each}.txt": "" for each in range(FILES)}
        project.add("plain", {"plain": "1.0"}, "imports: [plain]", files={"plain/__init__.py": "", **data})
        (session.work / "tpuctl.yaml").write_text("")
        (session.work / "code").mkdir()
        session.type("up", ACCELERATORS[hosts], "big", "--spot", "--pay", within_s=300)
        for name in ("plain", "tiny"):
            session.type("env", "apply", name, "--on", "big", within_s=300)
        find = "find .tpuctl/envs/*/lib/python*/site-packages/tiny -printf '%s %T@ %p\\\\n'"
        run = f"cd code && {TPUCTL} run --on big --no-checkpoint"
        contenders = [
            _shell("exec -- true", session, f"{TPUCTL} exec big -- true"),
            _shell(FIND, session, f'{TPUCTL} exec big -- sh -c "{find} > found"'),
            _shell("env verify", session, f"{TPUCTL} env verify tiny --on big"),
            _shell(NOT_COMPILED, session, f"{TPUCTL} env verify plain --on big"),
            _shell("run -- true", session, f"{run} -- true"),
            _shell("run --env -- true", session, f"{run} --env tiny -- true"),
        ]
        samples: dict[str, list[Sample]] = {each.name: [] for each in contenders}
        for number in range(plan.rounds + 1):
            for each in contenders:
                sample = _execute(session, each)
                if number:  # agents and caches are there for all
                    samples[each.name].append(sample)
    rows = {name: _line(name, found) for name, found in samples.items()}
    _, finds, verifies, plain, bare, within = rows.values()
    return Report(
        title=f"A verified environment on {hosts} hosts",
        setting=f"{FILES} modules and what is compiled of each, or as many files of data; hosts are processes "
        "of this machine; runs end when their program does",
        baseline=contenders[0].name,
        lines=tuple(rows.values()),
        budgets=(
            Budget("wall time of env verify, of exec -- find", verifies.wall_s / finds.wall_s, 1.5),
            Budget(
                "wall time of env verify, of one without compiled files", verifies.wall_s / plain.wall_s, 1.2
            ),
            Budget("CPU of env verify, of one without compiled files", verifies.cpu_s / plain.cpu_s, 1.2),
            Budget("a run in it ends later by", within.wall_s - bare.wall_s, 1.0, unit="s"),
        ),
    )


def _execute(session: Session, contender: Contender) -> Sample:
    """Once, with the CPU of the hosts."""
    info = session.sim()
    before = cpu_of_tree(info.guardian_pid)
    sample = execute(contender)
    return replace(sample, cpu_s=sample.cpu_s + cpu_of_tree(info.guardian_pid) - before)


def _line(name: str, found: list[Sample]) -> Line:
    return Line(name, median(each.wall_s for each in found), median(each.cpu_s for each in found))


def _shell(name: str, session: Session, script: str) -> Contender:
    return Contender(name, ["sh", "-c", f"cd {session.work} && {script}"], session.environ)
