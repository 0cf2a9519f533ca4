"""Which words of a command line are tpuctl's and which are the user's program's."""

from __future__ import annotations

from tpuctl.cli.invocation import Invocation


def split_words(shared: Invocation, words: list[str]) -> tuple[list[str], list[str]]:
    """The words before and behind the first `--` of the command line: Typer drops it without a trace."""
    arguments = shared.arguments
    if "--" not in arguments:
        return words, []
    behind = arguments[arguments.index("--") + 1 :]
    return words[: len(words) - len(behind)], behind
