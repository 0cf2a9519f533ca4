"""What `tpuctl sim env` prints: variables that point programs at the simulator, and nowhere else."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tpuctl.sim.server.state_dir import CREDENTIALS_FILE, GCLOUD_ACCOUNT, GCLOUD_SETTINGS
from tpuctl.sim.world.paths import ACCOUNT, storage_environment

if TYPE_CHECKING:
    from tpuctl.sim.server.info import SimInfo

_APIS = {
    "TPU": "",
    "COMPUTE": "compute/v1/",
    "STORAGE": "storage/v1/",
    **dict.fromkeys(
        (
            *("CLOUDQUOTAS", "CLOUDRESOURCEMANAGER", "SERVICEUSAGE", "OSLOGIN"),
            *("IAM", "IAMCREDENTIALS", "IAP", "LOGGING", "MONITORING", "SERVICEMANAGEMENT"),
        ),
        "",
    ),
}
"""The path below which gcloud looks for each API at the simulator, by the name of its override."""
CA_VARIABLES = (
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "CURL_CA_BUNDLE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HTTPLIB2_CA_CERTS",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "TENSORSTORE_CA_BUNDLE",
)
"""By which programs are told whom to trust; each kind of program reads another one."""
LOCAL = "localhost,127.0.0.1,127.0.0.0/8,10.192.0.0/10,::1,metadata.google.internal,169.254.169.254"
"""What needs no proxy: this machine, hosts of both tiers among themselves, the metadata server."""


def trust_environment(ca_file: str) -> dict[str, str]:
    """Variables with which programs trust the authorities in `ca_file`."""
    return dict.fromkeys(CA_VARIABLES, ca_file)


def proxy_environment(proxy: str) -> dict[str, str]:
    """Variables with which programs reach HTTPS servers through `proxy`."""
    return {
        "HTTPS_PROXY": proxy,
        "NO_PROXY": LOCAL,
        # gRPC reads lower case only (grpc, src/core/handshaker/http_connect/http_proxy_mapper.cc).
        "https_proxy": proxy,
        "no_proxy": LOCAL,
        # gcsfs heeds a proxy only if it is told to (aiohttp, ClientSession(trust_env)).
        "FSSPEC_GCS": json.dumps({"session_kwargs": {"trust_env": True}}),
    }


def _common(info: SimInfo) -> dict[str, str]:
    proxy = urlsplit(info.https)
    return {
        "CLOUDSDK_CONFIG": str((Path(info.token_file).parent / GCLOUD_ACCOUNT).parent),
        "CLOUDSDK_ACTIVE_CONFIG_NAME": "default",
        "CLOUDSDK_CORE_PROJECT": info.project,
        "CLOUDSDK_CORE_ACCOUNT": ACCOUNT,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "true",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": info.token_file,
        # Whatever gcloud asks of Google that has no override ends here, too, and not there with our token.
        "CLOUDSDK_PROXY_TYPE": "http",
        "CLOUDSDK_PROXY_ADDRESS": str(proxy.hostname),
        "CLOUDSDK_PROXY_PORT": str(proxy.port),
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": info.ca_file,
        "GOOGLE_CLOUD_PROJECT": info.project,
        "TPUCTL_SIM_SSH_PORT": str(info.ssh_port),
    }


def environment(info: SimInfo) -> dict[str, str]:
    """Variables that point the real gcloud and the Google libraries at the simulator's APIs."""
    overrides = {
        f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{info.http}/{path}" for api, path in sorted(_APIS.items())
    }
    return {**_common(info), **overrides, **storage_environment(info.http, info.token)}


def https_environment(info: SimInfo) -> dict[str, str]:
    """Variables with which programs that know Google's own addresses only meet the simulator there.

    No variable of `environment` that names an endpoint may be set beside them: see `emulator_variables`.
    """
    return {
        **_common(info),
        **trust_environment(info.ca_file),
        **proxy_environment(info.https),
        "GOOGLE_APPLICATION_CREDENTIALS": str(Path(info.token_file).parent / CREDENTIALS_FILE),
    }


def emulator_variables(info: SimInfo) -> list[str]:
    """What `environment` sets and `https_environment` must not find."""
    return sorted(environment(info).keys() - https_environment(info).keys())


def write_gcloud_account(state_dir: Path, credentials: Mapping[str, str]) -> None:
    """Gives gcloud an account to list, and a configuration that `gcloud config set` can change."""
    file, settings = state_dir / GCLOUD_ACCOUNT, state_dir / GCLOUD_SETTINGS
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.parent.mkdir(exist_ok=True)
    settings.touch()
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    store = sqlite3.connect(file)
    try:
        with store:
            store.execute('CREATE TABLE "credentials" (account_id TEXT PRIMARY KEY, value BLOB)')
            store.execute('INSERT INTO "credentials" VALUES (?, ?)', (ACCOUNT, json.dumps(dict(credentials))))
    finally:
        store.close()
