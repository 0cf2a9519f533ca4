"""What looks like a secret, as data: real forms are found wherever they stand, others are left alone."""

from __future__ import annotations

import string

import pytest

from tpuctl.errors import UsageError
from tpuctl.model.secret_patterns import check_argv, check_named
from tpuctl.model.shipped_files import load_secret_patterns

MIXED = (string.ascii_letters + string.digits) * 2
SECRETS = {
    "a Hugging Face token": f"hf_{MIXED[:34]}",
    "a GitHub token": f"ghp_{MIXED[:36]}",
    "a GitLab token": f"glpat-{MIXED[:20]}",
    "a Google API key": f"AIza{MIXED[:35]}",
    "a Google access token": f"ya29.{MIXED[:60]}",
    "a Google client secret": f"GOCSPX-{MIXED[:28]}",
    "an AWS key": "AKIA" + "ABCDEFGH23456789",
    "an API key": f"sk-ant-{MIXED[:50]}",
    "a Slack token": f"xoxb-1234567890-{MIXED[:24]}",
    "a PyPI token": f"pypi-{MIXED[:60]}",
    "a JSON web token": f"eyJ{MIXED[:20]}.eyJ{MIXED[:30]}.{MIXED[:30]}",
    "a private key": "-----BEGIN RSA " + "PRIVATE KEY-----",
    "a URL with a password": "postgres://ada:" + "Xk29vbQ1@db.example.org/runs",
}
HARMLESS = (
    "hf_" + "x" * 34, "c" * 40, "a9993e364706816aba3e25717850c26c9cd0d89d", "gs://bucket/sk-notes",
    "https://example.org/a:b",
    "https://user@example.org/x.git", "--lr=3e-4", "tokenizer.json",
    "skip-this-very-long-name-of-an-experiment-number-12",
)  # fmt: skip


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_found_in_a_word_and_in_the_middle_of_one(kind):
    patterns = load_secret_patterns()
    assert patterns.find(SECRETS[kind]) == kind
    assert patterns.find(f"--header=X: {SECRETS[kind]};") == kind
    assert SECRETS[kind] not in patterns.redact(f"a {SECRETS[kind]} b")
    known = "" if kind in patterns.not_in_files else kind
    assert patterns.find_in_file(f"key: {SECRETS[kind]}\n".encode()) == known


@pytest.mark.parametrize("word", HARMLESS)
def test_what_only_looks_a_little_like_one_passes(word):
    patterns = load_secret_patterns()
    assert patterns.find(word) == ""
    check_argv(patterns, ("python3", "train.py", word))
    assert patterns.redact(word) == word or "x" * 9 in word


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567", True),
        ("DB_PASSWORD", "correct horse", True),
        ("hf-token", "abcdefghijkl", True),
        ("MAX_TOKENS", "100000000000", False),
        ("EOS_TOKEN", "<|end|>", False),
        ("EOS_TOKEN", "50256", False),
        ("TOKENIZER", "gpt2-of-some-length", False),
        ("HF_TOKEN", "", False),
        ("HF_TOKEN_FILE", "/run/secrets/hf", False),
        ("SECRET", "/run/secrets/hf", False),
        ("SEED", "12345678901", False),
    ],
)
def test_a_name_gives_its_value_away(name, value, refused):
    patterns = load_secret_patterns()
    if not refused:
        check_named(patterns, "--var", {name: value})
        return
    with pytest.raises(UsageError) as error:
        check_named(patterns, "--var", {name: value})
    assert value not in f"{error.value} {error.value.hint} {error.value.details}"
    assert error.value.hint.startswith("--secret NAME=env:")


@pytest.mark.parametrize(
    "argv",
    [
        ("python3", "t.py", "--api-key", "abcdefgh12345"),
        ("python3", "t.py", "--api_key=abcdefgh12345"),
        ("python3", "t.py", SECRETS["a GitHub token"]),
        ("sh", "-c", f"export X={SECRETS['a Hugging Face token']}; python3 t.py"),
    ],
)
def test_a_secret_among_the_arguments_is_refused_without_showing_it(argv):
    with pytest.raises(UsageError) as error:
        check_argv(load_secret_patterns(), argv)
    assert "abcdefgh12345" not in str(error.value)
    assert MIXED[:20] not in str(error.value)


def test_files_are_known_by_name_or_by_what_is_in_them():
    patterns = load_secret_patterns()
    assert patterns.is_secret_file(".env.local")
    assert patterns.is_secret_file("ID_RSA")
    assert not patterns.is_secret_file(".env.example")
    assert patterns.find_in_file(b"\0" + SECRETS["a Hugging Face token"].encode()) == ""
