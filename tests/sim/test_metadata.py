"""What the metadata server of a simulated host answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
import requests

from tests.sim.test_world import build
from tpuctl.sim.hosts.metadata import Values, find, serve_connection
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.identity import DEFAULT_ACCOUNT, SCOPES

ACCOUNT = "instance/service-accounts/default/"


def values(**node: object) -> Values:
    sim = build(delays=Delays.instant())
    sim.create(**node)
    [specs] = sim.hosts.specs.values()
    return specs[1].metadata()


def text(found: Values, path: str, **query: str) -> str:
    answer = find(found, path, {key: [value] for key, value in query.items()})
    assert answer.status == "200 OK"
    return answer.text


def as_json(found: Values, path: str) -> object:
    answer = find(found, path, {"recursive": ["true"]})
    assert (answer.status, answer.json) == ("200 OK", True)
    return json.loads(answer.text)


def test_a_host_knows_its_project_place_and_machine() -> None:
    found = values(networkConfig={"enableExternalIps": True})
    assert text(found, "project/project-id") == "sim-project"
    number = text(found, "project/numeric-project-id")
    assert number.isdecimal()
    assert text(found, "instance/zone") == f"projects/{number}/zones/us-central2-b"
    assert text(found, "instance/machine-type") == f"projects/{number}/machineTypes/ct4p-hightpu-4t"
    assert text(found, "universe/universe-domain") == "googleapis.com"
    assert text(found, "instance/hostname").endswith("-w-1.us-central2-b.c.sim-project.internal")
    assert text(found, "instance/network-interfaces/0/ip") == "10.0.0.2"
    assert text(found, "instance/network-interfaces/0/access-configs/0/external-ip") != ""


def test_directories_list_their_names_and_want_their_slash() -> None:
    found = values()
    assert text(found, "") == "instance/\nproject/\nuniverse/\n"
    assert text(found, "instance/service-accounts/") == f"{DEFAULT_ACCOUNT}/\ndefault/\n"
    assert text(found, ACCOUNT) == "aliases\nemail\nidentity\nscopes\ntoken\n"
    moved = find(found, "instance/service-accounts", {})
    assert (moved.status, moved.location) == (
        "301 Moved Permanently",
        "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/",
    )
    assert find(found, "instance/nothing/", {}).status == "404 Not Found"


def test_everything_below_a_directory_is_json_in_googles_spelling() -> None:
    found = values(metadata={"my-key": "{}"}, tags=["a"])
    account = {"aliases": ["default"], "email": DEFAULT_ACCOUNT, "scopes": list(SCOPES)}
    assert as_json(found, ACCOUNT) == account
    whole = as_json(found, "")
    assert isinstance(whole, dict)
    assert whole["instance"]["serviceAccounts"] == {"default": account, DEFAULT_ACCOUNT: account}
    assert whole["instance"]["attributes"]["my-key"] == "{}"
    assert whole["instance"]["networkInterfaces"][0]["accessConfigs"][0]["type"] == "ONE_TO_ONE_NAT"
    assert whole["instance"]["tags"] == ["a"]
    assert isinstance(whole["project"]["numericProjectId"], int)
    assert "access_token" not in json.dumps(whole)
    assert as_json(found, "instance/network-interfaces/")[0]["ip"] == "10.0.0.2"  # type: ignore[index]
    lines = text(found, ACCOUNT, recursive="true", alt="text").splitlines()
    assert lines[:2] == ["aliases default", f"email {DEFAULT_ACCOUNT}"]


def test_the_service_account_of_the_node_is_the_one_of_its_hosts() -> None:
    found = values(serviceAccount={"email": "ada@p.iam.gserviceaccount.com", "scope": ["one", "two"]})
    assert text(found, ACCOUNT + "email") == "ada@p.iam.gserviceaccount.com"
    assert text(found, ACCOUNT + "scopes") == "one\ntwo\n"
    assert json.loads(text(found, ACCOUNT + "email", alt="json")) == "ada@p.iam.gserviceaccount.com"


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a worker's metadata server."""
    found = values()
    loop = asyncio.new_event_loop()

    async def look_up() -> Values:
        return found

    async def publish(_path: str, _value: str | None) -> bool:
        return False

    async def start() -> asyncio.Server:
        return await asyncio.start_server(
            lambda reader, writer: serve_connection(reader, writer, look_up, publish), "127.0.0.1", 0
        )

    listening = loop.run_until_complete(start())
    address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield address

    async def end() -> None:
        listening.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for each in connections:
            each.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_identity_tokens_are_refused_by_name(server: str) -> None:
    url = f"http://{server}/computeMetadata/v1/{ACCOUNT}identity"
    flavor = {"Metadata-Flavor": "Google"}
    assert "non-empty audience" in requests.get(url, headers=flavor, timeout=5).text
    refused = requests.get(url, params={"audience": "x"}, headers=flavor, timeout=5)
    assert (refused.status_code, "issues no identity tokens" in refused.text) == (400, True)
    assert requests.get(f"http://{server}/", timeout=5).headers["Metadata-Flavor"] == "Google"
    assert requests.get(f"http://{server}/computeMetadata/v1/", timeout=5).status_code == 403
    forwarded = {**flavor, "X-Forwarded-For": "1.2.3.4"}
    assert requests.get(f"http://{server}/computeMetadata/v1/", headers=forwarded, timeout=5).status_code == 403
