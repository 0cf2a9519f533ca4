"""`tpuctl manifest` and `tpuctl rerun`: what ran is shown, compared, verified and done again."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import requests

from tests.docs.schemas import run_schema
from tests.support.session import Session, another_machine, open_session
from tpuctl.state.run_logs import LogFiles

pytestmark = pytest.mark.slow
TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"
PROGRAM = """\
import hashlib, os, time
time.sleep(1)  # four chips in less time come to 0.000 hours
seen = open('notes.txt').read() + os.environ['KEY'] + open(os.environ['TPUCTL_SECRETS'] + '/MANAGED').read()
print('secrets in', os.environ['TPUCTL_SECRETS'])
print('wandb', os.environ['WANDB_RUN_ID'], os.environ['WANDB_RESUME'], os.environ['WANDB_RUN_GROUP'])
print('loss', hashlib.sha256(seen.encode()).hexdigest()[:8])
"""
LOSS = hashlib.sha256(f"not tracked\n{TOKEN}{TOKEN}".encode()).hexdigest()[:8]


def git(session: Session, *words: str) -> None:
    identity = ("-c", "user.email=kim@example.org", "-c", "user.name=kim")
    subprocess.run(["git", *identity, *words], cwd=session.work, check=True, capture_output=True)


def make_dirty_repository(session: Session, program: str, token: str) -> None:
    """train.py, changed since its commit, a file that is not tracked, and a remote with a token in its URL."""
    git(session, "init", "-q")
    (session.work / "train.py").write_text("print('an earlier version')\n")
    git(session, "add", ".")
    git(session, "commit", "-qm", "first")
    git(session, "remote", "add", "origin", f"https://kim:{token}@example.org/code.git")
    (session.work / "train.py").write_text(program)
    (session.work / "notes.txt").write_text("not tracked\n")


SECRETS = ("--secret", "KEY=env:PLANTED", "--secret", "MANAGED=sm://sim-project/planted")


def add_secret(session: Session, name: str, value: str) -> None:
    """As `gcloud secrets create` and `versions add` do it."""
    info = session.sim()
    at, headers = f"{info.http}/v1/projects/sim-project/secrets", {"Authorization": f"Bearer {info.token}"}
    automatic = {"replication": {"automatic": {}}}
    payload = {"payload": {"data": base64.b64encode(value.encode()).decode()}}
    for url, body in ((f"{at}?secretId={name}", automatic), (f"{at}/{name}:addVersion", payload)):
        assert requests.post(url, json=body, headers=headers, timeout=20).ok


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as made:
        made.environ.update(PLANTED=TOKEN, HF_TOKEN=TOKEN, TPUCTL_LOGS_LIMIT_MIB="1")
        made.environ["TPUCTL_PING_URL"] = f"http://127.0.0.1:9/{TOKEN}"
        make_dirty_repository(made, PROGRAM, TOKEN)
        made.type("up", "v4-16", "big", "--spot", "--pay")
        add_secret(made, "planted", TOKEN)
        words = ("--on", "big", "--no-checkpoint", *SECRETS, "--var", "SEED=1", "--stall", "20m")
        labels = ("--group", "sweep", "--tag", "stage=pretrain", "--tag", "baseline")
        made.type("run", "--name", "one", *words, *labels, "train.py")
        yield made


def read(path: Path) -> bytes:
    """What is in a file, which may have gone meanwhile."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def losses(session: Session, run: str) -> set[str]:
    lines = session.type("logs", run).stdout.splitlines()
    return {line.rpartition("loss ")[2] for line in lines if "loss" in line}


def test_a_manifest_passes_its_schema_and_holds(session: Session) -> None:
    found = session.json("manifest", "one")
    jsonschema.validate(found, run_schema())
    assert found["code"]["dirty"] is True
    assert (found["code"]["remote"], found["command"]["secrets"]) == (
        "https://example.org/code.git",
        ["KEY", "MANAGED"],
    )
    assert {row["worker"] for row in found["attempts"][0]["hosts"]} == {"0", "1"}
    assert session.json("manifest", "verify", "one")["sha256"] == found["chain"][-1]
    assert "as written" in session.type("manifest", "verify").stdout
    assert "number: 1" in session.type("manifest", "show", "one").stdout


def test_what_is_no_manifest_ends_with_words(session: Session) -> None:
    text = session.type("manifest", "one", "--json").stdout
    for name, content, said in (
        ("cut.json", text[:1000], "is cut off after 1000 bytes"),
        ("newer.json", text.replace("tpuctl.run/1", "tpuctl.run/9"), "newer than this tpuctl reads"),
        ("changed.json", text.replace("SEED", "SEEN"), "the start was changed"),
    ):
        (session.work / ".git" / name).write_text(content)
        status = 1 if name == "changed.json" else 2
        assert said in " ".join(
            session.type("manifest", "verify", f".git/{name}", status=status).stderr.split()
        )
    assert "did you mean one?" in session.type("manifest", "onne", status=5).stderr
    assert "did you mean one?" in session.type("rerun", "onne", status=5).stderr


