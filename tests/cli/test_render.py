"""Tables fit, worker output keeps its bytes and its order, waits say what they wait for."""

from __future__ import annotations

import io
import re
import unicodedata

import pytest

from tpuctl.cli.commands.bill import COLUMNS as BILL
from tpuctl.cli.commands.capacity import CAPACITY
from tpuctl.cli.commands.env import LISTED as ENVIRONMENTS
from tpuctl.cli.commands.ls import FLEET
from tpuctl.cli.commands.quota import HOLDERS
from tpuctl.cli.commands.runs import RUNS
from tpuctl.cli.commands.types import COLUMNS as TYPES
from tpuctl.cli.console import Column, Console, cell, render_table, wants_colour
from tpuctl.cli.live import LineFolder, Renderer, squeeze
from tpuctl.cli.wrapping import hint_lines, wrap
from tpuctl.engine.events import Pace, StepDone, StepStarted, Waiting, Warn, WorkerOutput
from tpuctl.lib.time import render_seconds
from tpuctl.model.verdict import Wait, render_wait, wait_for

COLUMNS = (Column("name", "NAME"), Column("n", "N", right=True), Column("text", "TEXT", give=1))


def columns_of(text: str) -> int:
    """Columns of a terminal by https://www.unicode.org/reports/tr11/ (East Asian Width)."""
    shown = [char for char in text if not unicodedata.combining(char)]
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in shown)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Folding:
    def __init__(self) -> None:
        self.time = 0.0
        self.written: list[tuple[str, str]] = []
        self.folder = LineFolder(
            lambda stream, data: self.written.append((stream, data.decode())), lambda: self.time
        )

    def put(self, worker: int, data: bytes, stream: str = "stdout", workers: int = 4) -> None:
        self.folder.put(WorkerOutput("big", worker, stream, data, workers))

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.written)


def test_a_table_goes_on_below_in_the_least_important_column_and_aligns_numbers() -> None:
    rows = [{"name": "big", "n": 4, "text": "some words " * 8}, {"name": "small", "n": 128, "text": None}]
    lines = render_table(rows, COLUMNS, width=40)
    assert lines == [
        "NAME     N  TEXT",
        "big      4  some words some words some",
        "            words some words some words",
        "            some words some words some",
        "            words",
        "small  128  -",
    ]


def test_a_last_column_without_room_goes_beneath_its_row() -> None:
    rows = [{"name": "big", "n": 4, "text": "out of chips in this zone"}, {"name": "b", "n": 1, "text": "ok"}]
    lines = render_table(rows, COLUMNS, width=24)
    assert lines == [
        "NAME  N  TEXT",
        "big   4",
        "    out of chips in this",
        "    zone",
        "b     1  ok",
    ]


WORDS = tuple(f"{word}{number}" for number in range(9) for word in ("us-central2-", "WAITING_FOR_", "ada"))


@pytest.mark.parametrize("width", [40, 74, 80, 120])
@pytest.mark.parametrize("columns", [FLEET, CAPACITY, HOLDERS])
def test_a_narrow_table_loses_nothing_and_is_never_wider_than_it_may_be(
    width: int, columns: tuple[Column, ...]
) -> None:
    row = {column.key: " ".join(WORDS[i : i + 3]) for i, column in enumerate(columns)}
    lines = render_table([row], columns, width=width)
    if width >= 74:
        assert max(map(len, lines)) <= width
    letters = sorted("".join(line.replace(" ", "") for line in lines))
    assert letters == sorted("".join([*row.values(), *(c.title for c in columns)]).replace(" ", ""))


RUN_ROW = {
    **{"id": "r261125-222221-u8w0", "slice": "big", "state": "succeeded", "attempts": "12, 11 lost"},
    **{"goodput": "87%", "cost": "$1234.56", "created": "2026-11-25 22:22", "command": "python3 train.py " * 9},
}
BILL_ROW = {
    **{"kind": "node", "name": "a-long-name-3", "location": "southamerica-west1-a", "user": "ada"},
    **{"payer": "you", "hour": "123.6480", "month": "90263.04", "detail": "v5litepod-16 on-demand READY"},
}
TYPE_ROW = {"name": "v6e-256", "chips": 256, "hosts": 64, "topology": "16x16", "spot": "from 139.26"}
ENV_ROW = {
    **{"name": "jax-tpu-0-10", "backend": "torch_xla", "python": "3.11 3.12 3.13 3.14", "lock": "none"},
    **{"packages": "jax==0.10.2 jaxlib==0.10.2 libtpu==0.0.42.1", "origin": "jax-tpu-0-10.yaml of tpuctl"},
}


