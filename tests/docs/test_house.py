"""What the house is measured by: how long things are, and how often one idea is written down."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass
class House:
    """Each with its file, below the package."""

    functions: dict[str, int] = field(default_factory=dict)
    """How long they are, in lines."""
    classes: list[tuple[str, str]] = field(default_factory=list)
    calls: set[tuple[str, str]] = field(default_factory=set)
    """`.name` is a method."""
    breaches: dict[str, list[tuple[Path, str]]] = field(default_factory=dict)
    """What `RULES` find, and where."""

    def found(self, rule: str) -> list[str]:
        return [f"{path.relative_to(ROOT)}:{said}" for path, said in self.breaches.get(rule, [])]


@cache
def house() -> House:
    """All of the package, parsed once: that takes 2 s of a processor."""
    found = House()
    for path in sorted((ROOT / "tpuctl").rglob("*.py")):
        file = str(path.relative_to(ROOT / "tpuctl"))
        for node in ast.walk(ast.parse(path.read_text())):
            for rule, breaks in RULES.items():
                if breaks(path, node):
                    words = f"{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
                    found.breaches.setdefault(rule, []).append((path, words))
            match node:
                case ast.FunctionDef():
                    found.functions[f"{file} {node.name}"] = node.end_lineno - node.lineno + 1
                case ast.ClassDef():
                    found.classes.append((file, node.name))
                case ast.Call(func=ast.Attribute(attr=name)):
                    found.calls.add((file, f".{name}"))
                case ast.Call(func=ast.Name(id=name)):
                    found.calls.add((file, name))
    return found


def callers(*names: str) -> set[str]:
    """The files in which one of these is called."""
    return {file for file, name in house().calls if name in names}


def test_no_function_is_longer_than_a_screen():
    assert len(house().functions) > 3000
    assert {name: lines for name, lines in house().functions.items() if lines > 60} == {}


def test_exceptions_from_lint_stay_few():
    files = [path.read_text() for folder in ("tpuctl", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert 0 < sum("# noqa" in line for text in files for line in text.splitlines()) <= 76


def test_tests_that_take_seconds_stay_few():
    """What they take is processor time, for which all wait: a new one takes the place of an older one, or is
    told in memory."""
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    counts = {mark: text.count(f"pytest.mark.{mark}") for mark in ("slow", "long")}
    assert 0 < counts["slow"] <= 170
    assert 0 < counts["long"] <= 75


def test_a_string_is_not_taken_apart_for_a_set_of_words():
    """`*("word")` is four letters: a tuple of one has a comma."""
    assert is_taken_apart(ROOT, ast.parse("(*('word'),)", mode="eval").body.elts[0])  # type: ignore[attr-defined]
    assert house().found("a string taken apart") == []


def is_taken_apart(_: Path, node: ast.AST) -> bool:
    return isinstance(node, ast.Starred) and isinstance(node.value, ast.Constant)


def test_a_run_is_its_table_and_little_more():
    lines = {path.stem: len(path.read_text().splitlines()) for path in (ROOT / "tpuctl/runs").glob("*.py")}
    assert max(lines.values()) <= 400
    assert sum(lines[name] for name in ("plan", "effects", "attempt")) <= 1_100


def test_one_idea_is_written_down_once():
    """Four types of an environment, one driver that provisions hosts, one way to prove and delete."""
    classes = [name for file, name in house().classes if file.startswith(("model/", "envs/"))]
    kinds = {name for name in classes if "Environment" in name and not name.endswith("OfSlice")}
    assert kinds == {"EnvironmentSpec", "PinnedEnvironment", "EnvironmentRef", "EnvironmentKind"}
    assert callers("provision") == {"things/driver.py"}
    deletes = callers(".delete_node", ".delete_queued", ".delete_disk", ".delete_snapshot")
    assert {file for file in deletes if not file.startswith("sim/")} == {"inventory/delete.py"}


def test_records_are_read_and_changed_through_their_repositories():
    """Raw documents are for `state/` alone."""
    assert is_raw(ast.parse("services.store.get", mode="eval").body)
    assert is_raw(ast.parse("self._store.put", mode="eval").body)
    assert house().found("a raw document") == []


def takes_raw(path: Path, node: ast.AST) -> bool:
    elsewhere = path.parent.name != "state" and "sim" not in path.parts
    return elsewhere and isinstance(node, ast.Call) and is_raw(node.func)


def is_raw(called: ast.AST) -> bool:
    """It is a method of a store that reads, writes or removes a document."""
    match called:
        case ast.Attribute(value=ast.Attribute(attr=name) | ast.Name(id=name), attr=verb):
            return name.lstrip("_") == "store" and verb in {"get", "put", "list", "delete"}
    return False


def test_a_class_has_a_name_of_its_own():
    """So that a search for it finds one thing. `To` is a row of a table of transitions: there are three."""
    files: dict[str, set[str]] = {}
    for file, name in house().classes:
        if not name.startswith("_") and not file.startswith(("sim/", "agent/")):
            files.setdefault(name, set()).add(file)
    twice = {name for name, where in files.items() if len(where) > 1}
    assert twice <= {"To"}


PROSE = frozenset({"hint", "message", "why", "reason", "note", "detail", "fix", "remark"})
"""What is written for people."""
READS = frozenset(
    {"startswith", "endswith", "partition", "rpartition", "split", "replace", "find", "index"}
) | {
    "removeprefix",
    "removesuffix",
}
MATCHES = frozenset({"search", "match", "fullmatch", "sub", "findall", "finditer", "split"})


OTHERS_WORDS = {ROOT / "tpuctl/slices/classify.py"}
"""What a stockout is called in Google's own messages."""


