"""What a pinned environment costs: beside pip on each host, verified beside a command, and in a run."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.bench.harness import Budget, Contender, Line, Plan, Report, Sample, compare, execute, lines
from tests.support.session import TPUCTL, Session, open_session
from tests.support.wheels import MINOR, Project, installer_wheel, make_wheel

INSTALL_HOSTS = 8
VERIFY_HOSTS = 32
ACCELERATORS = {2: "v4-16", 8: "v4-64", 32: "v4-256"}
PACKAGES, FILES, FILE_BYTES = 6, 150, 20_000
"""18 MB in 900 files, of which wheels have 12 MB: a thirtieth of what jax[tpu] brings, in as many files."""
PIP = "venv and pip on each host"
APPLY = "tpuctl env apply"


class _Index(SimpleHTTPRequestHandler):
    """A package index of files (PEP 503), which counts what it gives away."""

    sent = 0
    lock = threading.Lock()

    def log_message(self, *_words: object) -> None:
        pass

    def copyfile(self, source, outputfile) -> None:  # type: ignore[no-untyped-def]
        content = source.read()
        with self.lock:
            type(self).sent += len(content)
        outputfile.write(content)


@contextmanager
def _index(folder: Path, rounds: int) -> Iterator[str]:
    """The address of an index with packages for each round and uv, which hosts of this machine reach."""
    wheels = folder / "wheels"
    wheels.mkdir()
    noise = random.Random(1)
    for name in [name for number in range(rounds) for name in _packages(number)]:
        files = {f"{name}/f{each}.py": f"# {noise.randbytes(FILE_BYTES // 2).hex()}\n" for each in range(FILES)}
        make_wheel(wheels, name, "1.0", {f"{name}/__init__.py": "", **files})
    installer_wheel(wheels, whole=True)
    for wheel in wheels.iterdir():
        project = folder / "site/simple" / wheel.name.partition("-")[0]
        project.mkdir(parents=True)
        wheel.rename(project / wheel.name)
        (project / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')

    def handler(*given: object) -> _Index:
        return _Index(*given, directory=str(folder / "site"))  # type: ignore[arg-type]

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


def _packages(number: int) -> list[str]:
    """Names of what is installed in a round, which nobody has seen before."""
    return [f"part{number}x{each}" for each in range(PACKAGES)]


def _installing(plan: Plan) -> Report:
    hosts = plan.hosts(INSTALL_HOSTS)
    with open_session("--instant") as session, _index(session.root, plan.rounds + 2) as index:
        session.environ["UV_DEFAULT_INDEX"] = index
        session.type("up", ACCELERATORS[2], "few", "--spot", "--pay")
        session.type("up", ACCELERATORS[hosts], "many", "--spot", "--pay", within_s=300)
        _apply(session, 0, "few")  # brings uv to this machine
        of_few = _apply(session, 1, "few")[1]
        samples: dict[str, list[Sample]] = {PIP: [], APPLY: []}
        taken: dict[str, list[int]] = {PIP: [], APPLY: []}
        for number in range(2, plan.rounds + 2):
            for name, (sample, sent) in (
                (PIP, _pip(session, number, index)),
                (APPLY, _apply(session, number, "many")),
            ):
                samples[name].append(sample)
                taken[name].append(sent)
    rows = tuple(
        Line(name, _middle([each.wall_s for each in found]), _middle([each.cpu_s for each in found]))
        for name, found in samples.items()
    )
    most = max(taken[APPLY])
    return Report(
        title=f"An environment on {hosts} hosts",
        setting=f"{PACKAGES} packages from an index on this machine; pip took {max(taken[PIP]) >> 20} MiB from "
        f"it, apply {most >> 20} MiB. CPU is that of the command alone",
        baseline=PIP,
        lines=rows,
        budgets=(
            Budget("times faster than pip on each host", rows[0].wall_s / rows[1].wall_s, 5.0, at_least=True),
            Budget(f"bytes from the index, of those for 2 hosts ({of_few >> 20} MiB)", most / of_few, 1.05),
        ),
    )


def _verifying(plan: Plan) -> Report:
    """One question to each host, and what a run pays for asking it."""
    hosts = plan.hosts(VERIFY_HOSTS)
    with open_session("--instant") as session:
        project = Project(session.work, whole_installer=True)
        project.add("tiny", {"tiny": "1.0"}, "imports: [tiny]")
        (session.work / "tpuctl.yaml").write_text("")
        (session.work / "code").mkdir()
        session.type("up", ACCELERATORS[hosts], "big", "--spot", "--pay", within_s=300)
        session.type("env", "apply", "tiny", "--on", "big", within_s=300)
        run = f"cd code && {TPUCTL} run --on big --no-checkpoint"
        contenders = [
            _shell("exec -- true", session, f"{TPUCTL} exec big -- true"),
            _shell("env verify", session, f"{TPUCTL} env verify tiny --on big"),
            _shell("run -- true", session, f"{run} -- true"),
            _shell("run --env -- true", session, f"{run} --env tiny -- true"),
        ]
        compare(contenders, 1)  # agents and caches are there for all
        found = compare(contenders, plan.rounds)
    walls = {name: sample.wall_s for name, sample in found.items()}
    later = walls["run --env -- true"] - walls["run -- true"]
    ratio = walls["env verify"] / walls["exec -- true"]
    return Report(
        title=f"A verified environment on {hosts} hosts",
        setting="hosts are processes of this machine; runs end when their program does",
        baseline=contenders[0].name,
        lines=lines(contenders, found),
        budgets=(
            Budget("wall time of env verify, of exec -- true", ratio, 1.5),
            Budget("a run in it ends later by", later, 1.0, unit="s"),
        ),
    )


def _apply(session: Session, number: int, slice_name: str) -> tuple[Sample, int]:
    """Installed from a lock that somebody made before; the bytes that the index gave."""
    name = f"e{number}"
    packages = "".join(f"  - {package}==1.0\n" for package in _packages(number))
    text = f'name: {name}\nbackend: cpu\npython: "{MINOR}"\nrequirements:\n{packages}'
    (session.work / "envs").mkdir(exist_ok=True)
    (session.work / f"envs/{name}.yaml").write_text(text)
    session.type("env", "lock", name, "--no-python")
    before = _Index.sent
    sample = execute(_shell(APPLY, session, f"{TPUCTL} env apply {name} --on {slice_name}"))
    return sample, _Index.sent - before


def _pip(session: Session, number: int, index: str) -> tuple[Sample, int]:
    before, place = _Index.sent, f"pip{number}"
    made = f"python{MINOR} -m venv {place} && {place}/bin/python -m pip -q install --no-cache-dir -i {index}"
    script = f"{made} {' '.join(_packages(number))}"
    sample = execute(_shell(PIP, session, f"{TPUCTL} exec many -- sh -c '{script}'"))
    return sample, _Index.sent - before


def _shell(name: str, session: Session, script: str) -> Contender:
    return Contender(name, ["sh", "-c", f"cd {session.work} && {script}"], session.environ)


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
