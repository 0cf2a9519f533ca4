"""Google's token endpoint, for the credentials file that `tpuctl sim env` names: RFC 6749, section 6."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.status import ApiError
from tpuctl.sim.world.identity import TOKEN_LIFE_S
from tpuctl.sim.world.paths import ACCOUNT

PATHS = ("/token", "/oauth2/v4/token", "/oauth2/v3/token", "/o/oauth2/token")
"""As oauth2.googleapis.com, www.googleapis.com (v3: tensorstore) and accounts.google.com have it."""
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


TOKEN_URI = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address, not a secret


def authorized_user(token: str, token_uri: str = TOKEN_URI) -> dict[str, str]:
    """A credentials file as `gcloud auth application-default login` writes it; the simulator's token is also
    what renews it."""
    return {
        "type": "authorized_user",
        "account": ACCOUNT,
        "client_id": "tpuctl-sim.apps.googleusercontent.com",
        "client_secret": "tpuctl-sim",
        "refresh_token": token,
        "token_uri": token_uri,
        "universe_domain": "googleapis.com",
    }


class TokenApi:
    """Exchanges refresh tokens; `check` raises ApiError while credentials are expired."""

    def __init__(self, token: str, check: Callable[[], None]) -> None:
        self._token = token
        self._check = check

    def handle(self, request: Request) -> Response:
        form = _form(request)
        if form.get("grant_type") != "refresh_token":
            return _refused("unsupported_grant_type", f"Invalid grant_type: {form.get('grant_type', '')}")
        try:
            self._check()
        except ApiError:
            return _refused("invalid_grant", "Token has been expired or revoked.")
        if not hmac.compare_digest(form.get("refresh_token", "").encode(), self._token.encode()):
            return _refused("invalid_grant", "Bad Request")
        return json_response(
            {
                "access_token": self._token,
                "expires_in": TOKEN_LIFE_S,
                "scope": form.get("scope", _SCOPE),
                "token_type": "Bearer",
            }
        )


def _refused(error: str, why: str) -> Response:
    return json_response({"error": error, "error_description": why}, 400)


def _form(request: Request) -> Mapping[str, str]:
    """The fields of a request, whose body is a form or, as some clients have it, JSON."""
    try:
        if "json" in request.headers.get("content-type", ""):
            data = json.loads(request.body)
            return {str(key): str(value) for key, value in data.items()} if isinstance(data, dict) else {}
        return {key: values[-1] for key, values in parse_qs(request.body.decode()).items()}
    except ValueError:
        return {}
