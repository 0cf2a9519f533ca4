"""What looks like a secret: `manifests/tables/secrets.yaml` applied to words and files. Pure.

A guess in both directions. It exists because arguments, variables and labels are kept in records and shown in
process lists; it is no reason to be careless.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.errors import UsageError

MASK = "***"
LEAST_DIFFERENT = 8
"""Characters that differ in a real token: `hf_xxxxxxxx…` is an example of one."""
HINT = "--secret NAME=env:VARIABLE, NAME=file:PATH or NAME=sm://PROJECT/SECRET"


class ValuePattern(Struct, frozen=True):
    """One kind of secret, by its form. `mark` is in every match."""

    kind: str
    mark: str
    pattern: re.Pattern[str]


class SecretPatterns(Struct, frozen=True):
    """The table, ready to use."""

    values: tuple[ValuePattern, ...]
    names: re.Pattern[str]
    harmless_value: re.Pattern[str]
    files: tuple[str, ...]
    harmless_files: tuple[str, ...]
    not_in_files: frozenset[str]

    def find(self, text: str) -> str:
        """The kind of secret that is in `text`; empty for none."""
        return next((each.kind for each in self.values if self._matches(each, text)), "")

    def find_named(self, name: str, value: str) -> str:
        """The same for a value that has a name, which may give it away."""
        found = self.find(value)
        if not found and self.names.search(name) and not self.harmless_value.match(value):
            return "a secret by its name"
        return found

    def redact(self, text: str) -> str:
        """`text` with a mask in the place of whatever looks like a secret."""
        for each in self.values:
            if each.mark in text:
                text = each.pattern.sub(MASK, text)
        return text

    def is_secret_file(self, name: str) -> bool:
        """Whether files of this name (without folders) hold secrets."""
        low = name.lower()
        return low not in self.harmless_files and any(fnmatch.fnmatchcase(low, each) for each in self.files)

    def find_in_file(self, content: bytes) -> str:
        """The kind of secret that a file holds; empty for none, and for what is no text."""
        if b"\0" in content[:1024]:
            return ""
        wanted = [
            each for each in self.values if each.kind not in self.not_in_files and each.mark.encode() in content
        ]
        text = content.decode("utf-8", "replace") if wanted else ""
        return next((each.kind for each in wanted if self._matches(each, text)), "")

    @staticmethod
    def _matches(each: ValuePattern, text: str) -> bool:
        if each.mark not in text:
            return False
        found = (match[0] for match in each.pattern.finditer(text))
        return any(" " in match or len(set(match)) >= LEAST_DIFFERENT for match in found)


def parse_patterns(table: Mapping[str, Any]) -> SecretPatterns:
    """The table from the content of `manifests/tables/secrets.yaml`."""
    rows = [ValuePattern(row["kind"], row["mark"], re.compile(row["pattern"])) for row in table["values"]]
    return SecretPatterns(
        tuple(rows),
        re.compile(table["names"]),
        re.compile(table["harmless_value"], re.DOTALL),
        tuple(table["files"]),
        tuple(table["harmless_files"]),
        frozenset(table["not_in_files"]),
    )


def check_argv(patterns: SecretPatterns, argv: Sequence[str]) -> None:
    """Raises UsageError, which never shows the value, for an argument that looks like a secret: everybody on a
    host sees arguments, and they are kept in records."""
    before = ""
    for number, word in enumerate(argv, 1):
        flag, equals, value = word.partition("=")
        named = flag if equals else before
        given = value if equals else word
        found = patterns.find_named(named, given) if named.startswith("-") else patterns.find(word)
        if found or patterns.find(word):
            where = f"the value of {named}" if named.startswith("-") else f"argument {number}"
            raise refusal(where, found or patterns.find(word), key="args")
        before = word if word.startswith("-") and not equals else ""


def check_named(patterns: SecretPatterns, flag: str, values: Mapping[str, str]) -> None:
    """The same for values with names, given with `flag`."""
    for name, value in values.items():
        found = patterns.find_named(name, value)
        if found:
            raise refusal(f"{flag} {name}", found, key=flag.lstrip("-"))


def refusal(where: str, kind: str, *, key: str) -> UsageError:
    """The error for a secret in a place where everybody can see it."""
    hint = f"{HINT}; the program finds it in its environment"
    said = f"{where} looks like {kind}, and would be kept in records"
    return UsageError(said, hint=hint, details={"key": key})
