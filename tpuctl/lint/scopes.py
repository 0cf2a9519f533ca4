"""Where a piece of code stands: its function, its loop, and under which conditions it runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Scope:
    """A function, or the module itself, whose name is empty."""

    name: str
    parent: Scope | None = None
    owner: str = ""
    """The class around it."""
    node: ast.AST | None = None
    bound: set[str] = field(default_factory=set)
    """Names that it binds to something else than an import."""
    steps: bool = False
    """It makes one step of the training, so whatever it holds is hot."""
    may_step: bool = False
    """It does, if a loop calls it."""
    calls: set[str] = field(default_factory=set)
    """What it calls each time that it runs, by resolved name."""


@dataclass(slots=True, eq=False)
class Loop:
    """A `for` or `while`. `steps`: one turn is one step of the training."""

    node: ast.For | ast.AsyncFor | ast.While
    scope: Scope
    outer: Loop | None
    steps: bool = False
    calls: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Context:
    """What is around a node; never changed. `under`: flags of `Under`."""

    scope: Scope
    under: int = 0
    loop: Loop | None = None
    logged: bool = False
    """Among the arguments of a call that prints or logs."""


@dataclass(slots=True, eq=False)
class Site:
    """A node in its context. `name` is what it refers to, resolved through imports, or empty; `attr` the last
    part of the name as it is written."""

    node: Any
    context: Context
    name: str = ""
    attr: str = ""

    @property
    def scope(self) -> Scope:
        return self.context.scope

    @property
    def under(self) -> int:
        return self.context.under

    @property
    def stepping(self) -> bool:
        """Whether it is in a loop of this function that makes steps."""
        loop = self.context.loop
        while loop is not None and loop.scope is self.context.scope:
            if loop.steps:
                return True
            loop = loop.outer
        return False


def chain(node: ast.AST) -> str:
    """`a.b.c` as it is written; empty for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    if not parts:
        return node.id
    parts.append(node.id)
    return ".".join(reversed(parts))


def text_of(node: ast.AST | None) -> str:
    """A text that stands there as a constant, also within `a + "…"` and f-texts; else empty."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.BinOp):
        return f"{text_of(node.left)} {text_of(node.right)}".strip()
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) for each in node.values)
    return ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((each.value for each in call.keywords if each.arg == name), None)


def has_stars(call: ast.Call) -> bool:
    """Whether it also takes arguments that do not stand there."""
    return any(each.arg is None for each in call.keywords) or any(isinstance(e, ast.Starred) for e in call.args)


def around(scope: Scope) -> Iterator[Scope]:
    """A function and those that it is within."""
    inner: Scope | None = scope
    while inner is not None:
        yield inner
        inner = inner.parent


Found = tuple[ast.expr | ast.stmt, Context, str]
"""A place, what is around it, and what was found there."""
