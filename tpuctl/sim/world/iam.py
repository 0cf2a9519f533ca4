"""Who may call what in the simulated project: its enabled APIs, the caller's permissions, the token's life.

Everything is allowed until a standing fault takes it away; refusals have the bodies that Google sends
(`google.rpc.ErrorInfo` with the reasons of google.api.ErrorReason).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping

from tpuctl.sim.wire.messages import Request, Response
from tpuctl.sim.wire.status import PROJECT_NUMBER as PROJECT_NUMBER
from tpuctl.sim.wire.status import ApiError, Code, Json, error_info, invalid_argument, unknown_method
from tpuctl.sim.world.faults import FaultKind, FaultPlan
from tpuctl.sim.world.paths import ACCOUNT

TPU = "tpu.googleapis.com"
COMPUTE = "compute.googleapis.com"
STORAGE = "storage.googleapis.com"
SERVICE_USAGE = "serviceusage.googleapis.com"
RESOURCE_MANAGER = "cloudresourcemanager.googleapis.com"
CLOUD_QUOTAS = "cloudquotas.googleapis.com"
SECRET_MANAGER = "secretmanager.googleapis.com"  # noqa: S105 - the name of an API

SERVICES: Mapping[str, str] = {
    CLOUD_QUOTAS: "Cloud Quotas API",
    RESOURCE_MANAGER: "Cloud Resource Manager API",
    COMPUTE: "Compute Engine API",
    SECRET_MANAGER: "Secret Manager API",
    SERVICE_USAGE: "Service Usage API",
    STORAGE: "Cloud Storage API",
    TPU: "Cloud TPU API",
}
"""The simulated services and their titles."""

_BILLED = frozenset({TPU, COMPUTE, STORAGE})
"""APIs that need a billing account."""

_ROLE = re.compile(r"(roles|(projects|organizations)/[^/]+/roles)/[A-Za-z0-9_.]+")


def _holds(role: str, permission: str) -> bool:
    """Whether a role is of the service that a permission belongs to. Basic roles, which the owner of a
    simulated project has anyway, are of none."""
    service = role.removeprefix("roles/").partition(".")
    return bool(service[1]) and permission.startswith(f"{service[0]}.")


def account_token(token: str, account: str) -> str:
    """What a service account's credentials are in a simulator whose user has `token`."""
    signed = hmac.new(token.encode(), account.encode(), hashlib.sha256).hexdigest()
    return f"{urlsafe_b64encode(account.encode()).decode()}.{signed}"


def caller_of(token: str, given: str) -> str | None:
    """Whose credentials were given: a service account, or the user, who is ""; None for nobody's."""
    if hmac.compare_digest(given.encode(), token.encode()):
        return ""
    try:
        account = urlsafe_b64decode(given.partition(".")[0]).decode()
    except ValueError:
        return None
    known = hmac.compare_digest(given.encode(), account_token(token, account).encode())
    return account if known else None


