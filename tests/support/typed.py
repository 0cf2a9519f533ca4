"""Command lines that texts tell people to type, and whether they could be typed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

from tpuctl.cli.app import app

HOLE = "X"
"""Stands for what is filled in when the text is made."""
_QUOTED = re.compile(r"`(tpuctl(?: [^`]*)?)`")
_BARE = re.compile(r"(?:^|[:;,(=] ?|\bor |\band )(tpuctl(?: [\w…<\[\"'./~:=@$-]+)+)")
_PROSE = {"puts", "needs", "keeps", "takes", "="}
"""Words behind the name of the program where it is the subject of a sentence."""
_EXAMPLE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_END = re.compile(r"[;,.)]$")


def strings_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module with its line, docstrings too; what an f-string fills in is a hole."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def commands_in(text: str) -> Iterator[str]:
    """The command lines in a text: in backquotes, and bare ones where a hint begins with them."""
    yield from (found[1] for found in _QUOTED.finditer(text))
    for line in _QUOTED.sub("", text).splitlines():
        bare = [found[1] for found in _BARE.finditer(line.strip())]
        yield from (command for command in bare if command.split()[1] not in _PROSE)


def commands_in_page(text: str) -> Iterator[str]:
    """The command lines in Markdown: those of its examples, and what its sentences have in backquotes."""
    for example in _EXAMPLE.findall(text):
        yield from re.findall(r"^\$? ?(tpuctl [^#|>\n]+)", example, flags=re.MULTILINE)
        yield from commands_in(example)
    yield from _QUOTED.findall(_EXAMPLE.sub("", text).replace("\n", " "))


def trouble(command: str) -> str:
    """Why `command` cannot be typed, or an empty string: commands and options are looked at, not values."""
    words = [word.strip("[]") for word in command.split(" -- ")[0].split()[1:]]
    found: Any = _tpuctl()
    context = typer.Context(found, info_name="tpuctl")
    known = _options(found)
    while words:
        word = _END.sub("", words.pop(0))
        if word == "--":
            return ""
        if word.startswith("-") and word != "-":
            for option in word.partition("=")[0].split("/"):
                if option not in known and option not in {"--help", "-h"}:
                    return f"{command!r}: {context.command_path} has no {option}"
            if known.get(word) and words:
                words.pop(0)
        elif hasattr(found, "list_commands"):
            if word in {HOLE, "…", "COMMAND", "OPTIONS"}:
                return ""
            verb = found.get_command(context, word)
            if verb is None:
                return f"{command!r}: {context.command_path} has no {word}"
            found, context = verb, typer.Context(verb, info_name=word, parent=context)
            known = _options(found)
    return ""


@cache
def _tpuctl() -> Any:
    """The command line, which takes long to build."""
    return typer.main.get_command(app)


def _options(command: Any) -> dict[str, bool]:
    """The options of a command, and whether a value follows."""
    return {
        name: not getattr(param, "is_flag", True) and not getattr(param, "count", False)
        for param in command.params
        for name in (*param.opts, *param.secondary_opts)
    }