def logs_of(session: Session) -> Path:
    return session.root / "state" / "sim" / "sim-project" / "runs"


@pytest.fixture(scope="module")
def again(session: Session) -> str:
    """What was said when `one` was done again as `two`, after its code had changed, with too many old logs."""
    (session.work / "train.py").write_text("print('loss of another program')\n")
    old = logs_of(session) / "gone.old-1" / "1" / "worker-0.stdout.log"
    old.parent.mkdir(parents=True)
    old.write_bytes(bytes(2 << 20))
    os.utime(old, (0, 0))
    said = " ".join(session.type("rerun", "one", "--name", "two").stderr.split())
    assert not old.exists()
    return said


def test_a_run_is_done_again_with_the_code_that_ran(session: Session, again: str) -> None:
    plan = session.json("rerun", "one", "--dry-run", "--on", "v4-8", "--pay")
    assert plan["possible"] is True
    changed = {row["what"] for row in plan["plan"] if row["fate"] == "changed"}
    assert {"slice", "type", "chips", "hosts"} <= changed
    assert "removed the logs of 1 run (2.0 MiB): logs_limit_mib is 1; `tpuctl keep RUN` keeps those" in again
    assert losses(session, "two") == losses(session, "one") == {LOSS}
    rows = session.json("manifest", "diff", "one", "two")
    assert {row["section"] for row in rows} <= {"run", "end"}
    assert [row["right"] for row in rows if row["key"] == "rerun_of"] == ["one"]


@pytest.mark.usefixtures("again")
def test_logs_that_were_removed_are_named_where_somebody_looks_for_them(session: Session) -> None:
    """tests/runs/test_log_limit.py says when they are removed."""
    assert "were removed" not in session.type("runs").stderr
    LogFiles(logs_of(session)).remove("two", 1_700_000_000.0)
    said = " ".join(session.type("runs").stderr.split())
    assert "the logs of 1 run (two) were removed from this machine: setting logs_limit_mib" in said
    said = " ".join(session.type("logs", "two", status=5).stderr.split())
    assert "the logs of run two were removed from this machine at 2023-11-14" in said
    assert "hint: `tpuctl keep RUN` keeps those of a run; logs_limit_mib" in said
    error = json.loads(session.type("logs", "two", "--json", status=5).stdout)["error"]
    assert error["code"] == "not-found"


@pytest.mark.usefixtures("again")
def test_runs_are_listed_by_group_and_tag_with_what_they_came_to(session: Session) -> None:
    """A run that is done again keeps both."""
    rows = session.json("runs", "--group", "sweep", "--tag", "stage")
    assert {row["id"] for row in rows} == {"one", "two"}
    assert rows[0]["tags"] == ["baseline", "stage=pretrain"]
    assert all(0 < row["goodput"] <= 1 and row["chip_hours"] > 0 and row["usd"] is not None for row in rows)
    assert session.json("runs", "--tag", "stage=other") == []
    [header, *lines] = session.type("runs", "--group", "sweep", "--csv").stdout.splitlines()
    read = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    assert {row["id"]: row["tags"] for row in read} == dict.fromkeys(("one", "two"), "baseline stage=pretrain")
    assert "COST" in session.type("runs").stdout
    ids = {name: session.json("manifest", name)["run"]["wandb_id"] for name in ("one", "two")}
    assert ids["one"] != ids["two"]
    assert f"wandb {ids['one']} allow sweep" in session.type("logs", "one").stdout