class Access:
    """Answers from the fault plan alone, so that clearing the faults mends everything.

    The policy of the project is kept, and the roles in it that the user gets mend what faults have taken away.
    What it gives to service accounts counts where something else binds these: the policy of a bucket.
    """

    def __init__(self, faults: FaultPlan, project: str) -> None:
        self._faults = faults
        self._project = project
        self._change = 0
        self.reset()

    def reset(self) -> None:
        """The policy with which the project begins."""
        bindings: list[Json] = [{"role": "roles/owner", "members": [f"user:{ACCOUNT}"]}]
        self.policy: Json = self._numbered(bindings)

    def _numbered(self, bindings: list[Json]) -> Json:
        self._change += 1
        return {"version": 1, "etag": b64encode(self._change.to_bytes(8)).decode(), "bindings": bindings}

    def set_policy(self, asked: Json) -> Json:
        """Who may do what in the project, for who knows what was so before. Raises ApiError."""
        if asked.get("etag") not in (None, "", self.policy["etag"]):
            text = "There were concurrent policy changes. Please retry the whole read-modify-write with "
            raise ApiError(Code.ABORTED, f"{text}exponential backoff.")
        for binding in asked.get("bindings", []):
            if binding.get("condition"):
                raise unknown_method("conditions of roles (bindings.condition)")
            if not _ROLE.fullmatch(binding.get("role", "")):
                text = f"Role ({binding.get('role', '')}) does not exist in the resource's hierarchy."
                raise invalid_argument(text)
        self.policy = self._numbered(asked.get("bindings", []))
        for fault in self._faults.list_active():
            if fault.kind == FaultKind.NO_PERMISSION and any(
                _holds(role, fault.name) for role in self._roles(f"user:{ACCOUNT}")
            ):
                self._faults.remove(fault.id)
        return self.policy

    def _roles(self, member: str) -> list[str]:
        return [each["role"] for each in self.policy["bindings"] if member in each.get("members", ())]

    def is_enabled(self, service: str) -> bool:
        return not self._faults.standing(FaultKind.SERVICE_OFF, service)

    def granted(self, permissions: Iterable[str]) -> list[str]:
        """Those of `permissions` that the caller has, in order."""
        return [each for each in permissions if not self._faults.standing(FaultKind.NO_PERMISSION, each)]

    def clock_skew(self) -> float:
        """Seconds by which the cloud's clock is ahead of this machine's."""
        return sum(fault.seconds for fault in self._faults.standing(FaultKind.CLOCK, "clock"))

    def check_token(self) -> None:
        """Raises UNAUTHENTICATED while tokens are expired."""
        if self._faults.standing(FaultKind.EXPIRED_TOKEN, "token"):
            raise ApiError(
                Code.UNAUTHENTICATED,
                "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie "
                "or other valid authentication credential. See "
                "https://developers.google.com/identity/sign-in/web/devconsole-project.",
                [error_info("ACCESS_TOKEN_EXPIRED", {})],
            )

    def check_service(self, service: str) -> None:
        """Raises PERMISSION_DENIED with SERVICE_DISABLED for an API that is off, or BILLING_DISABLED."""
        if service in _BILLED and self._faults.standing(FaultKind.BILLING_OFF, service):
            raise _billing_disabled(service)
        if self.is_enabled(service):
            return
        url = f"https://console.developers.google.com/apis/api/{service}/overview?project={PROJECT_NUMBER}"
        raise _off(
            f"{SERVICES[service]} has not been used in project {PROJECT_NUMBER} before or it is disabled. "
            f"Enable it by visiting {url} then retry. If you enabled this API recently,",
            {"description": "Google developers console API activation", "url": url},
            *("SERVICE_DISABLED", service),
        )

    def check_permission(self, permission: str, resource: str) -> None:
        """Raises PERMISSION_DENIED with IAM_PERMISSION_DENIED for what the caller may not do."""
        if self.granted([permission]):
            return
        raise ApiError(
            Code.PERMISSION_DENIED,
            f"Permission '{permission}' denied on '{resource}' (or it may not exist).",
            [error_info("IAM_PERMISSION_DENIED", {"permission": permission, "resource": resource})],
        )

    def guard(self, service: str, handler: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """`handler` behind the checks of token and service."""

        def guarded(request: Request) -> Response:
            self.check_token()
            self.check_service(service)
            return handler(request)

        return guarded


def _billing_disabled(service: str) -> ApiError:
    """Words and details as users of several APIs were shown them."""
    url = f"https://console.developers.google.com/billing/enable?project={PROJECT_NUMBER}"
    return _off(
        f"This API method requires billing to be enabled. Please enable billing on project #{PROJECT_NUMBER} "
        f"by visiting {url} then retry. If you enabled billing for this project recently,",
        {"description": "Google developers console billing", "url": url},
        *("BILLING_DISABLED", service),
    )


def _off(text: str, link: Json, reason: str, service: str) -> ApiError:
    details = [
        {"@type": "type.googleapis.com/google.rpc.Help", "links": [link]},
        error_info(reason, {"service": service, "consumer": f"projects/{PROJECT_NUMBER}"}),
    ]
    text += " wait a few minutes for the action to propagate to our systems and retry."
    return ApiError(Code.PERMISSION_DENIED, text, details)
