"""What the agent makes of a program that is to run in a container: pure parts of its modules."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"


def agent(code: str, *values: Any, **variables: str) -> Any:
    """What an expression over modules of the agent comes to; `values` is in it."""
    script = (
        "import json, sys, containers, images, engines\nvalues = json.loads(sys.argv[1])\n"
        f"print(json.dumps({code}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(values)],
        env={**os.environ, "PYTHONPATH": str(AGENT), "GCE_METADATA_HOST": "127.0.0.1:9", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_a_shell_sets_exactly_what_was_asked_for_and_keeps_what_is_the_images() -> None:
    variables = {
        "PLAIN": "1",
        "ODD": 'it\'s $HOME `id` "x" \\ é\nsecond line',
        "EMPTY": "",
        "PATH": "/of/the/host",
        "JAX_PLATFORMS": "tpu,cpu",
        "PJRT_DEVICE": "TPU",
        "XLA_FLAGS": "--xla_dump_to='x'",
        "LIBTPU_INIT_ARGS": "--mine",
        "PYTHONPATH": "/hook",
        "BASH_FUNC_x%%": "() { :; }",
    }
    defaults, added = ["JAX_PLATFORMS", "PJRT_DEVICE"], ["XLA_FLAGS", "LIBTPU_INIT_ARGS"]
    lines = agent("containers.render(*values)", variables, defaults, added)
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    done = subprocess.run(
        ["/bin/sh", "-c", agent("containers.LAUNCHER"), "sh", sys.executable, "-I", "-c", show],
        input=lines,
        env={
            "PATH": os.defpath,
            "PJRT_DEVICE": "CPU",
            "PYTHONPATH": "/my own",
            "XLA_FLAGS": "--xla_a --xla_b=$x",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    kept = {"PATH": os.defpath, "PJRT_DEVICE": "CPU", "PYTHONPATH": "/hook:/my own"}
    expected = {**variables, **kept, "XLA_FLAGS": "--xla_a --xla_b=$x --xla_dump_to='x'"}
    del expected["BASH_FUNC_x%%"]
    assert {
        name: value for name, value in found.items() if name not in {"PWD", "LC_CTYPE", "SHLVL", "_"}
    } == expected


@pytest.mark.parametrize(
    ("chips", "privileged", "own"),
    [
        ([], False, {}),
        ([2], False, {"TPU_VISIBLE_CHIPS": "0"}),
        ([1, 3], False, {"TPU_VISIBLE_CHIPS": "0,1"}),
        ([2], True, {}),
    ],
)
def test_libtpu_counts_the_chips_that_its_container_has(
    chips: list[int], privileged: bool, own: dict[str, str]
) -> None:
    asked = {"chips": chips, "container": {"privileged": privileged}}
    assert agent("containers.own_view(values[0])", asked) == own


@pytest.mark.parametrize(
    ("chips", "privileged", "seen"),
    [([], False, [0, 1, 2, 10]), ([2], False, [2]), ([1, 3], False, [1, 10]), ([2], True, [])],
)
def test_a_container_gets_the_device_files_of_its_chips_alone(
    tmp_path: Path, chips: list[int], privileged: bool, seen: list[int]
) -> None:
    for number in (10, 2, 1, 0):
        (tmp_path / f"accel{number}").symlink_to("/dev/null")
    (tmp_path / "accel4").write_text("no device")
    if chips == [1, 3]:
        (tmp_path / "accel2").unlink()  # of 0, 1, 4 and 10
    asked = {"chips": chips, "container": {"privileged": privileged}}
    found = agent("containers.devices(values[0])", asked, TPUCTL_CHIP_DEVICES=str(tmp_path / "accel"))
    assert found == [f"--device={tmp_path}/accel{number}" for number in seen]


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'level=warning of it' >&2; echo '5.2 /var/lib/containers'", ["5.2", "/var/lib/containers", ""]),
        ("echo 'permission denied' >&2; exit 1", ["", "", "podman: permission denied"]),
        ("exit 1", ["", "", "podman: it says nothing"]),
        (None, ["", "", ""]),
    ],
)
def test_an_engine_that_does_not_work_says_why(tmp_path: Path, script: str | None, found: list[str]) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    if script is not None:
        (tmp_path / "podman").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "podman").chmod(0o755)
    code = "(lambda e, why: [e.version if e else '', e.storage if e else '', why])(*engines.find())"
    assert agent(code, PATH=str(tmp_path)) == found


def test_a_program_is_this_user_unless_it_has_all_rights() -> None:
    engine = "engines.Engine('docker', ['docker'], '28', '/')"
    user, groups = f"{os.getuid()}:{os.getgid()}", sorted({*os.getgroups()} - {os.getgid()})
    plain = agent(f"containers.rights({engine}, values[0])", {"privileged": False})
    assert plain == ["--user", user, *(f"--group-add={each}" for each in groups)]
    assert agent(f"containers.rights({engine}, values[0])", {"privileged": True}) == [
        "--privileged",
        "--user",
        "0:0",
    ]


@pytest.mark.parametrize(
    ("said", "image", "meaning", "hint"),
    [
        ("Error: writing blob: no space left on device", "a/b:1", "its disk is full", "make room"),
        ("manifest for a/b:1 not found: manifest unknown", "a/b:1", "no such image", "name and tag"),
        (
            'denied: Permission "artifactregistry.repositories.downloadArtifacts" denied on resource',
            "us-east5-docker.pkg.dev/lab/train/image:1",
            "the registry refuses it",
            "gcloud artifacts repositories add-iam-policy-binding train --project=lab --location=us-east5 "
            "--member=serviceAccount:ACCOUNT_OF_THE_HOSTS --role=roles/artifactregistry.reader",
        ),
        (
            "unauthorized: access",
            "gcr.io/lab/image:1",
            "the registry refuses it",
            "gcloud projects add-iam-policy-binding lab --member=serviceAccount:ACCOUNT_OF_THE_HOSTS "
            "--role=roles/artifactregistry.reader",
        ),
        (
            "unauthorized: authentication required",
            "ghcr.io/a/b:1",
            "the registry refuses it",
            "sudo docker login ghcr.io",
        ),
        (
            "no matching manifest for linux/amd64 in the manifest list entries",
            "a/b:1",
            "architecture",
            "--platform",
        ),
        ("dial tcp: lookup ghcr.io: no such host", "ghcr.io/a/b:1", "no such host", ""),
        (
            "pinging sha256:0f401a: received unexpected HTTP status: 403 Forbidden",
            "a/b:1",
            "registry refuses it",
            "login",
        ),
        (
            f"reading sha256:{'40' * 10}{'403' * 14}44: connection reset by peer",
            "a/b:1",
            "connection reset",
            "",
        ),
        (
            'docker://a/image:1: exec: "docker-credential-gcloud": executable file not found in $PATH',
            "a/image:1",
            "credential",
            "",
        ),
        (
            "failed to resolve reference a/b:1: docker.io/a/b:1: not found",
            "a/b:1",
            "no such image",
            "name and tag",
        ),
    ],
)
def test_what_registries_say_is_explained(said: str, image: str, meaning: str, hint: str) -> None:
    engine = 'engines.Engine("docker", ["sudo", "docker"], "28", "/var/lib/docker")'
    found = agent(f"images.explained(images.Failed(values[0]), {engine}, values[1]).told()", said, image)
    assert meaning in found["message"]
    assert found["permanent"] is bool(hint)
    assert hint in f"{found['hint']} {found['on_host']}"


@pytest.mark.parametrize(
    ("number", "ends"), [(9, -9), (15, -15), (34, -34), (64, -64), (17, 7), (18, 7), (19, 7), (20, 7), (127, 7)]
)
def test_a_process_ends_as_the_program_did_and_never_stops(number: int, ends: int) -> None:
    code = f"import containers, os; containers.die({number}); os._exit(7)"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(AGENT)})
    try:
        assert process.wait(20) == ends
    finally:
        process.kill()


def test_a_token_lies_in_memory_and_goes_with_whoever_wrote_it() -> None:
    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Metadata-Flavor", "Google")
            self.end_headers()
            self.wfile.write(b'{"access_token": "secret"}')

    with HTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        engine = 'engines.Engine("podman", ["podman"], "5", "/")'
        made = f'images.login({engine}, "gcr.io", "1.1")'  # no process has this mark
        found = agent(
            f"[open({made}[2]).read(), images.secret_files.sweep(), images.secret_files.read('1.1')]",
            GCE_METADATA_HOST=host,
        )
    assert json.loads(found[0]) == agent("images.auths('gcr.io', 'secret')")
    assert found[1:] == [None, []]


def test_both_engines_read_the_login_of_a_token() -> None:
    found = agent("images.auths('gcr.io', 'secret')")
    assert base64.b64decode(found["auths"]["gcr.io"]["auth"]) == b"oauth2accesstoken:secret"


@pytest.mark.parametrize(
    ("registry", "googles"),
    [
        ("gcr.io", True),
        ("eu.gcr.io", True),
        ("us-central1-docker.pkg.dev", True),
        ("gcr.io.evil.example", False),
        ("evilgcr.io", False),
        ("docker.pkg.dev", False),
        ("us-docker.pkg.dev.evil.example", False),
    ],
)
def test_a_token_goes_to_registries_of_google_alone(registry: str, googles: bool) -> None:
    assert agent("bool(images.GOOGLES.fullmatch(values[0]))", registry) is googles
