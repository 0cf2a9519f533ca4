"""What surrounds the rules: backends, reach, ignores, options, formats, and what cannot be read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tpuctl.errors import BadConfigError, UsageError
from tpuctl.lint.files import list_files, top_of
from tpuctl.lint.lint import LintReport, lint_files, lint_reach
from tpuctl.lint.options import LintOptions, find_options, is_excluded
from tpuctl.lint.project import LintTarget
from tpuctl.lint.report import as_github, as_json, as_sarif, in_one_line
from tpuctl.lint.rules import LintBackend, choose_rules, for_versions, load_rules

TRAIN = """\
import torch_xla
from lib.losses import scale

def train(loader, model, optimizer):
    for step, batch in enumerate(loader):
        loss = scale(model(batch))
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            show(loss)

def show(loss):
    print(loss.item())
"""
LOSSES = """\
from .deeper import mean

def scale(loss):
    return loss * mean(loss)

def unused(loss):
    return loss.item()
"""
DEEPER = "def mean(loss):\n    return loss.mean().item()\n"


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def look(folder: Path, target: LintTarget = LintTarget(), **options: str) -> LintReport:
    rules = choose_rules(tuple(options.values()))
    return lint_files(list_files([folder], lambda _: False), rules, target, folder)


def found(report: LintReport, folder: Path) -> list[str]:
    return [f"{Path(each.path).relative_to(folder)}:{each.line} {each.code}" for each in report.findings]


def test_what_the_step_calls_is_hot_in_other_files_too(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": TRAIN, "lib/losses.py": LOSSES, "lib/deeper.py": DEEPER})
    assert found(look(tmp_path, select="TPU201"), tmp_path) == ["lib/deeper.py:2 TPU201"]


def test_a_script_is_followed_through_its_imports_and_no_further(tmp_path: Path) -> None:
    cuda = "import torch\nimport torch_xla\ntorch.cuda.set_device(0)\n"
    files = {"train.py": TRAIN, "lib/losses.py": LOSSES, "lib/deeper.py": DEEPER, "other.py": cuda}
    write(tmp_path, {**files, "lib/__init__.py": "import train\n"})
    report = lint_reach(tmp_path / "train.py", tmp_path, load_rules(), LintTarget())
    assert report.files == 4
    assert [(each.path, each.line) for each in report.findings] == [("lib/deeper.py", 2)]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (LintTarget(), []),
        (LintTarget(porting=True), ["a.py:2 TPU305"]),
        (LintTarget(LintBackend.TORCH_XLA), ["a.py:2 TPU305", "a.py:5 TPU201"]),
        (LintTarget(LintBackend.TORCH_TPU), ["a.py:2 TPU305", "a.py:5 TPU201"]),
        (LintTarget(LintBackend.JAX), []),
    ],
)
def test_cuda_code_is_shown_to_who_ports_it(tmp_path: Path, target: LintTarget, expected: list[str]) -> None:
    code = (
        "import torch\ntorch.cuda.set_device(0)\nclass M(torch.nn.Module):\n    def forward(self, x):\n        "
    )
    write(tmp_path, {"a.py": f"{code}return x.item()\n"})
    assert found(look(tmp_path, target), tmp_path) == expected


def test_torch_beside_jax_is_not_for_tpus(tmp_path: Path) -> None:
    convert = "import torch\nweights = torch.load('w').cuda()\n"
    write(tmp_path, {"convert.py": convert, "train.py": "import jax\njax.tree_map(abs, [1])\n"})
    assert found(look(tmp_path), tmp_path) == ["train.py:2 JAX703"]


def test_what_a_version_still_has_is_no_finding(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "import jax\njax.tree_map(abs, [1])\njax.device_put_replicated(1, [])\n"})
    files = list_files([tmp_path], lambda _: False)
    for version, lines in (("0.5.3", []), ("0.9.2", [2]), ("0.10.0", [2, 3])):
        rules = for_versions(load_rules(), {"jax": version})
        assert [each.line for each in lint_files(files, rules, LintTarget(), tmp_path).findings] == lines


IGNORED = """\
import torch
import torch_xla
torch.cuda.set_device(0)  # tpuctl: ignore[TPU305] only here
# tpuctl: ignore[TPU305, TPU301]
torch.cuda.synchronize()
text = "# tpuctl: ignore[TPU305]"
x = 1  # tpuctl: ignore[TPU305]
x = 1  # tpuctl: ignore[TPU999]
x = 1  # tpuctl: ignore
torch.cuda.synchronize()
"""


def test_comments_ignore_on_their_line_and_those_that_do_nothing_are_said(tmp_path: Path) -> None:
    report = look(write(tmp_path, {"a.py": IGNORED}))
    assert [(each.line, each.code, each.message) for each in report.findings] == [
        (4, "TPU001", "nothing here needs `ignore[TPU301]`"),
        (7, "TPU001", "nothing here needs `ignore[TPU305]`"),
        (8, "TPU001", "there is no rule TPU999"),
        (9, "TPU001", "it names no rule: `# tpuctl: ignore[CODE] reason`"),
        (10, "TPU305", "torch.cuda.synchronize fails on a TPU: it has no CUDA"),
    ]
    # Where a rule is not asked, nobody knows whether its ignores are needed.
    chosen = look(tmp_path, select="JAX")
    assert [each.line for each in chosen.findings] == [8, 9]


def test_the_nearest_table_of_pyproject_counts_and_the_command_line_adds_to_it(tmp_path: Path) -> None:
    table = '[tool.tpuctl.lint]\nbackend = "jax"\nignore = ["TPU1"]\nexclude = ["old", "gen/*.py"]\n'
    write(tmp_path, {"pyproject.toml": table, "sub/pyproject.toml": "[project]\nname = 'x'\n"})
    options, folder = find_options(tmp_path / "sub")
    assert folder == tmp_path
    over = LintOptions(select=("JAX",), ignore=("JAX703",)).over(options)
    assert over == LintOptions(LintBackend.JAX, False, ("JAX",), ("JAX703", "TPU1"), ("old", "gen/*.py"))
    for name, out in (("old/a/b.py", True), ("gen/x.py", True), ("gen.py", False), ("sub/old.py", False)):
        assert is_excluded(tmp_path / name, folder, options.exclude) is out


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[tool.tpuctl.lint]\nselct = []", "no key 'selct'"),
        ("[tool.tpuctl.lint]\nselect = 'TPU'", "Expected `array`, got `str`"),
        ("[tool.tpuctl.lint]\nbackend = 'cuda'", "Invalid enum value 'cuda'"),
        ("[tool.tpuctl.lint]\nignore = ['TPU9']", "no rule has the code 'TPU9'"),
        ("[tool.tpuctl]\nlint = 3", "Expected `object`"),
        ("[tool", "cannot read"),
    ],
)
def test_a_bad_table_is_refused_with_its_place(tmp_path: Path, table: str, words: str) -> None:
    write(tmp_path, {"pyproject.toml": table})
    with pytest.raises(BadConfigError, match=r"pyproject\.toml") as refused:
        find_options(tmp_path)
    assert words in refused.value.message


def test_an_unknown_code_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean TPU204"):
        choose_rules(("TPU20l",))
    assert {rule.code for rule in choose_rules(("TPU30",), ("TPU305",))} == {
        "TPU301",
        "TPU302",
        "TPU307",
        "TPU308",
    }


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LintReport:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path, {"my dir/a,b.py": "import torch\nimport torch_xla\ntorch.cuda.set_device(0)\n", "c.py": "("}
    )
    return lint_files(
        list_files([Path("my dir"), Path("c.py")], lambda _: False), load_rules(), LintTarget(), tmp_path
    )


def test_the_formats_name_place_code_and_message(report: LintReport) -> None:
    message = "torch.cuda.set_device fails on a TPU: it has no CUDA"
    assert in_one_line(report.findings[0]) == f"my dir/a,b.py:3:1: error TPU305 {message}"
    place = "file=my dir/a%2Cb.py,line=3,col=1,endLine=3,endColumn=25"
    assert as_github(report) == [f"::error title=tpuctl (TPU305),{place}::{message}"]
    document = as_json(report)
    assert (document["files"], document["errors"], document["warnings"]) == (2, 1, 0)
    assert document["not_read"] == [{"path": "c.py", "why": "line 1: '(' was never closed"}]
    [row] = document["findings"]
    assert (row["code"], row["line"], row["end_column"]) == ("TPU305", 3, 25)


def test_sarif_has_relative_paths_and_fingerprints_that_stay(report: LintReport, tmp_path: Path) -> None:
    [run] = json.loads(json.dumps(as_sarif(report, "1")))["runs"]
    [result] = run["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "my%20dir/a%2Cb.py"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["TPU305"]
    path = tmp_path / "my dir" / "a,b.py"
    path.write_text(f"\n\n{path.read_text()}torch.cuda.set_device(0)\n")
    moved = lint_files([Path("my dir/a,b.py")], for_versions(load_rules(), {}), LintTarget(), tmp_path)
    [again] = as_sarif(moved, "1")["runs"][0]["results"]
    assert again["locations"] != result["locations"]
    assert again["partialFingerprints"] == result["partialFingerprints"]


def test_what_cannot_be_read_is_said_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    write(tmp_path, {"good.py": "import jax\njax.tree_map(abs, [1])\n", "syntax.py": "def f(:\n"})
    (tmp_path / "binary.py").write_bytes(b"\x00\x01\x02\x00")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "huge.py").write_bytes(b"x = 1\n" * 500_000)
    (tmp_path / "deep.py").write_text("x = " + "-" * 100_000 + "1\n")
    (tmp_path / "brackets.py").write_text("(" * 1000)
    (tmp_path / "chain.py").write_text("x = a" + ".b" * 50_000 + "\n")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self.py").symlink_to(tmp_path / "self.py")
    report = look(tmp_path)
    assert found(report, tmp_path) == ["good.py:2 JAX703"]
    why = {Path(each.path).name: each.why for each in report.not_read}
    assert set(why) >= {"binary.py", "latin.py", "huge.py", "syntax.py", "brackets.py", "pipe.py", "self.py"}
    assert why["binary.py"] == "source code string cannot contain null bytes"
    assert why["huge.py"] == "it is larger than 2048 KiB"
    assert why["pipe.py"] == "it is no regular file (a pipe or a device)"
    assert all(why.values())


def test_deep_code_is_walked_or_refused_but_never_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text("import jax\nx = 0" + " + 1" * 900 + "\njax.tree_map(abs, [x])\n")
    (tmp_path / "ifs.py").write_text("".join(f"{' ' * n}if x:\n" for n in range(90)) + " " * 90 + "pass\n")
    assert found(look(tmp_path), tmp_path) == ["sum.py:3 JAX703"]


def test_environments_hidden_folders_and_links_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, {f"{name}/a.py": "x = 1\n" for name in ("src", "venv", ".git", "build", "__pycache__")})
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "src")
    (tmp_path / "src" / "loop").symlink_to(tmp_path)
    assert list_files([tmp_path], lambda _: False) == [tmp_path / "src" / "a.py"]
    assert top_of([tmp_path / "src", tmp_path / "venv"], tmp_path / "src") == tmp_path


SYNTAX = """\
import jax
async def f(a, /, b: int = 1, *c, d=2.5, **e) -> None:
    async with a as b, c: pass
    async for x in y: await z
    return (n := 3j), [*a], {**e}, {1, 2}, b"x", ..., not a, -1, a[1:2, ...], lambda *q, w=1: q
