"""Two users of one host, whose runs have one name and whose containers are of one engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"
ENGINE = """\
import json, os, subprocess, sys
from pathlib import Path

containers, verb, words = Path(os.environ["CONTAINERS"]), sys.argv[1], sys.argv[2:]
if verb == "run":
    [name] = [word.partition("=")[2] for word in words if word.startswith("--name=")]
    (containers / name).mkdir()  # there is no second one of that name
    labels = dict(word[len("--label="):].split("=") for word in words if word.startswith("--label="))
    program = subprocess.Popen(words[words.index("sh") + 1:])
    row = {"Id": "%064d" % program.pid, "Config": {"Labels": labels}, "State": {"Pid": program.pid}}
    (containers / name / "new").write_text(json.dumps(row))
    (containers / name / "new").rename(containers / name / "row")
    sys.exit(program.wait() and 1)
rows = {file.parent.name: json.loads(file.read_text()) for file in containers.glob("*/row")}
if verb == "ps":
    label, _, value = words[-1][len("label="):].partition("=")
    found = {key: row["Config"]["Labels"][label] for key, row in rows.items()}
    print(*(rows[name]["Id"] for name, owner in found.items() if value in ("", owner)))
elif verb == "container":
    print(json.dumps([row for name, row in rows.items() if {name, row["Id"]} & set(words)]))
elif verb == "rm":
    for row in rows.values():
        if row["Id"] in words:
            os.kill(row["State"]["Pid"], 9)
"""
"""What tpuctl asks of an engine, with processes in the place of containers."""
SUPERVISOR = """\
import os, sys
import base, contained, containers, engines, processes, survivors

me = {"pid": os.getpid(), "start_time": processes.process_stat(os.getpid())[2]}
attempt, engine = base.Attempt({"run": "train", "attempt": 1}), engines.Engine("podman", ["podman"], "5", "/")
base.make_dir(attempt.path(contained.FOLDER))
base.write_json(attempt.path("status.json"), {"supervisor": me})
base.write_json(attempt.path(contained.ENGINE), [engine.name, engine.words, engine.version, engine.storage])
containers.remove_stale(engine)
client = os.fork()
if not client:
    container = containers.Container(engine, attempt, 0, ["image", "-c", "", "sh", "sleep", "600"], ((), ()))
    os.environ[survivors.MARK] = survivors.mark_of(me)
    os._exit(container.contain())
while not contained.rows(attempt):
    assert os.waitpid(client, os.WNOHANG) == (0, 0)
for _ in sys.stdin:
    print(*contained.processes(attempt), flush=True)
containers.remove(attempt)
os.waitpid(client, 0)
print("left", *contained.processes(attempt))
"""


class User:
    """One with a supervisor of attempt 1 of the run `train`."""

    def __init__(self, folder: Path, name: str) -> None:
        variables = {"HOME": str(folder / name), "PYTHONPATH": str(AGENT), "CONTAINERS": str(folder / "all")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables, "PATH": f"{folder}:{os.environ['PATH']}"},
        )

    def running(self) -> list[str]:
        """The processes of its program."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def end(self) -> str:
        return self.process.communicate(timeout=60)[0]


def test_runs_of_one_name_run_side_by_side_and_each_ends_its_own(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "podman").write_text(f"#!{sys.executable}\n{ENGINE}")
    (tmp_path / "podman").chmod(0o755)
    ann = User(tmp_path, "ann")
    [anns] = ann.running()
    ben = User(tmp_path, "ben")  # looks for what supervisors left that are gone
    try:
        [bens] = ben.running()
        assert ann.running() == [anns] != [bens]
        assert ann.end() == "left\n"
        assert ben.running() == [bens]
    finally:
        assert ben.end() == "left\n"
