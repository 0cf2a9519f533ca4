"""`python -m tests.bench.dependencies`: what each dependency costs, in docs/develop/dependencies.md.

Megabytes are those of the installed files without what Python compiles; an import is the processor time of a
fresh interpreter beside one that imports nothing.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from statistics import median

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import measured
from tests.support.session import open_session

PAGE = measured.ROOT / "docs" / "develop" / "dependencies.md"
BEGIN, END = "<!-- measured: dependencies -->\n", "<!-- end: dependencies -->\n"
MODULES = {
    "google-cloud-compute": "google.cloud.compute_v1",
    "google-cloud-storage": "google.cloud.storage",
    "google-cloud-tpu": "google.cloud.tpu_v2",
    "pyyaml": "yaml",
}
"""Where a module is called differently from its package."""
COMMANDS = {
    "`--help`": ("--help",),
    "`up`": ("up", "v4-8", "one", "--spot", "--pay"),
    "`ls`": ("ls",),
    "`exec`": ("exec", "one", "--", "true"),
}
ROUNDS = 7


def requirements_of(package: str, extras: Sequence[str] = ("",)) -> list[Requirement]:
    """What a package needs here, with what the named extras add; "" is the package itself."""
    found = map(Requirement, metadata.requires(package) or ())
    return [
        each
        for each in found
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def closure(requirements: Iterable[Requirement]) -> frozenset[str]:
    """Names of all packages that these need, with them."""
    seen: set[tuple[str, str]] = set()
    pending = [(each.name, extra) for each in requirements for extra in ("", *each.extras)]
    while pending:
        name, extra = pending.pop()
        key = (canonicalize_name(name), extra)
        if key not in seen:
            seen.add(key)
            needed = requirements_of(name, ("", extra))
            pending += [(each.name, more) for each in needed for more in ("", *each.extras)]
    return frozenset(name for name, _ in seen)


def megabytes(packages: Iterable[str]) -> float:
    """Of the files that belong to them, without what is compiled."""
    files = (file.locate() for each in packages for file in metadata.files(each) or () if file.suffix != ".pyc")
    return sum(os.stat(str(path)).st_size for path in files if os.path.exists(str(path))) / 1e6


def import_ms(statement: str) -> float:
    """Processor time of one interpreter, in ms: the median of several."""
    times = []
    for _ in range(ROUNDS):
        pid = os.posix_spawn(sys.executable, [sys.executable, "-c", statement], os.environ)
        _, status, usage = os.wait4(pid, 0)
        assert status == 0, statement
        times.append(1e3 * (usage.ru_utime + usage.ru_stime))
    return median(times)


def modules_of_commands() -> dict[str, frozenset[str]]:
    """Which modules each command imports."""
    found = {}
    program = (sys.executable, "-X", "importtime", "-m", "tpuctl")
    with open_session() as session:
        for title, words in COMMANDS.items():
            done = session.finish(session.start(*words, program=program))
            assert done.returncode == 0, done.stderr
            lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
            found[title] = frozenset(line.rpartition("|")[2].strip() for line in lines)
    return found


def rows() -> list[str]:
    """A row for each dependency, and for each extra that users may ask for."""
    base, loads, empty = requirements_of("tpuctl"), modules_of_commands(), import_ms("pass")
    everything, found = closure(base), []
    for each in base:
        name = canonicalize_name(each.name)
        module = MODULES.get(name, name)
        gone = everything - closure(other for other in base if other is not each)
        loaded = [title for title, modules in loads.items() if module in modules]
        import_cost = "-" if name == "uv" else f"{max(0.0, import_ms(f'import {module}') - empty):.0f}"
        sizes = f"{megabytes([name]):.1f} | {megabytes(gone):.1f}"
        cells = f"{name} {metadata.version(name)} | {sizes} | {import_cost} | {', '.join(loaded) or '-'}"
        found.append((megabytes(gone), f"| {cells} |"))
    table = [row for _, row in sorted(found, reverse=True)]
    table.append(f"| all, {len(everything)} packages | | {megabytes(everything):.1f} | | |")
    for extra in ("ui", "gke"):
        more = closure(requirements_of("tpuctl", ("", extra))) - everything
        table.append(f"| with `tpuctl[{extra}]` | | + {megabytes(more):.1f} | | |")
    return table


def render() -> str:
    """The table, with where and when it was measured."""
    where = f"Python {platform.python_version()}, load {measured.load()}"
    head = f"Measured on {measured.today()} at {measured.revision()}: {where}, {ROUNDS} rounds each."
    table = [
        "| package | MB | MB that go with it | import, ms of CPU | imported by |",
        "|---|---:|---:|---:|---|",
        *rows(),
    ]
    return f"{head}\n\n" + "\n".join(table) + "\n"


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{render()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