match 1:
    case True | None: pass
    case {"a": [1, *_], **rest} if rest: pass
    case A(b=2.0) as c: pass
try: pass
except* ValueError as error: raise error from None
class B(jax.numpy.ndarray, metaclass=type): x: float; y: int = 1; x += 1
global g; del g; assert f, f"{g!r:>{x}}"
print([i async for i in x if i], (j for j in y), {k: v for k, v in z}, sep="")
while True:
    break
else: jax.tree_map(abs, [1])
"""


def test_all_of_the_syntax_is_walked(tmp_path: Path) -> None:
    report = look(write(tmp_path, {"a.py": SYNTAX}))
    assert report.not_read == ()
    assert found(report, tmp_path) == ["a.py:17 JAX703"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("count", "copies", "cpu_s"), [(400, 8, 4.0), (10_000, 0, 8.0)])
def test_many_files_take_little_of_a_processor(tmp_path: Path, count: int, copies: int, cpu_s: float) -> None:
    """Four seconds for 400 programs of 140 lines; ten thousand of a line each end, too."""
    code = "import jax\n" + SYNTAX.partition("\n")[2].replace("tree_map", "tree.map") * copies
    for number in range(count):
        (tmp_path / f"file_{number}.py").write_text(code)
    began = time.process_time()
    report = look(tmp_path)
    assert time.process_time() - began < cpu_s
    assert (report.findings, report.not_read) == ((), ())
