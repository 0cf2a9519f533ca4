"""What a host streams without end or against all rules: bounded, and refused in order."""

from __future__ import annotations

import pytest

from tpuctl.hosts.protocol import MalformedReplyError
from tpuctl.ssh.calls import COLLECTED_MAX, CollectedOutput
from tpuctl.transfer.frames import FrameReader


@pytest.mark.parametrize("number", [b"-5", b"1e999", b'"x"', b"[]"])
def test_a_file_with_a_number_that_none_has_is_refused(number: bytes) -> None:
    note = b'{"file": %s, "from": 0, "size": 1, "mode": 420, "mtime_ns": 0}' % number
    head = (-len(note)).to_bytes(8, "big", signed=True)
    with pytest.raises(MalformedReplyError):
        list(FrameReader().feed(b'{"frames": 1}\n' + head + note))


def test_output_that_is_kept_as_a_whole_is_bounded() -> None:
    collected = CollectedOutput()
    assert collected.emit("stdout", bytes(COLLECTED_MAX - 1))
    assert collected.emit("stderr", b"y")
    assert not collected.emit("stdout", b"z")
