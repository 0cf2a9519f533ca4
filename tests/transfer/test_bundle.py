from __future__ import annotations

import hashlib
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tpuctl.collect.collect import INDEX_NAME
from tpuctl.errors import UsageError
from tpuctl.provenance.bundle import open_bundle
from tpuctl.transfer.bundle import freeze, list_code, list_directory, strip_credentials
from tpuctl.transfer.own_output import REPORT_MARK
from tpuctl.transfer.tree import Content, TreeLink, parse_tree

LIMIT = 1 << 20


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def git(directory: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", str(directory), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    top = tmp_path / "repo"
    write(top / "train.py", "print(1)")
    write(top / ".gitignore", "*.log\n")
    git(top, "init", "-q", "-b", "work")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "first")
    return top


def contents(content: Content) -> dict[str, str]:
    return {
        entry.path: f"-> {entry.target}"
        if isinstance(entry, TreeLink)
        else b"".join(content.read(entry.blob.sha256)).decode()
        for entry in parse_tree(content.tree)
    }


def test_tracked_and_untracked_but_not_ignored_files_are_frozen(repo):
    write(repo / "new.py", "new")
    write(repo / "big.log")
    frozen = freeze(repo, "train.py", limit_bytes=LIMIT)
    assert contents(frozen.content) == {".gitignore": "*.log\n", "new.py": "new", "train.py": "print(1)"}
    assert frozen.files == 3
    assert frozen.sha256 == hashlib.sha256(frozen.content.tree).hexdigest()


def test_the_same_tree_gives_the_same_bytes(repo):
    first = freeze(repo, limit_bytes=LIMIT)
    os.utime(repo / "train.py", (1, 1))
    assert freeze(repo, limit_bytes=LIMIT).content.tree == first.content.tree
    (repo / "train.py").chmod(0o755)
    assert freeze(repo, limit_bytes=LIMIT).content.tree != first.content.tree


def test_git_state_is_recorded(repo):
    git(repo, "remote", "add", "origin", "https://ada:t0ken@example.com/r.git")
    clean = freeze(repo, limit_bytes=LIMIT)
    assert (clean.branch, clean.dirty, clean.diff, clean.diff_sha256) == ("work", False, b"", None)
    assert clean.remote_url == "https://example.com/r.git"
    assert len(clean.commit) == 40
    write(repo / "train.py", "print(2)")
    dirty = freeze(repo, limit_bytes=LIMIT)
    assert dirty.dirty
    assert b"+print(2)" in dirty.diff
    assert dirty.diff_sha256 == hashlib.sha256(dirty.diff).hexdigest()


def test_a_subdirectory_freezes_the_whole_tree(repo):
    write(repo / "pkg" / "go.py")
    frozen = freeze(repo / "pkg", "go.py", limit_bytes=LIMIT)
    assert frozen.directory == "pkg"
    assert {"train.py", "pkg/go.py"} <= set(contents(frozen.content))


def test_a_repository_without_commits_works(tmp_path):
    write(tmp_path / "a.py")
    git(tmp_path, "init", "-q")
    frozen = freeze(tmp_path, limit_bytes=LIMIT)
    assert frozen.commit is None
    assert frozen.dirty
    assert list(contents(frozen.content)) == ["a.py"]


def test_deleted_tracked_files_are_left_out(repo):
    (repo / "train.py").unlink()
    assert list(contents(freeze(repo, limit_bytes=LIMIT).content)) == [".gitignore"]


def test_outside_git_caches_are_left_out(tmp_path):
    for name in ("a.py", "d/b.py", "__pycache__/a.pyc", ".venv/x", "node_modules/y", "d/__pycache__/z"):
        write(tmp_path / name)
    frozen = freeze(tmp_path, limit_bytes=LIMIT)
    assert list(contents(frozen.content)) == ["a.py", "d/b.py"]
    assert frozen.commit is None


