from __future__ import annotations

import os
import stat

import pytest

from tpuctl.errors import UsageError
from tpuctl.lib.output_files import check_output, write_output


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path):
    path = tmp_path / "page"
    path.write_text("old")
    with pytest.raises(TypeError), write_output(path, "-o") as file:
        file.writelines([b"half", "no bytes"])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_came_meanwhile_is_not_replaced(tmp_path):
    path, target = tmp_path / "page", tmp_path / "mine"
    target.write_text("mine")
    with pytest.raises(UsageError, match="link"), write_output(path, "-o"):
        path.symlink_to(target)
    assert path.is_symlink()
    path.unlink()
    with pytest.raises(UsageError, match="File exists"), write_output(path, "-o", fresh=True):
        path.write_text("theirs")
    assert path.read_text() == "theirs"
    assert {each.name for each in tmp_path.iterdir()} == {"page", "mine"}


def test_a_file_has_the_mode_that_others_made_here_have(tmp_path):
    earlier = os.umask(0o027)
    try:
        with write_output(tmp_path / "page", "-o") as file:
            file.write(b"x")
    finally:
        os.umask(earlier)
    assert stat.S_IMODE((tmp_path / "page").stat().st_mode) == 0o640


def test_an_empty_file_is_nobodys_and_a_long_name_is_refused(tmp_path):
    path = tmp_path / "empty"
    path.touch()
    assert check_output(path, "-o", kind="report", ours=lambda head: b"report" in head) == path
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(UsageError):
            check_output(tmp_path / name, "-o", kind="report")
