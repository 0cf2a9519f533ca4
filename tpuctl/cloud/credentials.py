"""Credentials: where they come from, whether they can be renewed, until when they last, and whose they are."""

from __future__ import annotations

import os
from datetime import UTC
from pathlib import Path
from typing import Any

from tpuctl.cloud.errors import translate
from tpuctl.errors import DeniedError
from tpuctl.lib.input_files import read_text
from tpuctl.model.facts import CredentialFacts

CLOUD_SCOPE = "https://www.googleapis.com/auth/cloud-platform"

TOKEN_FILE = "token-file"  # noqa: S105 - a kind, not a secret
MACHINE = "machine"


def load_credentials(token_file: str | None) -> Any:
    """The token in `token_file`, else the application default credentials. Raises DeniedError."""
    if token_file is not None:
        return _token_credentials(Path(token_file))
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        found, _ = google.auth.default(scopes=[CLOUD_SCOPE])
    except DefaultCredentialsError as error:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            why = error.args[0]
            raise DeniedError(
                f"the credentials that GOOGLE_APPLICATION_CREDENTIALS names cannot be used: {why}",
                hint="name another file, or unset it and `gcloud auth application-default login`",
            ) from error
        raise DeniedError(
            "no Google credentials on this machine",
            hint="gcloud auth application-default login, or set token_file",
        ) from error
    return found


def _token_credentials(path: Path) -> Any:
    from google.oauth2.credentials import Credentials

    try:
        token = read_text(path).strip()
    except OSError as error:
        raise DeniedError(
            f"token file {path} cannot be read: {error.strerror}", hint="tpuctl config show"
        ) from error
    return Credentials(token=token)  # type: ignore[no-untyped-call]


def describe_credentials(credentials: Any, kind: str, where: str) -> CredentialFacts:
    """What is known of `credentials`, after a renewal where that is possible; a bare token is taken as it is.

    Raises DeniedError when the renewal is refused (expired, revoked), TransientError if nobody answers.
    """
    from google.auth.transport.requests import Request
    from google.oauth2.credentials import Credentials

    renews = kind != TOKEN_FILE
    if renews:
        try:
            credentials.refresh(Request())
        except Exception as error:  # every vendor and transport error becomes ours
            raise translate(error, f"renew the credentials {where}".rstrip()) from error
    person = renews and isinstance(credentials, Credentials)
    expiry = getattr(credentials, "expiry", None)  # naive, in UTC
    return CredentialFacts(
        kind=kind,
        where=where,
        account=_account(credentials),
        expires_at=None if expiry is None else expiry.replace(tzinfo=UTC).timestamp(),
        renews=renews,
        quota_project=(credentials.quota_project_id or "") if person else None,
    )


def _account(credentials: Any) -> str:
    """Users' own credentials rarely say whose they are."""
    for name in ("service_account_email", "account", "signer_email"):
        found = getattr(credentials, name, None)
        if isinstance(found, str) and "@" in found:
            return found
    return ""
