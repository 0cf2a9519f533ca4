"""Programs that copy to and from Cloud Storage and know Google's own addresses only: rclone and gsutil."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.conformance.client import Check, Client
from tests.conformance.harness import https_of

BIG = 12_000_000


def _runner(program: str, env: Mapping[str, str], work: Path, checks: list[Check]) -> Callable[..., None]:
    """Runs the program; one command is one check: it ends as it should and prints `says`."""

    def run(*args: str, says: str = "", fails: bool = False, fed: str | None = None) -> None:
        done = subprocess.run(
            [program, *args], env=dict(env), cwd=work, capture_output=True, text=True, input=fed, timeout=300
        )
        printed = done.stdout + done.stderr
        ok = (done.returncode != 0) == fails and says in printed and "Traceback" not in printed
        detail = f"ended with {done.returncode}: {printed[-300:]}"
        checks.append(Check(f"{program} {' '.join(args)}", ok, "" if ok else detail))

    return run


def _files(work: Path) -> None:
    (work / "in" / "d").mkdir(parents=True)
    (work / "in" / "a.txt").write_text("first paragraph\n\nsecond paragraph\n")
    (work / "in" / "empty").write_text("")
    (work / "in" / "d" / "name with spaces ü").write_text("x\n")
    (work / "in" / "big").write_bytes(os.urandom(BIG))


def _same(work: Path, copy: str, checks: list[Check], names: Sequence[str]) -> None:
    for name in names:
        there = work / copy / name
        same = there.is_file() and there.read_bytes() == (work / "in" / name).read_bytes()
        checks.append(Check(f"{copy}/{name} is as it was", same))


def run_rclone(env: Mapping[str, str], work: Path) -> list[Check]:
    """rclone, with Google's application default credentials."""
    checks: list[Check] = []
    there = {
        "RCLONE_CONFIG_SIM_TYPE": "google cloud storage",
        "RCLONE_CONFIG_SIM_PROJECT_NUMBER": "sim-project",
    }
    rclone = _runner("rclone", {**https_of(env), **there, "RCLONE_CONFIG": "/dev/null"}, work, checks)
    _files(work)
    rclone("mkdir", "sim:rc-bucket")
    rclone("lsd", "sim:", says="rc-bucket")
    rclone("copy", "in", "sim:rc-bucket/t")
    rclone("check", "in", "sim:rc-bucket/t")
    rclone("ls", "sim:rc-bucket/t", says="name with spaces ü")
    rclone("copy", "sim:rc-bucket/t", "out")
    _same(work, "out", checks, ("a.txt", "empty", "big", "d/name with spaces ü"))
    rclone("cat", "sim:rc-bucket/t/a.txt", says="first paragraph\n\nsecond")
    rclone("rcat", "sim:rc-bucket/piped", fed="from a pipe")
    rclone("cat", "--offset", "5", "--count", "1", "sim:rc-bucket/piped", says="a")
    rclone("copyto", "sim:rc-bucket/t/a.txt", "sim:rc-bucket/u/b.txt")
    rclone("moveto", "sim:rc-bucket/u/b.txt", "sim:rc-bucket/u/c.txt")
    rclone("md5sum", "sim:rc-bucket/u", says="c.txt")
    rclone("lsjson", "sim:rc-bucket/u", says='"Name":"c.txt"')
    rclone("touch", "sim:rc-bucket/touched")
    (work / "in" / "a.txt").write_text("changed\n")
    rclone("sync", "in", "sim:rc-bucket/t")
    rclone("cat", "sim:rc-bucket/t/a.txt", says="changed")
    rclone("size", "sim:rc-bucket/t", says="Total objects: 4")
    rclone("delete", "sim:rc-bucket/u")
    rclone("purge", "sim:rc-bucket")
    rclone("lsd", "sim:rc-bucket", fails=True, says="not found")
    return checks


def run_gsutil(env: Mapping[str, str], work: Path) -> list[Check]:
    """gsutil, with the refresh token of a person who has logged in."""
    checks: list[Check] = []
    told = https_of(env)
    account = json.loads(Path(told["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())
    (work / "boto").write_text(
        f"[Credentials]\ngs_oauth2_refresh_token = {account['refresh_token']}\n"
        f"[Boto]\nca_certificates_file = {told['SSL_CERT_FILE']}\n"
        "[GSUtil]\ndefault_project_id = sim-project\nsoftware_update_check_period = 0\n"
        f"[OAuth2]\nclient_id = {account['client_id']}\nclient_secret = {account['client_secret']}\n"
    )
    gsutil = _runner("gsutil", {**told, "BOTO_CONFIG": str(work / "boto")}, work, checks)
    _files(work)
    here = "gs://gsutil-bucket"
    gsutil("mb", "-l", "us-central2", here)
    gsutil("cp", "-r", "in", f"{here}/t")
    gsutil("ls", "-r", f"{here}/**", says="name with spaces ü")
    (work / "back").mkdir()
    gsutil("cp", "-r", f"{here}/t/*", "back")
    _same(work, "back", checks, ("a.txt", "empty", "big", "d/name with spaces ü"))
    gsutil("cat", f"{here}/t/a.txt", says="first paragraph\n\nsecond")
    gsutil("cat", "-r", "0-4", f"{here}/t/a.txt", says="first")
    gsutil("stat", f"{here}/t/a.txt", says="Hash (md5)")
    gsutil("mv", f"{here}/t/a.txt", f"{here}/t/b.txt")
    gsutil("compose", f"{here}/t/b.txt", f"{here}/t/b.txt", f"{here}/both")
    gsutil("setmeta", "-h", "Cache-Control:no-cache", f"{here}/both")
    gsutil("hash", "-c", f"{here}/both", says="crc32c")
    gsutil("du", "-s", here, says="gsutil-bucket")
    gsutil("rsync", "-r", "in", f"{here}/synced")
    gsutil("versioning", "set", "on", here)
    gsutil("label", "ch", "-l", "team:a", here)
    gsutil("iam", "ch", "user:a@b.c:objectViewer", here)
    gsutil("iam", "get", here, says="roles/storage.objectViewer")
    gsutil("cp", f"{here}/none", ".", fails=True, says="No URLs matched")
    gsutil("acl", "get", f"{here}/both", fails=True)
    gsutil("rm", "-r", here)
    return checks


CLIENTS = [
    Client("rclone", ("bin:rclone",), run_rclone),
    Client("gsutil", ("gsutil==5.38",), run_gsutil),
]
