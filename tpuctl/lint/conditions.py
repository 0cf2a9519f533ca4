"""What the condition around a piece of code says about when it runs. Pure, and by the names in it only."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache


class Under:
    """A statement runs … Flags of an int, for there are many of them: an IntFlag takes a tenth of the time."""

    DEVICE = 1
    """… on one kind of device only: the program has thought of it."""
    SOMETIMES = 2
    """… not in every step."""
    RANK = 4
    """… in one process of several."""
    VERSION = 8
    """… with some versions only."""
    TRIED = 16
    """… and may fail."""
    LATER = 32
    """… when somebody calls it, if at all: a lambda, a default, what something is compared with."""


LONG = 40
"""Characters of a text that is no name of a device or backend any more."""
_DEVICE = re.compile(
    r"cuda|nccl|rocm|is_available|^device(_type)?$|^platform$|backend|accelerator"
    r"|(^|[^a-z])(x?gpu|x?tpu|npu|hip|xla|torch_xla)s?([^a-z]|$)"
)
_VERSION = re.compile(r"version|hasattr|TYPE_CHECKING")
_SOMETIMES = re.compile(
    r"(^|_)(log|logging|print|debug|verbose|eval|evaluate|valid|validation|val|test|profile|profiler|save|"
    r"checkpoint|ckpt|last|first|every|interval|freq|frequency|report|warmup|once|dump|sample|finished|done)(_|$|ging)"
)
_RANK = re.compile(
    r"^(is_)?(master|main|rank0|rank_zero|primary|lead)(_?(ordinal|process|rank|worker|host|proc))?$"
    r"|^(global_|local_|process_|dp_)?(rank|ordinal|process_index|process_id|process_idx)$|^ddp_rank$"
)


def of_test(test: ast.expr) -> int:
    """What is known where this test holds, or does not."""
    found = 0
    waiting: list[ast.AST] = [test]
    while waiting:
        node = waiting.pop()
        for part in node._fields:
            value = getattr(node, part, None)
            if isinstance(value, list):
                waiting.extend(each for each in value if isinstance(each, ast.AST))
            elif isinstance(value, ast.AST):
                waiting.append(value)
        if isinstance(node, ast.Name):
            found |= _of_word(node.id)
        elif isinstance(node, ast.Attribute):
            found |= _of_word(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < LONG:
            found |= Under.DEVICE if _DEVICE.search(node.value.lower()) else 0
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            found |= Under.SOMETIMES
    return found


def behind(test: ast.expr) -> int:
    """What is known behind `if …: return`. Only such as `if not should_log: return` and `if step % 10 != 0:
    continue` say that the rest is not done in every step."""
    found = of_test(test) & ~Under.RANK
    denies = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    differs = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq)
    return found if denies or differs else found & ~Under.SOMETIMES


@cache
def _of_word(word: str) -> int:
    lower = word.lower()
    found = Under.DEVICE if _DEVICE.search(lower) else 0
    if _RANK.search(lower) or lower in ("is_master_ordinal", "is_main_process"):
        found |= Under.RANK | Under.SOMETIMES
    if _SOMETIMES.search(lower):
        found |= Under.SOMETIMES
    if _VERSION.search(word):
        found |= Under.VERSION
    return found


@cache
def of_name(name: str) -> int:
    """A function or class that says in its name which kind of device it is for."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return Under.DEVICE if re.search(r"(^|_)(cuda\w*|x?gpu|nccl|triton|inductor)(_|$)", words) else 0


def of_decorators(decorators: Sequence[ast.expr]) -> int:
    """A kernel or an operation that is registered for one kind of device."""
    for node in (each for decorator in decorators for each in ast.walk(decorator)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and _DEVICE.search(node.value.lower())
        ):
            return Under.DEVICE
        if isinstance(node, ast.Name | ast.Attribute):
            word = node.id if isinstance(node, ast.Name) else node.attr
            if word in ("triton", "requires_cuda", "skipIfNoCuda") or "cuda" in word.lower():
                return Under.DEVICE
    return 0


def returns(body: Sequence[ast.stmt]) -> bool:
    """Whether a block never goes on behind its `if`."""
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue)