@pytest.mark.parametrize("in_git", [True, False])
def test_odd_names_survive(tmp_path, in_git):
    names = ["a b", "new\nline", "ünï", "quote'\"", "-dash", "tab\t", "x" * 200]
    for name in names:
        write(tmp_path / name, name)
    if in_git:
        git(tmp_path, "init", "-q")
    assert contents(freeze(tmp_path, limit_bytes=LIMIT).content) == {name: name for name in names}


def test_names_that_are_not_utf8_survive(tmp_path):
    name = os.fsdecode(b"\xff.txt")
    write(tmp_path / name)
    assert contents(freeze(tmp_path, limit_bytes=LIMIT).content) == {name: "x"}


def test_links_inside_are_kept_and_links_outside_refused(repo):
    (repo / "link.py").symlink_to("train.py")
    (repo / "loop").symlink_to("loop")
    assert contents(freeze(repo, limit_bytes=LIMIT).content)["link.py"] == "-> train.py"
    for target in ("../elsewhere", "/etc/passwd", str(repo / "train.py")):
        (repo / "out").symlink_to(target)
        with pytest.raises(UsageError, match="'out' points outside"):
            freeze(repo, limit_bytes=LIMIT)
        (repo / "out").unlink()


@pytest.mark.parametrize("what", ["pipe", "socket"])
def test_what_is_no_file_is_named_and_neither_opened_nor_waited_for(tmp_path, monkeypatch, what):
    write(tmp_path / "train.py")
    monkeypatch.chdir(tmp_path)
    if what == "pipe":
        os.mkfifo("odd")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("odd")
    with pytest.raises(UsageError, match="'odd' is neither a file nor a link"):
        freeze(tmp_path, limit_bytes=LIMIT)


def test_a_bundle_that_is_too_large_names_the_five_largest_files(repo):
    for n in range(7):
        write(repo / f"data{n}.bin", "x" * (n + 1) * 100_000)
    with pytest.raises(UsageError) as caught:
        freeze(repo, limit_bytes=LIMIT)
    assert caught.value.details["largest"] == [f"data{n}.bin" for n in (6, 5, 4, 3, 2)]
    assert "'data6.bin' 0.7 MiB" in caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        ".env",
        ".env.local",
        "certs/a.pem",
        "id_rsa",
        "id_ed25519",
        "tls.key",
        ".netrc",
        "credentials.json",
        "A.P12",
    ],
)
def test_files_that_look_secret_are_refused_by_name_until_left_out(repo, name):
    write(repo / name)
    with pytest.raises(UsageError) as caught:
        freeze(repo, limit_bytes=LIMIT)
    assert repr(name) in caught.value.message
    assert ".tpuctlignore" in caught.value.hint
    write(repo / ".tpuctlignore", f"# secrets\n{name}\n")
    assert name not in contents(freeze(repo, limit_bytes=LIMIT).content)


def test_a_service_account_key_is_known_by_its_content(repo):
    write(repo / "sa.json", '{"type": "service_account", "private_key": "-----BEGIN"}')
    with pytest.raises(UsageError, match=r"sa\.json"):
        freeze(repo, limit_bytes=LIMIT)
    write(repo / "sa.json", '{"learning_rate": 1}')
    write(repo / ".env.example", "KEY=")
    write(repo / "id_rsa.pub")
    assert freeze(repo, limit_bytes=LIMIT).files == 5


def test_the_entry_must_be_part_of_it(repo):
    write(repo / "out.log")
    with pytest.raises(UsageError, match=r"no file 'missing\.py'"):
        freeze(repo, "missing.py", limit_bytes=LIMIT)
    with pytest.raises(UsageError, match="ignored"):
        freeze(repo, "out.log", limit_bytes=LIMIT)
    with pytest.raises(UsageError, match="outside"):
        freeze(repo, str(write(repo.parent / "other.py")), limit_bytes=LIMIT)