@pytest.mark.parametrize(
    ("columns", "row", "seen"),
    [
        (RUNS, RUN_ROW, ("r261125-222221-u8w0", "succeeded", "python3 train")),
        (BILL, BILL_ROW, ("a-long-name-3", "southamerica-west1-a", "123.6480", "v5lite")),
        (TYPES, {**TYPE_ROW, "zones": "us-central1-b us-east1-d " * 5}, ("from 139.26", "us-central1-b")),
        (ENVIRONMENTS, ENV_ROW, ("jax-tpu-0-10", "torch_xla", "jax==0.10.2", "none")),
    ],
    ids=["runs", "bill", "types", "env"],
)
@pytest.mark.parametrize("label", ["", "[sim] "])
def test_a_row_takes_one_line_of_80_characters(
    columns: tuple[Column, ...], row: dict[str, object], seen: tuple[str, ...], label: str
) -> None:
    lines = render_table([row], columns, width=80 - len(label))
    assert len(lines) == 2
    assert max(map(len, lines)) <= 80 - len(label)
    assert all(text in lines[1] for text in seen)
    wide = render_table([row], columns, width=10_000)
    assert len(wide) == 2
    assert all(str(value).strip() in wide[1] for value in row.values())


def test_what_may_be_very_long_is_cut_after_some_lines() -> None:
    lines = render_table([{"text": "word " * 400}], (Column("text", "TEXT", give=1, most=2),), width=40)
    assert len(lines) == 3
    assert lines[-1].endswith("…")


@pytest.mark.parametrize("bad", ["gave-up", "synthetic"])
def test_colours_of_a_wrapped_cell_do_not_count_as_width(bad: str) -> None:
    rows = [{"name": bad, "n": 1, "text": "a b c d e f g h i j k l m n o p"}]
    plain = render_table(rows, COLUMNS, width=40)
    coloured = render_table(rows, COLUMNS, width=40, colour=True)
    assert re.sub(r"\x1b\[\d*m", "", "\n".join(coloured)) == "\n".join(plain)
    assert f"\x1b[31m{bad}\x1b[0m" in coloured[1]


@pytest.mark.parametrize("width", [24, 40, 80])
def test_columns_stand_below_each_other_whatever_takes_two_columns(width: int) -> None:
    rows = [{"name": "実験", "n": 4, "text": "一晩中、" * 12}, {"name": "ab", "n": 128, "text": "e\u0301"}]
    lines = render_table(rows, COLUMNS, width=width)
    starts = {columns_of(line[: line.index(cell)]) for line, cell in ((lines[0], "TEXT"), (lines[-1], "e"))}
    assert len(starts) == 1
    assert max(map(columns_of, lines)) <= width
    assert "".join("".join(lines).split()).count("一晩中、") == 12


def test_long_talk_is_broken_between_words_at_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    text = "nothing came in us-central2-b for an hour; `tpuctl capacity v4-8` shows what is known"
    console = _console(live=True)
    console.warn(text)
    assert console.err.getvalue() == (
        "[sim] warning: nothing came in\n"
        "        us-central2-b for an hour;\n"
        "        `tpuctl capacity v4-8` shows\n"
        "        what is known\n"
    )
    console = _console()
    console.warn(text)
    assert console.err.getvalue() == f"[sim] warning: {text}\n"


def test_a_command_to_be_pasted_stays_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    command = "tpuctl up v4-32 big --zone us-central2-b --spot --pay"
    assert hint_lines(command, Terminal()) == f"hint: {command}"
    assert hint_lines("write the name and the zone as `tpuctl ls`", Terminal()) == (
        "hint: write the name and the\n      zone as `tpuctl ls`"
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "      indented words here", "x" * 50, "a-b_c/" * 9, "`one two` three"),
        *("実験は一晩中", "      実験 は/一晩中", "e\u0301" * 20, "`実験 2` 一晩中"),
    ],
)
def test_wrapping_ends_and_keeps_every_letter(text: str) -> None:
    widest = max(map(columns_of, text), default=1)
    for width in range(1, 30):
        lines = wrap(text, width)
        assert all(columns_of(line) <= max(width, widest) for line in lines), width
        assert "".join(lines).replace(" ", "") == text.replace(" ", ""), width


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (True, "yes"), (["a", "b"], "a b"), ("a\x1b[31m\n", "a\\x1b[31m\\n")]
)
def test_cells_show_values_without_control_characters(value: object, shown: str) -> None:
    assert cell(value) == shown


