"""What the login shell of a host in memory understands: the product's own commands, and registered programs.

It is no shell: a command line is looked up as it is, else it must be words, quoted as the shell quotes, whose
first is known.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.memory.process import Program, Steps
from tpuctl.hosts.commands import (
    EXIT_NOT_INSTALLED,
    NOT_INSTALLED_LINE,
    render_agent_command,
    render_install_command,
)

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost
    from tests.support.memory.process import Process

EXIT_UNKNOWN = 127
SHA = "5a" * 32


def _pattern(example: str, *holes: tuple[str, str]) -> re.Pattern[str]:
    """A pattern for commands like `example`, with the texts of `holes` replaced by what else may be there."""
    text = re.escape(example)
    for literal, pattern in holes:
        text = text.replace(re.escape(literal), pattern)
    return re.compile(text + r"\Z", re.DOTALL)


NAMED = re.compile(r"agent-([0-9a-f]{16})")
AGENT = _pattern(render_agent_command("VERB", SHA), (SHA[:16], "[0-9a-f]{16}"), ("VERB", r"(?P<verb>[\w+]+)"))
SIZE = 424_242
INSTALL = _pattern(
    render_install_command(SHA, SIZE),
    (SHA, "(?P<sha>[0-9a-f]{64})"),
    (SHA[:16], "[0-9a-f]{16}"),
    (str(SIZE), "[0-9]+"),
)


def run_command(host: MemoryHost, command: str) -> Program:
    """The program that a login session runs for `command`."""
    from tests.support.memory.agent import verb

    if found := AGENT.match(command):
        named = NAMED.search(command)
        if named is None or named[1] not in host.agents:
            return exits(EXIT_NOT_INSTALLED, NOT_INSTALLED_LINE.decode().rstrip())
        return late(verb(found["verb"]), host.network.answer_s)
    if found := INSTALL.match(command):
        return install(found["sha"])
    return host.network.programs.get(command) or _words(host, command)


def _words(host: MemoryHost, command: str) -> Program:
    words = shlex.split(command)
    program = host.network.find_program(host, words) if words else exits(0)
    if program is None:
        return exits(EXIT_UNKNOWN, f"sh: 1: {words[0]}: not found")

    def run(process: Process) -> Steps:
        process.argv = tuple(words)
        return (yield from program(process))

    return run


def late(program: Program, seconds: float) -> Program:
    def run(process: Process) -> Steps:
        if seconds:
            yield seconds
        return (yield from program(process))

    return run


def exits(status: int, complaint: str = "") -> Program:
    def program(process: Process) -> Steps:
        if complaint:
            process.print(complaint, "stderr")
        return status
        yield

    return program


def install(sha256: str) -> Program:
    def program(process: Process) -> Steps:
        source = yield from process.read_all()
        if hashlib.sha256(source).hexdigest() != sha256:
            process.print("the agent arrived damaged", "stderr")
            return 1
        process.host.agents.add(sha256[:16])
        return 0

    return program


def echo(process: Process) -> Steps:
    process.print(" ".join(process.argv[1:]))
    return 0
    yield


def cat(process: Process) -> Steps:
    while chunk := (yield from process.read()):
        process.write(chunk)
        yield 0.0
    return 0


def printenv(process: Process) -> Steps:
    value = process.env.get(process.argv[1])
    if value is None:
        return 1
    process.print(value)
    return 0
    yield


def printf(process: Process) -> Steps:
    """`printf '%s\\0' WORD…` only."""
    process.write("".join(f"{word}\0" for word in process.argv[2:]))
    return 0
    yield


def sleep(process: Process) -> Steps:
    yield float(process.argv[1])
    return 0


def install_environment(process: Process) -> Steps:
    """`env_install.py`: takes a minute and reports what the lock file names."""
    request = json.loads(Path(process.env["PWD"], "env.json").read_bytes())
    lock = Path(process.env["PWD"], "requirements.txt").read_text()
    yield 60.0
    mark = json.dumps({"schema": 1, "key": request["key"], "python": "3.10.12", "packages": _pins(lock)})
    folder = Path(process.host.home, ".tpuctl", "envs", request["key"])
    folder.joinpath("bin").mkdir(parents=True, exist_ok=True)
    folder.joinpath("bin", "python").unlink(missing_ok=True)
    folder.joinpath("bin", "python").symlink_to("/usr/bin/env")
    (folder / "tpuctl-files.json").write_text('{"bin/python": ["link:/usr/bin/env"]}')
    (folder / "tpuctl-env.json").write_text(mark)
    process.print(mark)
    return 0


def _pins(requirements: str) -> dict[str, str]:
    return dict(line.split(" ")[0].split("==") for line in requirements.splitlines())


def hostname(process: Process) -> Steps:
    process.print(process.host.hostname)
    return 0
    yield


def default_programs() -> dict[str, Program]:
    from tests.support.memory.agent import carry

    return {
        "agent": carry,
        "true": exits(0),
        "false": exits(1),
        "echo": echo,
        "cat": cat,
        "printenv": printenv,
        "printf": printf,
        "sleep": sleep,
        "hostname": hostname,
        "env_install.py": install_environment,
    }
