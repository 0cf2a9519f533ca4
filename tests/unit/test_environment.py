"""Environment files: what is accepted, what is refused with which words, and what the key depends on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpuctl.envs.spec import (
    EnvironmentSpec,
    environment_files,
    environment_key,
    lock_for,
    parse_environment,
    parse_frozen,
    pins,
    render_frozen,
)
from tpuctl.errors import BadManifestError

ENV_DIR = Path(__file__).parents[2] / "manifests" / "env"
SHIPPED = sorted(ENV_DIR.glob("*.yaml"))
HASH = "--hash=sha256:" + "a" * 64
LOCK = f"# a comment\nsix==1.17.0 \\\n    {HASH}\nGoogle.Auth==2.1 {HASH}\n"


def environment(**changes: Any) -> EnvironmentSpec:
    data = {"name": "e", "python": {"3.11": "a.txt"}, "verify": ["six"], "variables": {"A": "1"}, **changes}
    return parse_environment(data, {"a.txt": LOCK, "b.txt": LOCK + f"idna==3.1 {HASH}\n"})


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_environment_is_complete_for_every_supported_python(path: Path) -> None:
    locks = {file.name: file.read_text() for file in ENV_DIR.glob("*.txt")}
    spec = parse_environment(yaml.safe_load(path.read_text()), locks)
    assert spec.name == path.stem
    assert sorted(spec.locks) == ["3.11", "3.12", "3.13", "3.14"]
    for text in spec.locks.values():
        assert {"jax", "jaxlib", "numpy", "google-cloud-storage"} <= pins(text).keys()
        assert pins(text)["jax"] == pins(text)["jaxlib"]


def test_pins_are_read_over_continuation_lines_with_normalised_names() -> None:
    assert pins(LOCK) == {"six": "1.17.0", "google-auth": "2.1"}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (f"six>=1.0 {HASH}", "six>=1.0"),
        ("six==1.0", "no sha256 hash"),
        ("six==1.0 --hash=md5:abc", "no sha256 hash"),
        (f"six==1.0 ; python_version < '3.12' {HASH}", "not an exact version"),
        ("-e .", "not an exact version"),
    ],
)
def test_lock_line_that_pins_nothing_is_refused(line: str, word: str) -> None:
    with pytest.raises(BadManifestError, match=word):
        pins(line + "\n")


def test_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(BadManifestError, match="'variabels'") as caught:
        environment(variabels={})
    assert caught.value.hint == "did you mean `variables`?"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"name": "Has Space"}, "Has Space"),
        ({"python": {}}, "`python`"),
        ({"python": {3.11: "a.txt"}}, "quoted string"),
        ({"python": {"3.11": "missing.txt"}}, "missing.txt"),
        ({"verify": "six"}, "`verify`"),
        ({"verify": ["os; evil"]}, "os; evil"),
        ({"variables": ["A"]}, "`variables`"),
        ({"variables": {"A B": "1"}}, "A B"),
        ({"variables": {"A": True}}, "variable A"),
    ],
)
def test_wrong_value_is_refused_by_name(change: dict[str, Any], word: str) -> None:
    with pytest.raises(BadManifestError, match=word):
        environment(**change)


def test_file_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(BadManifestError, match="mapping"):
        parse_environment(["jax"], {})


def test_key_follows_the_content_and_not_name_or_comments() -> None:
    key = environment_key(environment(), "3.11")
    assert len(key) == 16
    assert environment_key(environment(name="other", description="words"), "3.11") == key
    commented = parse_environment(
        {"name": "e", "python": {"3.11": "a.txt"}, "verify": ["six"], "variables": {"A": "1"}},
        {"a.txt": "# another comment\n\n" + LOCK},
    )
    assert environment_key(commented, "3.11") == key


@pytest.mark.parametrize(
    "change",
    [{"python": {"3.11": "b.txt"}}, {"verify": []}, {"variables": {"A": "2"}}, {"variables": {}}],
)
def test_key_changes_with_everything_that_is_installed_or_set(change: dict[str, Any]) -> None:
    assert environment_key(environment(**change), "3.11") != environment_key(environment(), "3.11")


def test_key_differs_between_python_versions_with_equal_locks() -> None:
    spec = environment(python={"3.11": "a.txt", "3.12": "a.txt"})
    assert environment_key(spec, "3.11") != environment_key(spec, "3.12")


def test_host_without_a_usable_python_is_told_which_ones_would_do() -> None:
    spec = environment(python={"3.9": "a.txt", "3.11": "a.txt"})
    with pytest.raises(BadManifestError, match=r"only for 3\.9, 3\.11"):
        lock_for(spec, "3.10")


def test_files_for_a_host_carry_installer_key_lock_and_what_to_verify() -> None:
    spec = environment()
    files = environment_files(spec, "3.11", b"print()")
    assert files["env_install.py"] == b"print()"
    assert files["requirements.txt"] == LOCK.encode()
    assert json.loads(files["env.json"]) == {
        "key": environment_key(spec, "3.11"),
        "name": "e",
        "python": "3.11",
        "verify": ["six"],
        "variables": {"A": "1"},
    }


def test_frozen_environment_is_read_back_with_the_same_key() -> None:
    spec = environment(description="words")
    assert parse_frozen(render_frozen(spec)) == spec
    assert environment_key(parse_frozen(render_frozen(spec)), "3.11") == environment_key(spec, "3.11")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"name": "x"}', b"\xff"])
def test_frozen_environment_that_is_damaged_is_refused(content: bytes) -> None:
    with pytest.raises(BadManifestError, match="frozen environment"):
        parse_frozen(content)
