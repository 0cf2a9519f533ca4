"""Our line goes into a crontab and out again; every other byte stays."""

from __future__ import annotations

import pytest

from tpuctl.errors import UsageError
from tpuctl.watch.install.crontab import (
    drop_line,
    find_lines,
    put_line,
    render_line,
    render_schedule,
    seconds_until_due,
)

STATE = "/home/ada/.local/state/tpuctl/default/my-project"
OTHER = "/home/ada/.local/state/tpuctl/default/my-project-2"
LINE = render_line(1, ("/bin/sh", f"{STATE}/watch/pass.sh"), STATE)

FOREIGN = [
    "",
    "\n",
    "MAILTO=ada\n# backup\n0 3 * * *\t/usr/bin/backup  --all % trailing  \n\n\n",
    "# no newline at the end",
    "\x0b\x0c odd \x85 separators \u2028 that splitlines() would cut\n",
    "umlaut \udcfc that is no UTF-8\n",
    f"# {LINE}\n",
    render_line(5, ("/bin/sh", "x"), OTHER) + "\n",
]


@pytest.mark.parametrize("crontab", FOREIGN)
def test_a_line_that_was_put_and_dropped_leaves_the_rest_byte_for_byte(crontab: str) -> None:
    with_line = put_line(crontab, LINE, STATE)
    assert find_lines(with_line, STATE) == [LINE]
    assert with_line.startswith(crontab)
    closed = crontab if crontab == "" or crontab.endswith("\n") else crontab + "\n"
    assert drop_line(with_line, STATE) == closed
    assert drop_line(crontab, STATE) == crontab


def test_the_same_line_again_changes_nothing() -> None:
    crontab = put_line("a\n", LINE, STATE) + "b\n"
    assert put_line(crontab, LINE, STATE) == crontab


def test_another_interval_replaces_the_line_where_it_is_and_copies_go() -> None:
    crontab = f"a\n{LINE}\nb\n{LINE}\nc"
    slower = render_line(5, ("/bin/sh", "y"), STATE)
    assert put_line(crontab, slower, STATE) == f"a\n{slower}\nb\nc"


def test_another_project_has_a_line_of_its_own() -> None:
    both = put_line(put_line("", LINE, STATE), render_line(1, ("/bin/sh", "x"), OTHER), OTHER)
    assert drop_line(both, OTHER) == f"{LINE}\n"
    assert drop_line(both, STATE).endswith(f"{OTHER}\n")


def test_words_are_quoted_and_percent_signs_are_no_newlines() -> None:
    state = "/odd 100%/state"
    line = render_line(2, ("/bin/sh", f"{state}/pass.sh"), state)
    assert line == r"*/2 * * * * /bin/sh '/odd 100\%/state/pass.sh' # tpuctl watch /odd 100\%/state"
    assert find_lines(f"{line}\n", state) == [line]


def test_what_a_crontab_cannot_hold_is_refused() -> None:
    for words in (("/bin/sh", "a\nb"), ("a\0b",)):
        with pytest.raises(UsageError):
            render_line(1, words, STATE)
    with pytest.raises(UsageError):
        render_line(1, ("x",), "/state\n* * * * * evil")


@pytest.mark.parametrize(
    ("minutes", "fields"), [(1, "* * * * *"), (5, "*/5 * * * *"), (59, "*/59 * * * *"), (60, "0 * * * *")]
)
def test_schedules(minutes: int, fields: str) -> None:
    assert render_schedule(minutes) == fields


@pytest.mark.parametrize("minutes", [0, -1, 61])
def test_schedules_that_cron_cannot_do(minutes: int) -> None:
    with pytest.raises(UsageError):
        render_schedule(minutes)


@pytest.mark.parametrize(
    ("schedule", "minute", "second", "left"),
    [
        ("* * * * *", 7, 20, 40),
        ("*/5 * * * *", 7, 30, 150),
        ("*/5 * * * *", 5, 0, 300),
        ("*/7 * * * *", 57, 0, 180),
        ("0 * * * *", 59, 59, 1),
        ("3-59/5 * * * *", 7, 0, None),
    ],
)
def test_when_cron_calls_a_line_next_is_read_from_its_schedule(schedule, minute, second, left):
    assert seconds_until_due(f"{schedule} /bin/sh pass.sh", minute, second) == left
