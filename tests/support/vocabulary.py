"""Commands of the suites that run on every kind of host: text for a shell, and what it means in memory."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.memory.host import MemoryHost, idle
from tests.support.memory.process import Killed, Process, Program, Steps

TELL = 'echo "I am $TPU_WORKER_ID"; echo oops >&2; exit $TPU_WORKER_ID'
ONLY_TWO = 'test "$TPU_WORKER_ID" = 2'
TAKE_THREE = "head -c 3; exit 5"
DIE = "echo before; kill -9 $$"
HANG = "echo up; exec sleep 60"
LINES = "seq 0 20000; echo err >&2"
FLOOD = 'i=0; while [ $i -lt 200 ]; do head -c 262144 /dev/zero; i=$((i+1)); echo $i > "$HOME/progress"; done'
UNTIL_EOF = 'echo up; cat > /dev/null; echo gone > "$HOME/gone"'
DEAF = "trap '' TERM; echo deaf; while :; do sleep 0.05; done"
WORK = "echo begin; sleep 0.5; echo end; echo err >&2; exit 3"
FAMILY = "sleep 300 & echo parent; exit 4"
WHERE = 'pwd | sed "s,.*/,,"; cat main.py; echo "$COLOUR $TPU_WORKER_ID"'
LATE = "sleep 1; echo quiet but alive"
LATE_WORD = 'sleep 2; echo \'{"word": "late"}\''
NO_ROOM = "echo no room >&2; exit 3"
FLOOD_PIECES, FLOOD_PIECE = 200, 262144


def _tell(process: Process) -> Steps:
    worker = process.env["TPU_WORKER_ID"]
    process.print(f"I am {worker}")
    process.print("oops", "stderr")
    return int(worker)
    yield


def _only_two(process: Process) -> Steps:
    return int(process.env["TPU_WORKER_ID"] != "2")
    yield


def _take_three(process: Process) -> Steps:
    process.write((yield from process.read_exactly(3)))
    return 5


def _die(process: Process) -> Steps:
    process.print("before")
    raise Killed(signal.SIGKILL)
    yield


def _hang(process: Process) -> Steps:
    process.print("up")
    yield 60.0
    return 0


def _lines(process: Process) -> Steps:
    for start in range(0, 20001, 1000):
        process.write("".join(f"{n}\n" for n in range(start, min(start + 1000, 20001))))
        yield 0.0
    process.print("err", "stderr")
    return 0


def _flood(process: Process) -> Steps:
    for number in range(FLOOD_PIECES):
        process.write(bytes(FLOOD_PIECE))
        write_file(process.host, "progress", f"{number + 1}\n")
        yield 0.0
    return 0


def _until_eof(process: Process) -> Steps:
    process.print("up")
    yield from process.read_all()
    write_file(process.host, "gone", "gone\n")
    return 0


def _late(process: Process) -> Steps:
    yield 1.0
    process.print("quiet but alive")
    return 0


def _deaf(process: Process) -> Steps:
    process.ignores_term = True
    process.print("deaf")
    yield 1e9
    return 0


def _work(process: Process) -> Steps:
    process.print("begin")
    yield 0.5
    process.print("end")
    process.print("err", "stderr")
    return 3


def _late_word(process: Process) -> Steps:
    yield 2.0
    process.print('{"word": "late"}')
    return 0


def _no_room(process: Process) -> Steps:
    process.print("no room", "stderr")
    return 3
    yield


def _family(process: Process) -> Steps:
    process.spawn(idle)
    process.print("parent")
    return 4
    yield


def _where(process: Process) -> Steps:
    folder = process.env["PWD"]
    process.print(folder.rsplit("/", 1)[-1])
    process.write(Path(folder, "main.py").read_bytes())
    process.print(f"{process.env['COLOUR']} {process.env['TPU_WORKER_ID']}")
    return 0
    yield


def write_file(host: MemoryHost, name: str, text: str) -> None:
    path = Path(host.home, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


MEANINGS: dict[str, Program] = {
    TELL: _tell,
    ONLY_TWO: _only_two,
    TAKE_THREE: _take_three,
    DIE: _die,
    HANG: _hang,
    LINES: _lines,
    FLOOD: _flood,
    UNTIL_EOF: _until_eof,
    LATE: _late,
    LATE_WORD: _late_word,
    NO_ROOM: _no_room,
    DEAF: _deaf,
    WORK: _work,
    FAMILY: _family,
    WHERE: _where,
}