def test_colour_is_for_terminals_and_no_color_turns_it_off() -> None:
    assert wants_colour(Terminal(), {"TERM": "xterm"})
    assert not wants_colour(Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert not wants_colour(io.StringIO(), {"TERM": "xterm"})


def test_equal_lines_of_all_workers_are_shown_once_at_once() -> None:
    folding = Folding()
    for worker in (2, 0, 3, 1):
        folding.put(worker, b"step 1\n")
    assert folding.text == "big[0-3] │ step 1\n"


def test_a_line_that_only_some_wrote_appears_when_its_time_is_up() -> None:
    folding = Folding()
    folding.put(0, b"hello\n")
    folding.put(3, b"hello\n")
    folding.folder.flush(older_than_s=0.15)
    assert folding.text == ""
    folding.time = 0.2
    folding.folder.flush(older_than_s=0.15)
    assert folding.text == "big[0,3] │ hello\n"


def test_lines_of_one_worker_keep_their_order() -> None:
    folding = Folding()
    folding.put(0, b"a\nb\n", workers=2)
    folding.put(1, b"b\n", workers=2)
    folding.put(0, b"a\n", workers=2)
    folding.folder.finish()
    own = [line for line in folding.text.splitlines() if "0" in line.split(" │ ")[0]]
    assert [line.split(" │ ")[1] for line in own] == ["a", "b", "a"]


def test_a_flood_of_lines_is_written_in_one_block_after_what_came_before() -> None:
    folding = Folding()
    folding.put(0, b"first\n")
    flood = b"".join(b"line %d\n" % number for number in range(200))
    folding.put(0, flood)
    assert len(folding.written) == 2
    assert folding.text.splitlines()[0] == "big-0 │ first"
    assert folding.text.splitlines()[1:] == [f"big-0 │ line {number}" for number in range(200)]


def test_pieces_of_lines_are_joined_and_streams_kept_apart() -> None:
    folding = Folding()
    folding.put(0, b"ha", workers=1)
    folding.put(0, b"oops\n", "stderr", workers=1)
    folding.put(0, b"lf\nnext\nunfinished", workers=1)
    folding.folder.finish()
    assert folding.written == [
        ("stderr", "big-0 │ oops\n"),
        ("stdout", "big-0 │ half\nbig-0 │ next\n"),
        ("stdout", "big-0 │ unfinished\n"),
    ]


def test_a_line_without_end_does_not_grow_for_ever() -> None:
    folding = Folding()
    folding.put(0, b"x" * 100_000, workers=1)
    assert len(folding.text) > 100_000


def _console(*, quiet: bool = False, live: bool = False) -> Console:
    console = Console(json_mode=False, quiet=quiet, label="sim")
    console.out, console.err = io.StringIO(), Terminal() if live else io.StringIO()
    return console


def test_without_a_terminal_every_change_is_one_plain_line_with_the_mark() -> None:
    console = _console()
    renderer = Renderer(console, lambda: 100.0)
    renderer(StepStarted("big", "create node big-1", "it does not exist"))
    for _ in range(3):
        renderer(Waiting("big", "capacity", 100.0, 700.0, Pace(90.0, 190.0), coming=True))
    renderer(StepDone("big", "ready", "4 hosts answered", 65))
    renderer(Warn("big", "look out"))
    renderer.close()
    lines = console.err.getvalue().splitlines()
    assert len(lines) == 4
    assert all(line.startswith("[sim] ") for line in lines)
    assert "waiting for capacity (since " in lines[1]
    assert ", usually ready after 3 min 10 s, until " in lines[1]
    assert lines[2] == "[sim] big: ready: 4 hosts answered (after 1 min 05 s)"
    assert "\x1b" not in console.err.getvalue()


def test_quiet_silences_talk_and_warnings_but_not_what_an_answer_lacks() -> None:
    console = _console(quiet=True)
    renderer = Renderer(console)
    renderer(StepStarted("big", "create", "why"))
    renderer(Warn("big", "look out"))
    renderer.close()
    console.alarm("look out", "tpuctl watch install")
    assert console.err.getvalue() == ""
    console.caveat("not read: us-central2-b")
    assert console.err.getvalue() == "[sim] warning: not read: us-central2-b\n"


def test_on_a_terminal_a_wait_is_one_line_that_is_rewritten_and_removed() -> None:
    console = _console(live=True)
    renderer = Renderer(console, lambda: 100.0)
    renderer(Waiting("big", "capacity", 40.0))
    renderer(Waiting("big", "capacity", 40.0))
    renderer.close()
    text = console.err.getvalue()
    assert "\n" not in text
    assert "1:00  big: capacity" in text
    renderer(Waiting("big", "node big-1 is CREATING", 40.0, pace=Pace(begun=-25.0, usual_s=190.0)))
    assert "2:05 (usually 3:10)  big: node big-1 is CREATING" in console.err.getvalue()
    renderer(Waiting("disk d", "disk d is RESTORING", 40.0, progress="40 % of 500 GiB"))
    assert "1:00  40 % of 500 GiB  disk d: disk d is RESTORING" in console.err.getvalue()


def test_without_a_terminal_a_wait_that_gets_on_is_one_line_a_minute() -> None:
    console, now = _console(), [100.0]
    renderer = Renderer(console, lambda: now[0])
    for _ in range(7):
        done = f"{now[0] - 100:.0f} % of 500 GiB"
        renderer(Waiting("disk d", "disk d is RESTORING", 40.0, progress=done))
        now[0] += 10.0
    said = console.err.getvalue().splitlines()
    assert [line.partition("(")[2].partition(",")[0] for line in said] == ["0 % of 500 GiB", "60 % of 500 GiB"]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(8.4, "8 s"), (125, "2 min 05 s"), (3780, "1 h 03 min"), (-1, "0 s")]
)
def test_durations_are_words(seconds: float, shown: str) -> None:
    assert render_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("wait", "shown"),
    [
        (wait_for("capacity"), "waiting for capacity"),
        (wait_for("its turn: creates are limited"), "waiting for its turn: creates are limited"),
        (wait_for("slice big (node big-1 is CREATING)"), "waiting for slice big (node big-1 is CREATING)"),
        (Wait("queued resource big-1 is ACCEPTED"), "waiting: queued resource big-1 is ACCEPTED"),
        (Wait("no SSH to 1 of 4 workers (timed out)"), "waiting: no SSH to 1 of 4 workers (timed out)"),
    ],
)
def test_a_wait_reads_as_a_sentence(wait: Wait, shown: str) -> None:
    assert render_wait(wait.why, coming=wait.coming) == shown


