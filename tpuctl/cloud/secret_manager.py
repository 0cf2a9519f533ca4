"""Secret Manager: the value of one secret, read when it is needed and kept nowhere.

REST method `projects.secrets.versions.access` (https://cloud.google.com/secret-manager/docs/reference/rest).
"""

from __future__ import annotations

import base64
import binascii

from google.auth.credentials import Credentials

from tpuctl.cloud.rest import RestClient
from tpuctl.cloud.wire import message
from tpuctl.errors import TpuctlError
from tpuctl.lib.names import SecretName


def read_secret(endpoint: str, credentials: Credentials, name: SecretName) -> bytes:
    """The bytes of a secret. Raises NotFoundError, DeniedError or another TpuctlError; none has the value."""
    what = f"read secret sm://{name.project}/{name.secret}"
    path = f"/v1/projects/{name.project}/secrets/{name.secret}/versions/{name.version}:access"
    answer = RestClient(endpoint, credentials).get(path, what)
    try:
        return base64.b64decode(str(message(answer.get("payload")).get("data", "")), validate=True)
    except binascii.Error as error:
        raise TpuctlError(f"could not {what}: the answer is not as documented") from error