def reads_prose(node: ast.AST) -> bool:
    """It looks for something in what is written for people, or takes that apart."""

    def is_prose(value: ast.AST) -> bool:
        match value:
            case ast.Attribute(attr=name):
                return name in PROSE
            case ast.BoolOp(values=parts) | ast.JoinedStr(values=parts):
                return any(map(is_prose, parts))
            case ast.FormattedValue(value=inner) | ast.Call(func=ast.Name(id="str"), args=[inner]):
                return is_prose(inner)
            case ast.Call(func=ast.Attribute(value=inner, attr="lower" | "casefold" | "strip")):
                return is_prose(inner)
        return False

    match node:
        case ast.Call(func=ast.Attribute(value=text, attr=name)) if name in READS and is_prose(text):
            return True
        case ast.Call(func=ast.Attribute(attr=name), args=args) if name in MATCHES:
            return any(map(is_prose, args))
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[text]):
            return is_prose(text)
    return False


def test_what_is_written_for_people_is_not_read_by_the_program():
    """What is compared, grouped or translated is a field of its own. Of other programs' words tables are made,
    where they come in."""
    assert reads_prose(ast.parse("(error.hint or '').startswith('gcloud')", mode="eval").body)
    assert reads_prose(ast.parse("'tpu.' not in error.message.lower()", mode="eval").body)
    assert reads_prose(ast.parse("re.sub('a', 'b', f'{error.message};')", mode="eval").body)
    assert house().found("prose that is read") == []


def reads_own_prose(path: Path, node: ast.AST) -> bool:
    ours = path.parent.name != "agent" and "sim" not in path.parts and path not in OTHERS_WORDS
    return ours and reads_prose(node)


COUNTS = re.compile(
    r"^ (more |other )?(hosts|workers|problems|warnings|slices|chips|documents|zones|passes|runs|days)\b"
)
"""What is said behind a number that may be 1."""


def test_no_message_puts_a_plural_behind_a_count_by_itself():
    """`{len(x)} hosts` says "1 hosts" some day; `counted` does not. A number that is at least 2 says so."""
    assert puts_plural(ROOT, ast.parse("f'{len(x)} hosts'", mode="eval").body)
    assert not puts_plural(ROOT, ast.parse("f'{counted(len(x), word)} hosts'", mode="eval").body)
    assert house().found("a plural behind a count") == []


def puts_plural(_: Path, node: ast.AST) -> bool:
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    for before, after in pairwise(parts):
        match before, after:
            case ast.FormattedValue(value=ast.Call(func=ast.Name(id="len"))), ast.Constant(value=str(text)):
                if COUNTS.match(text):
                    return True
    return False


RULES = {
    "a string taken apart": is_taken_apart,
    "a raw document": takes_raw,
    "prose that is read": reads_own_prose,
    "a plural behind a count": puts_plural,
}
"""Of one node of a file each."""


def test_contents_travel_in_one_way():
    """There, back, and from host to host: frames, which one module on each side writes and reads."""
    assert callers("read_begin", "read_pieces") == {"agent/contents.py", "agent/relay.py"}
    assert callers("render_begin") == {"agent/relay.py", "agent/sending.py"}
    assert callers("render_contents") == {"transfer/lacking.py", "workers/copy_to.py"}
    assert callers("FrameReader") == {"workers/copy_from.py"}
    assert callers("parse_entry") == {"agent/contents.py", "transfer/tree.py", "workers/file_list.py"}
