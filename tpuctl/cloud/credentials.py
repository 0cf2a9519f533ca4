"""Credentials: whether they can be renewed, until when they last, and whose they are."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials as UserCredentials

from tpuctl.cloud.errors import translate
from tpuctl.model.facts import CredentialFacts

TOKEN_FILE = "token-file"  # noqa: S105 - a kind, not a secret
MACHINE = "machine"


def describe_credentials(credentials: Any, kind: str, where: str) -> CredentialFacts:
    """What is known of `credentials`, after a renewal where that is possible; a bare token is taken as it is.

    Raises DeniedError when the renewal is refused (expired, revoked), TransientError if nobody answers.
    """
    renews = kind != TOKEN_FILE
    if renews:
        try:
            credentials.refresh(Request())
        except Exception as error:  # every vendor and transport error becomes ours
            raise translate(error, f"renew the credentials {where}".rstrip()) from error
    person = renews and isinstance(credentials, UserCredentials)
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