def test_a_path_is_broken_at_a_slash_and_a_number_never() -> None:
    assert wrap("~/.local/state/tpuctl/sim-project/store.sqlite, schema 1", 45) == [
        "~/.local/state/tpuctl/sim-project/",
        "store.sqlite, schema 1",
    ]
    assert "$185.47" in wrap("128 chips, spot, about $185.47 per hour", 27)[1]


def test_a_status_line_that_is_too_long_keeps_its_verb_and_loses_the_middle_of_names() -> None:
    name = "a-rather-long-name-for-a-slice"
    text = f"0:01  {name}: queued resource {name}-1 is WAITING_FOR_RESOURCES"
    shown = squeeze(text, 79)
    assert len(shown) <= 79
    assert shown.startswith("0:01  a-rat")
    assert shown.endswith("-1 is WAITING_FOR_RESOURCES")
    assert squeeze(text, len(text)) == text


def test_a_status_line_of_characters_that_take_two_columns_is_not_wider_than_the_terminal(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for term in ("xterm", "dumb"):
        monkeypatch.setenv("TERM", term)
        console = _console(live=True)
        renderer = Renderer(console, lambda: 100.0)
        renderer(Waiting("big", "実験" * 40, 100.0))
        renderer.close()
        shown = re.split(r"[\r\n]", console.err.getvalue().replace("\x1b[2K", ""))
        assert any("実験" in each for each in shown)
        assert max(map(columns_of, shown)) <= 80


def test_a_reason_without_room_on_the_status_line_is_told_in_full_above_it(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    console = _console(live=True)
    renderer = Renderer(console, lambda: 100.0)
    why = "could not read the queued resource: the name of the service is not known on this machine; waiting on"
    for _ in range(3):
        renderer(Waiting("big", why, 100.0))
    renderer.close()
    told = console.err.getvalue()
    assert " ".join(told.split()).count("waiting on (since") == 1
    assert max(map(len, re.split(r"[\r\n]", told.replace("\x1b[2K", "")))) <= 80


def test_a_status_line_gives_up_times_to_come_before_its_reason(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    console = _console(live=True)
    renderer = Renderer(console, lambda: 100.0)
    renderer(Waiting("r261122-082534-7p5x", "a second read: worker 0 exited with 1", 100.0, until=190.0))
    renderer.close()
    assert "a second read: worker 0 exited with 1" in console.err.getvalue()
    assert "until" not in console.err.getvalue()


def test_a_number_keeps_its_unit() -> None:
    assert wrap("prepared on 4 workers (after 15 s)", 31) == ["prepared on 4 workers (after", "15 s)"]


def test_a_first_column_of_long_names_alone_fits_the_narrowest_terminal() -> None:
    rows = [{"name": "x" * 30, "text": "y"}]
    lines = render_table(rows, (Column("name", "SLICE"), Column("text", "N")), width=20)
    assert lines == ["SLICE  N", "x" * 20, "x" * 10, "       y"]
