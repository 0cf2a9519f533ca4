"""The table of gcloud's commands: many, each with its answer, none twice by accident."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance.clients_gcloud import COMMANDS, commands


def test_the_table_has_hundreds_of_commands_that_can_be_read() -> None:
    rows = [line for line in COMMANDS.read_text().splitlines() if line and not line.startswith("#")]
    found = commands("bucket-1", Path("/work"))
    assert len(found) == len(rows) >= 250
    assert all(row.startswith(("ok ", "no ")) for row in rows)
    assert sum(not well for well, _, _ in found) > 60
    for well, words, said in found:
        assert "{" not in words
        assert well or said, f"a refusal says why: {words}"
        re.compile(said)
