"""`--json`: one document on stdout, with the keys that the reference promises, and nothing said beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.json_page import COMMANDS, PAGE, documents, keys_of, prepare, render_page, with_json
from tests.support.session import Session, open_session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        prepare(session)
        yield session


def test_every_promised_key_is_printed_and_every_printed_one_is_promised(session: Session) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render_page(documents(session)) == page, "run `python -m tests.docs.generate --transcript`"
    assert all(f"## `tpuctl {with_json(command)}`" in page for command, _ in COMMANDS)


def test_keys_are_found_in_lists_and_below_keys() -> None:
    value = [{"a": 1, "b": [{"c": 1}, {"d": 2}]}, {"e": {"f": {"g": 1}}, "h": []}]
    assert list(keys_of(value)) == ["a", "b[].c", "b[].d", "e.f", "h[]"]


@pytest.mark.parametrize("words", [("status", "nobody"), ("ls", "--frob"), ("capacity", "v99")])
def test_an_error_is_a_document_too(session: Session, words: tuple[str, ...]) -> None:
    done = session.type(*words, "--json", status=None)
    assert done.returncode in (2, 5)
    assert done.stderr == ""
    assert done.stdout.startswith('{\n  "error"')