def test_a_page_about_a_run_is_written_and_replaced(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "one.html"
    assert "open it in a browser" in session.type("report", "one", "-o", str(file)).stdout
    html = file.read_text()
    assert session.json("manifest", "one")["chain"][-1] in html
    assert f"loss {LOSS}" in html
    assert TOKEN not in html
    made = session.json("report", "one", "-o", str(file))
    assert (made["run"], made["bytes"]) == ("one", file.stat().st_size)
    file.write_text("mine")
    assert "is no report" in session.type("report", "one", "-o", str(file), status=2).stderr
    assert file.read_text() == "mine"
    assert "did you mean one?" in session.type("report", "onne", status=5).stderr


def test_a_bundle_does_the_run_again_from_a_fresh_state_directory(session: Session, tmp_path: Path) -> None:
    bundle = tmp_path / "one.tar"
    session.type("manifest", "export", "one", "--to", str(bundle))
    other = another_machine(session)
    other.environ["PLANTED"] = TOKEN
    other.type("up", "v4-8", "small", "--spot", "--pay")
    refused = other.type("rerun", str(bundle), "--on", "small", status=2)
    assert "secret KEY: the manifest has its name alone" in " ".join(refused.stderr.split())
    words = ("--on", "small", *SECRETS, "--name", "three")
    other.type("rerun", str(bundle), *words)
    assert losses(other, "three") == losses(session, "one")


SAYS_IT = """\
import base64, os, sys, time
key = os.environ['KEY']
for piece in (key[:9], key[9:], '\\n'):
    sys.stdout.write(piece)
    sys.stdout.flush()
    time.sleep(0.4)
print(base64.b64encode(b'user:' + key.encode()).decode(), key.encode().hex())
raise ValueError(f'401 for {key}')
"""


def test_a_secret_that_a_failing_program_says_is_nowhere(session: Session, tmp_path: Path) -> None:
    """Not in what hosts keep, nor in what leaves them."""
    words = ("--on", "big", "--no-checkpoint", "--secret", "KEY=env:SAID", "--name", "says")
    value = "Zq7-private-value-that-looks-like-nothing"
    session.environ["SAID"] = value
    said = session.type("run", *words, "--max-failures", "0", "--", "python3", "-c", SAYS_IT, status=1)
    told = [said.stdout, said.stderr]
    told += [
        session.type(*each).stdout for each in (("manifest", "says"), ("runs", "--json"), ("logs", "says"))
    ]
    session.type("report", "says", "-o", str(tmp_path / "says.html"))
    session.type("manifest", "export", "says", "--to", str(tmp_path / "says.tar"))
    for form in ("slsa", "mlflow", "rocrate"):
        session.type("manifest", "export", "says", "--as", form, "--to", str(tmp_path / f"says.{form}"))
    assert "ValueError: 401 for ****" in told[0] + told[1] + told[4]
    files = [path for top in (tmp_path, session.root) for path in top.rglob("*") if path.is_file()]
    inner = base64.b64encode(b"user:" + value.encode()).decode()[8:-4]
    for form in (value, inner, value.encode().hex()):
        assert not any(form in text for text in told)
        assert [path for path in files if form.encode() in read(path)] == []


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--on", "big", "--no-checkpoint", "--", "echo", TOKEN),
        ("run", "--on", "big", "--no-checkpoint", "--var", f"HF_TOKEN={TOKEN}", "--", "true"),
        ("run", "--on", "big", "--no-checkpoint", "--var", "DB_PASSWORD=correct-horse", "--", "true"),
        ("up", "v4-8", "other", "--spot", "--pay", "--metadata", f"token={TOKEN}"),
        ("up", "v4-8", "other", "--spot", "--pay", "--label", "api_key=abcdefgh1234"),
    ],
)
def test_a_secret_where_everybody_sees_it_is_refused(session: Session, words: tuple[str, ...]) -> None:
    refused = session.type(*words, status=2)
    assert "--secret NAME=env:VARIABLE" in " ".join(refused.stderr.split())
    assert TOKEN not in refused.stderr + refused.stdout


@pytest.mark.parametrize(
    ("reference", "status", "said"),
    [
        ("sm://sim-project/nothing", 5, "read secret sm://sim-project/nothing"),
        ("sm://other-project/planted", 4, "read secret sm://other-project/planted"),
        ("sm://sim-project", 2, "is no secret of Secret Manager"),
    ],
)
def test_a_secret_that_cannot_be_read_is_named_before_anything_starts(
    session: Session, reference: str, status: int, said: str
) -> None:
    words = ("run", "--on", "big", "--no-checkpoint", "--secret", f"X={reference}", "--", "true")
    assert said in " ".join(session.type(*words, status=status).stderr.split())


def test_code_with_a_token_in_it_is_refused(session: Session) -> None:
    (session.work / "settings.yaml").write_text(f"token: {TOKEN}\n")
    try:
        refused = session.type("run", "--on", "big", "--no-checkpoint", "--", "true", status=2)
        assert "'settings.yaml' (a Hugging Face token)" in refused.stderr
    finally:
        (session.work / "settings.yaml").unlink()


def test_planted_secrets_are_found_nowhere(session: Session) -> None:
    """Last: in all files of the state, of the simulator with its buckets and hosts, and in what runs."""
    lines = session.type("logs", "one").stdout.splitlines()
    folders = {Path(line.rpartition("secrets in ")[2]) for line in lines if "secrets in" in line}
    assert len(folders) == 2
    assert not any(folder.exists() for folder in folders)
    state = [path for path in (session.root / "state").rglob("*") if path.is_file() and not path.is_symlink()]
    running = list(Path("/proc").glob("[0-9]*/cmdline"))
    assert len(state) > 20
    assert [path for path in (*state, *running) if TOKEN.encode() in read(path)] == []
    assert TOKEN not in json.dumps(session.json("status", "big")) + json.dumps(session.json("why", "one"))
