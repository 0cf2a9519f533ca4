"""Programs that know Google's own addresses only, through `tpuctl sim env --https`."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.session import Session, open_session
from tpuctl.sim.server import control


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        yield opened


@pytest.fixture
def https(session: Session) -> dict[str, str]:
    """The variables that `sim env --https` prints."""
    variables: dict[str, str] = session.json("sim", "env", "--https")
    return variables


CLIENTS = """
import asyncio, json
from google.cloud import storage, tpu_v2
PARENT = "projects/sim-project/locations/us-central2-b"

async def seen_by_asyncio():
    return [each.name async for each in await tpu_v2.TpuAsyncClient().list_nodes(parent=PARENT)]

bucket = storage.Client().bucket("sim-bucket")
blob = bucket.blob("through/the/door", chunk_size=256 * 1024)
blob.upload_from_string(b"x" * 600_000)
print(json.dumps({
    "grpc": [each.name for each in tpu_v2.TpuClient().list_nodes(parent=PARENT)],
    "rest": [each.name for each in tpu_v2.TpuClient(transport="rest").list_nodes(parent=PARENT)],
    "asyncio": asyncio.run(seen_by_asyncio()),
    "object": len(bucket.blob("through/the/door").download_as_bytes()),
    "link": blob.self_link,
}))
"""


def plain(session: Session, https: Mapping[str, str]) -> dict[str, str]:
    """An environment with these variables and none that names an endpoint or a profile."""
    kept = {name: session.environ[name] for name in ("PATH", "HOME", "TPUCTL_STATE_DIR")}
    return {**kept, **https}


def test_default_constructed_clients_of_google_run_unchanged(session: Session, https: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENTS], env=plain(session, https), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "grpc": [],
        "rest": [],
        "asyncio": [],
        "object": 600_000,
        "link": "https://storage.googleapis.com/storage/v1/b/sim-bucket/o/through%2Fthe%2Fdoor",
    }


PROGRAM = """
import os, time
print("attempt", os.environ["TPUCTL_ATTEMPT"], "of rank", os.environ["TPUCTL_RANK"], flush=True)
time.sleep(600 if os.environ["TPUCTL_ATTEMPT"] == "1" else 0)
print("rank", os.environ["TPUCTL_RANK"], "trained", flush=True)
"""


def test_tpuctl_as_built_for_the_real_cloud_tells_a_whole_story() -> None:
    """Up, exec, run, preemption, recovery, down: with the delays of the real cloud, a hundred times as fast."""
    with open_session("--speed", "100") as session:
        https = session.json("sim", "env", "--https")
        real = Session.__new__(Session)
        real.root, real.work = session.root, session.work
        real.environ = {
            **plain(session, https),
            "TPUCTL_PROJECT": "sim-project",
            "TPUCTL_SSH_PORT": https["TPUCTL_SIM_SSH_PORT"],
        }
        shown = real.json("config", "show")
        assert "https://tpu.googleapis.com" in json.dumps(shown)
        assert "http://127.0.0.1" not in json.dumps(shown)
        said = real.type("up", "v4-16", "door", "--spot", "--pay").stderr
        assert "[sim]" not in said
        assert real.type("exec", "door", "--", "hostname").stdout.count("t1v-n-") == 2
        (real.work / "train.py").write_text(PROGRAM)
        running = real.start("run", "train.py", "--on", "door", "--no-checkpoint", "--name", "story")
        assert running.stdout is not None
        seen: list[str] = []
        while not all(f"attempt 1 of rank {rank}" in "".join(seen) for rank in (0, 1)):
            seen.append(running.stdout.readline())
            assert seen[-1], f"the run ended: {seen}"
        session.type("sim", "preempt", "door-1")
        done = real.finish(running, timeout_s=300)
        assert done.returncode == 0, done.stderr
        assert [done.stdout.count(f"attempt 2 of rank {rank}") for rank in (0, 1)] == [1, 1]
        assert [done.stdout.count(f"rank {rank} trained") for rank in (0, 1)] == [1, 1]
        [run] = real.json("runs")
        assert (run["state"], run["attempts"], run["failures"], run["preemptions"]) == ("succeeded", 2, 0, 1)
        [row] = real.json("ls")
        assert (row["name"], row["node"]) == ("door", "door-2")
        real.type("down", "door", "--yes")
        assert real.json("ls") == []
        info = session.sim()
        left = control.state(info)
        assert (left["nodes"], left["queuedResources"]) == ([], [])


def test_no_request_for_google_leaves_and_none_for_others_passes(https: dict[str, str]) -> None:
    def refusal(url: str) -> str:
        with pytest.raises(requests.exceptions.ProxyError) as refused:
            requests.get(
                url, proxies={"https": https["HTTPS_PROXY"]}, verify=https["SSL_CERT_FILE"], timeout=10
            )
        return str(refused.value)

    assert "403 Forbidden" in refusal("https://pypi.org/simple/")
    assert "403 Forbidden" in refusal("https://googleapis.com.evil.example/")
    with requests.Session() as client:
        client.trust_env = False
        client.proxies = {"https": https["HTTPS_PROXY"]}
        client.verify = https["SSL_CERT_FILE"]
        client.headers["authorization"] = f"Bearer {token(https)}"
        for host in ("logging", "monitoring", "oslogin", "iam", "iap", "pubsub"):
            answer = client.get(
                f"https://{host}.googleapis.com/v1/projects/sim-project/no-such-thing", timeout=10
            )
            assert answer.status_code == 400, host
            assert "does not implement" in answer.json()["error"]["message"]


def test_the_proxy_has_no_name_but_googles(https: dict[str, str]) -> None:
    host, _, port = https["HTTPS_PROXY"].removeprefix("http://").partition(":")
    context = ssl.create_default_context(cafile=https["SSL_CERT_FILE"])
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"CONNECT tpu.googleapis.com:443 HTTP/1.1\r\n\r\n")
        assert raw.recv(200).startswith(b"HTTP/1.1 200")
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(raw, server_hostname="example.com")


def token(https: Mapping[str, str]) -> str:
    return str(json.loads(Path(https["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())["refresh_token"])


TOKEN_URI = "https://oauth2.googleapis.com/token"


def renew(https: Mapping[str, str], uri: str = TOKEN_URI, **fields: str) -> Any:
    return requests.post(
        uri,
        data={"grant_type": "refresh_token", **fields},
        proxies={"https": https["HTTPS_PROXY"]},
        verify=https["SSL_CERT_FILE"],
        timeout=10,
    )


def test_the_token_endpoint_renews_its_own_and_refuses_others(session: Session, https: dict[str, str]) -> None:
    good = renew(https, refresh_token=token(https))
    assert (good.status_code, good.json()["token_type"]) == (200, "Bearer")
    for version in ("v3", "v4"):  # tensorstore, gcloud
        older = f"https://www.googleapis.com/oauth2/{version}/token"
        assert renew(https, older, refresh_token=token(https)).status_code == 200
    assert renew(https, refresh_token="other").json()["error"] == "invalid_grant"
    assert renew(https, grant_type="password").json()["error"] == "unsupported_grant_type"
    session.type("sim", "fault", "expired-token")
    try:
        assert renew(https, refresh_token=token(https)).json() == {
            "error": "invalid_grant",
            "error_description": "Token has been expired or revoked.",
        }
    finally:
        session.type("sim", "fault", "--clear")


def test_the_files_are_the_users_alone(https: dict[str, str]) -> None:
    assert os.stat(https["GOOGLE_APPLICATION_CREDENTIALS"]).st_mode & 0o777 == 0o600
    assert os.stat(Path(https["CLOUDSDK_CONFIG"]) / "credentials.db").st_mode & 0o777 == 0o600


def test_the_shell_forgets_what_names_an_endpoint(session: Session) -> None:
    printed = session.type("sim", "env", "--https").stdout.splitlines()
    assert printed[0].startswith("unset ")
    assert {"STORAGE_EMULATOR_HOST", "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"} <= set(printed[0].split())
    assert all(line.startswith("export ") for line in printed[1:])


def test_sim_env_keeps_gcloud_on_this_machine_whatever_it_asks_for(session: Session) -> None:
    variables = session.json("sim", "env")
    overridden = {name.rpartition("_")[2] for name in variables if "_OVERRIDES_" in name}
    assert {"OSLOGIN", "LOGGING", "MONITORING", "IAM", "IAP", "TPU", "COMPUTE", "STORAGE"} <= overridden
    assert {variables["CLOUDSDK_PROXY_TYPE"], variables["CLOUDSDK_PROXY_ADDRESS"]} == {"http", "127.0.0.1"}