def test_submodules_are_included_and_refused_when_not_checked_out(repo, tmp_path):
    library = tmp_path / "library"
    write(library / "lib.py", "lib")
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-q", "-m", "lib")
    git(repo, "submodule", "add", "-q", str(library), "third party")
    git(repo, "commit", "-q", "-m", "sub")
    assert contents(freeze(repo, limit_bytes=LIMIT).content)["third party/lib.py"] == "lib"
    git(repo, "submodule", "deinit", "-q", "-f", "third party")
    with pytest.raises(UsageError, match="not checked out") as caught:
        freeze(repo, limit_bytes=LIMIT)
    assert caught.value.hint == "git submodule update --init --recursive"


def test_fleet_files_are_no_part_of_the_code_nor_of_its_diff(repo):
    for name in ("tpuctl.yaml", "pkg/tpuctl.yaml", "[a]*/other fleet.yaml"):
        write(repo / name, "fleet: {}")
    write(repo / "[a]b" / "other fleet.yaml", "data")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "fleets")
    for name in ("tpuctl.yaml", "pkg/tpuctl.yaml", "[a]*/other fleet.yaml"):
        write(repo / name, "fleet: {runs: {a: {var: {KEY: val-of-a}}}}")
    frozen = freeze(repo / "pkg", limit_bytes=LIMIT, without=repo / "[a]*" / "other fleet.yaml")
    assert set(contents(frozen.content)) == {".gitignore", "train.py", "[a]b/other fleet.yaml"}
    assert (frozen.diff, frozen.dirty) == (b"", False)
    write(repo / "train.py", "print(2)")
    write(repo / "[a]b" / "other fleet.yaml", "new data")
    changed = freeze(repo, limit_bytes=LIMIT, without=repo / "[a]*" / "other fleet.yaml")
    assert b"+print(2)" in changed.diff
    assert b"+new data" in changed.diff
    assert b"val-of-a" not in changed.diff


def test_fleet_files_are_left_out_outside_of_git_too(tmp_path):
    write(tmp_path / "train.py")
    write(tmp_path / "tpuctl.yaml", "fleet: {}")
    assert set(contents(freeze(tmp_path, limit_bytes=LIMIT).content)) == {"train.py"}


def test_credentials_leave_the_remote():
    assert strip_credentials("https://h/x.git?private_token=TOK") == "https://h/x.git"
    assert strip_credentials("https://ada:pw@h/x.git?a=b#TOK") == "https://h/x.git"
    assert strip_credentials("ssh://git:pw@example.com:22/r") == "ssh://example.com:22/r"
    assert strip_credentials("git@example.com:r.git") == "git@example.com:r.git"
    assert strip_credentials("/srv/r@x.git") == "/srv/r@x.git"


@pytest.mark.parametrize("in_git", [False, True])
def test_what_tpuctl_wrote_itself_is_no_code(repo, tmp_path, in_git):
    top = repo if in_git else write(tmp_path / "plain" / "train.py").parent
    before = freeze(top, limit_bytes=LIMIT)
    session = "traces/r1/plugins/profile/2026_01_02_03_04_05"
    with open_bundle(write(top / "sub" / "r1-collected.tar"), "-o") as bundle:
        bundle.add(INDEX_NAME, b"index")
    write(top / "r1.html", f'<!doctype html>{REPORT_MARK.decode()}1">')
    for name in ("h-0.xplane.pb", "ALL_HOSTS.op_stats.pb"):
        write(top / session / name)
    frozen = freeze(top, limit_bytes=LIMIT)
    assert (frozen.sha256, frozen.dirty) == (before.sha256, False)
    assert frozen.own_output == ("r1.html", "sub/r1-collected.tar", "traces/r1/")
    own = {"r2.html", "r2-collected.tar", "traces/r1/plugins/mine.py"}
    for name in own:
        write(top / name)
    wanted = {*contents(before.content), *own}
    assert set(contents(freeze(top, limit_bytes=LIMIT).content)) == set(list_code(top)) == wanted
    assert set(list_directory(top)[1]) == set(frozen.own_output)
