"""Values of secrets in what programs write: masked on the host, whatever the pieces in which it is written."""

from __future__ import annotations

import base64
import html
import itertools
import json
import os
import random
import re
import shlex
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

import tpuctl.agent

AGENT = str(Path(tpuctl.agent.__file__).parent)
VALUES = [
    "abcdefgh",
    "abcdefghij",
    "q\"uo'te\\d line\nänd",
    "s3cr3t+/=&%20 token",
    'it\'s <a/b>&"c"',
    "aaaaaaaaaa",
    "-" * 5 + "BEGIN\nKEY\n",
]


@pytest.fixture(scope="module")
def masks() -> Any:
    """The module as the agent has it: with its neighbours, by their bare names."""
    before, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, AGENT)
    try:
        import secret_masks

        yield secret_masks
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - known:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(AGENT):
                del sys.modules[name]


@pytest.fixture(scope="module")
def logs(masks: Any) -> Any:
    """What the agent knows of sizes of logs."""
    return sys.modules["log_times"]


@pytest.fixture(scope="module")
def forms(masks: Any) -> Any:
    """What pods have of it, too."""
    return sys.modules["secret_forms"]


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> str:
        return str(self.folder / name)


def written(value: str) -> list[bytes]:
    """A value as programs print it."""
    raw = value.encode()
    return [
        raw,
        json.dumps({"key": value}).encode(),
        json.dumps([value], ensure_ascii=False).encode(),
        repr(ValueError(value)).encode(),
        repr(f"{value}'\"").encode(),
        repr(raw).encode(),
        urllib.parse.quote(value, safe="").encode(),
        urllib.parse.urlencode({"k": value}).encode(),
        raw.hex().encode(),
        raw.hex().upper().encode(),
        json.dumps({"message": json.dumps({"key": value})}).encode(),
        json.dumps({"key": value}).replace("/", "\\/").encode(),
        json.dumps({"key": value})
        .replace("&", "\\u0026")
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .encode(),
        html.escape(value).encode(),
        re.sub("%..", lambda found: found.group().lower(), urllib.parse.quote(value, safe="")).encode(),
        shlex.quote(value).encode(),
    ]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_masked_in_each_of_its_encodings_and_lengths_stay(forms, value):
    patterns = forms.all_forms([value])
    for text in written(value):
        line = b"error: " + text + b" (end)"
        out = forms.masked(line, patterns)
        assert len(out) == len(line)
        assert out.startswith(b"error: ")
        assert not any(each in out for each in patterns)
        assert b"********" in out


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_is_masked_wherever_in_a_longer_text_the_value_stands(forms, value, encode):
    for before, behind in itertools.product(range(4), range(4)):
        text = encode(b"u" * before + value.encode() + b"v" * behind)
        out = forms.masked(text, forms.all_forms([value]))
        assert len(out) == len(text), (before, behind)
        assert b"*" * (len(value.encode()) * 8 // 6 - 1) in out, (before, behind)


def test_short_values_are_words_that_programs_write_anyway(forms):
    assert forms.all_forms(["secret7", "", "   true   "]) == []
    assert forms.masked(b"a secret7", forms.all_forms(["secret7"])) == b"a secret7"


@pytest.mark.parametrize("seed", range(40))
def test_logs_are_masked_alike_in_whatever_pieces_they_are_written(
    masks, logs, forms, tmp_path, seed, monkeypatch
):
    """And nobody is told a byte of them before it is decided."""
    rng = random.Random(seed)
    monkeypatch.setattr(masks, "PIECE", rng.choice([64, 100, 1 << 20]))
    values = rng.sample(VALUES, rng.randint(1, 3))
    texts = [text for value in values for text in written(value)]
    words = [*texts, b"abcdefg", b"abcdefghi", b"aaaa", b"step 1\n", b"\n", b"a", b"-----BEGIN\n", "ä".encode()]
    whole = b"".join(rng.choice(words) for _ in range(60))
    patterns = forms.all_forms(values)
    expected = forms.masked(whole, patterns)
    place = Place(tmp_path)
    supervisor = masks.LogMasks(place, values)
    at, told = 0, b""
    while at < len(whole):
        size = rng.randint(1, 80)
        with open(place.path("stdout.log"), "ab") as log:
            log.write(whole[at : at + size])
        at += size
        if rng.random() < 0.7:
            supervisor.look()
        seen = Path(place.path("stdout.log")).read_bytes()[: logs.log_size(place, "stdout")]
        assert seen.startswith(told)
        assert expected.startswith(seen)
        told = seen
    supervisor.look(last=True)
    assert Path(place.path("stdout.log")).read_bytes() == expected
    assert logs.log_size(place, "stdout") == len(whole)
    assert logs.log_size(place, "stderr") == 0


def test_logs_without_secrets_are_told_as_they_are(masks, logs, tmp_path):
    place = Place(tmp_path)
    masks.LogMasks(place, []).look()
    Path(place.path("stdout.log")).write_bytes(b"abcdefgh")
    assert logs.log_size(place, "stdout") == 8
    assert not Path(place.path("stdout.masked")).exists()


def test_by_hashes_the_same_is_masked_when_nothing_here_has_the_values(masks, forms, tmp_path, monkeypatch):
    monkeypatch.setattr(masks, "root", lambda *parts: str(tmp_path.joinpath(*parts)))
    place = Place(tmp_path)
    masks.note_hashes(place, VALUES, ["A"])
    kept = Path(place.path(masks.HASHES)).read_bytes()
    for value in VALUES:
        assert value.encode() not in kept
        text = f"/usr/bin/x --token={value} {value.encode().hex()} more"
        [out] = masks.mask_by_hashes([text], [place])
        assert out == forms.masked_text(text, forms.all_forms(VALUES))
        assert value not in out
    assert os.stat(tmp_path / masks.KEY).st_mode & 0o777 == 0o600
    other = tmp_path / "other"
    other.mkdir()
    assert masks.mask_by_hashes(["abcdefgh"], [Place(other)]) == ["abcdefgh"]


@pytest.mark.parametrize("earlier", [False, True])
def test_by_hashes_long_values_are_found_by_their_first_characters(
    masks, forms, tmp_path, monkeypatch, earlier
):
    """Also by notes of earlier versions, which do not have those, and beside such."""
    monkeypatch.setattr(masks, "root", lambda *parts: str(tmp_path.joinpath(*parts)))
    values = ["-----BEGIN KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQ" * 4, "t0ken-" * 8]
    places = []
    for value in values:
        places.append(Place(tmp_path / str(len(value))))
        places[-1].folder.mkdir()
        masks.note_hashes(places[-1], [value], ["A"])
    path = Path(places[0].path(masks.HASHES))
    note = json.loads(path.read_bytes())
    assert note.pop("heads")
    if earlier:
        path.write_text(json.dumps(note))
    text = "".join(f"x{value}y{value.encode().hex()}{value[:20]} " for value in values)
    assert masks.mask_by_hashes([text], places) == [forms.masked_text(text, forms.all_forms(values))]


def test_each_long_line_of_a_value_is_masked_where_something_is_written_before_it(forms):
    lines = ["-" * 5 + "BEGIN PRIVATE KEY" + "-" * 5, "MIIEvQIBADANBgkqhkiG9w0BAQ", "short"]
    patterns = forms.all_forms(["\n".join(lines)])
    out = forms.masked("".join(f"[rank0]: {line}\n" for line in lines).encode(), patterns)
    assert out.decode().splitlines() == [f"[rank0]: {'*' * 27}", f"[rank0]: {'*' * 26}", "[rank0]: short"]


def test_a_log_that_its_program_empties_is_looked_through_again(masks, logs, tmp_path):
    """`echo $TOKEN > /dev/stdout` does that where standard output is a file."""
    place = Place(tmp_path)
    log = Path(place.path("stdout.log"))
    supervisor = masks.LogMasks(place, ["abcdefgh"])
    log.write_bytes(b"step 1\n" * 20)
    supervisor.look()
    assert logs.log_size(place, "stdout") == 140
    log.write_bytes(b"it is abcdefgh\n")
    supervisor.look()
    assert log.read_bytes() == b"it is ********\n"
    assert logs.log_size(place, "stdout") == 15


def test_no_part_of_a_value_is_told_where_a_long_text_is_cut(masks, tmp_path, monkeypatch):
    import diagnose
    import facts_chips
    import state

    place, value = Place(tmp_path), "abcdefghijklmnop"
    monkeypatch.setattr(masks, "root", lambda *parts: str(tmp_path.joinpath(*parts)))
    masks.note_hashes(place, [value], ["A"])
    for module in (diagnose, state):
        monkeypatch.setattr(module, "list_attempts", lambda: [place])
    text = "x" * (diagnose.PART_MAX - 8) + value + "y" * diagnose.PART_MAX
    monkeypatch.setattr(diagnose, "output_of", lambda *_, **__: text)
    words = [sys.executable, "-c", "print(flush=True); input()"]
    words.append("x" * (facts_chips.COMMAND_MAX - 8 - len(" ".join([*words, ""]))) + value)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"\n"  # while it is being started it has no command line
        command = facts_chips.describe(child.pid)["command"]
        child.communicate(b"\n")
    for said in (diagnose.diagnose({"driver_logs": ""}, None)["text"], command):
        assert "x" + "*" * 8 in said
        assert value[:4] not in said
        assert value[-4:] not in said
