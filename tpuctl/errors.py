"""Every way tpuctl fails, with a stable code and exit status.

A subclass exists only where some caller decides differently. The documented table and the `--json` form are
generated from these classes; a test walks them (unique codes, exit status from the table below).
"""

from __future__ import annotations

import errno
import shlex
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")

EXIT_MEANINGS: Mapping[int, str] = {
    0: "done, or nothing to do",
    1: "understood, tried, did not succeed",
    2: "fix the input",
    3: "some workers or nodes failed",
    4: "credentials or permission",
    5: "not found",
    6: "exists with another spec, or someone else is at work",
    7: "no capacity or no quota: try later or elsewhere",
    8: "deadline passed, still progressing",
    9: "SSH did not connect",
    10: "`diff` found something that `apply` would change",
    70: "a bug in tpuctl; a crash report was written",
    130: "interrupted",
}


BILLING_DISABLED = "BILLING_DISABLED"
"""`reason` in the details of an error whose project has no billing account (google.api.ErrorReason)."""


SERVICE_DISABLED = "SERVICE_DISABLED"
"""`reason` of one whose API is not enabled in the project to which the call is counted (the same)."""
GCLOUDS_OWN = frozenset({"764086051850", "32555940559"})
"""Projects of gcloud's own logins, to which calls without a quota project are counted: nothing can be enabled
there (cloud.google.com/docs/authentication/adc-troubleshooting/user-creds)."""


class TpuctlError(Exception):
    """Something failed in a way a user can act on.

    `message` names what failed, which resource and which zone (lower case, no full stop). `hint` is a command
    to be pasted, which stays in one piece, or a sentence about the exact file and key to change, in which
    commands are in backquotes. `details` is plain data for `--json`, and all that the program itself reads.
    """

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, *, hint: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: Mapping[str, Any] = details or {}


class UsageError(TpuctlError):
    """The command line is wrong; nothing was changed."""

    code = "usage"
    exit_code = 2

    @classmethod
    def of(cls, field: str, message: str, hint: str | None) -> UsageError:
        """One about what was said in `field`, so that a fleet file finds the place."""
        return cls(message, hint=hint, details={"key": field})


def with_field(field: str, check: Callable[[], T]) -> T:
    """What `check` returns; its UsageError also names the `field` that it is about."""
    try:
        return check()
    except UsageError as error:
        details = {**error.details, "key": field}
        raise UsageError(error.message, hint=error.hint, details=details) from error


class BadConfigError(TpuctlError):
    """A configuration file or variable is wrong; nothing was changed."""

    code = "bad-config"
    exit_code = 2


class BadManifestError(TpuctlError):
    """A manifest or environment file does not hold what it must."""

    code = "bad-manifest"
    exit_code = 2


class InvalidRequestError(TpuctlError):
    """The cloud refused the request as malformed or impossible (gRPC 3 or 9); asking again will not help."""

    code = "invalid-request"
    exit_code = 2


class NotCoveredError(TpuctlError):
    """A create would cost money that no grant covers and `--pay` was not given."""

    code = "not-covered"
    exit_code = 2


class PartialError(TpuctlError):
    """Some workers or nodes failed; `details` holds every result."""

    code = "partial"
    exit_code = 3


class DeniedError(TpuctlError):
    """Credentials are missing, expired or lack a permission."""

    code = "denied"
    exit_code = 4


class NotFoundError(TpuctlError):
    """The named thing does not exist."""

    code = "not-found"
    exit_code = 5


class ConflictError(TpuctlError):
    """It exists with another spec, or the name is taken."""

    code = "conflict"
    exit_code = 6


class LeaseHeldError(TpuctlError):
    """Another tpuctl is at work on this slice right now."""

    code = "lease-held"
    exit_code = 6


class StaleRecordError(TpuctlError):
    """Another tpuctl wrote the record first; looking again shows what it did."""

    code = "stale-record"
    exit_code = 6


class DamagedRecordError(TpuctlError):
    """A document of the store cannot be read: somebody else wrote it, or the disk did."""

    code = "damaged-record"

    def __init__(self, key: str, why: str, *, hint: str | None = None) -> None:
        forget = f"bring it back from a backup of the store, or `tpuctl store forget {shlex.quote(key)}`"
        super().__init__(
            f"the record {key} in the store is damaged: {why}",
            hint=forget if hint is None else f"{hint}; or `tpuctl store forget {shlex.quote(key)}`",
            details={"key": key},
        )


class NoCapacityError(TpuctlError):
    """The zone has no capacity for the request now (stockout)."""

    code = "no-capacity"
    exit_code = 7


class QuotaError(TpuctlError):
    """A quota of the project is used up."""

    code = "quota"
    exit_code = 7


class RateLimitedError(TpuctlError):
    """Too many requests per minute; neither quota nor capacity."""

    code = "rate-limited"
    exit_code = 7


class PendingError(TpuctlError):
    """The deadline passed while the work still progresses."""

    code = "pending"
    exit_code = 8


class UnreachableError(TpuctlError):
    """SSH to a worker did not connect."""

    code = "unreachable"
    exit_code = 9


class TransientError(TpuctlError):
    """The API or the network failed for a moment and retries did not help."""

    code = "transient"
    exit_code = 1


class NoAnswerError(TransientError):
    """Nothing answered: no network, no route, a wrong endpoint. Asked for, perhaps, where it was a change."""

    code = "no-answer"
    exit_code = 1


class BusyError(TransientError):
    """The resource takes no such request now: an operation holds it, or its state passes. Nothing was done."""

    code = "resource-busy"
    exit_code = 1


class BugError(TpuctlError):
    """A bug in tpuctl."""

    code = "bug"
    exit_code = 70


class InterruptedByUserError(TpuctlError):
    """Ctrl-C, or a prompt that was declined."""

    code = "interrupted"
    exit_code = 130


def disabled_api(error: TpuctlError | None) -> str:
    """The API that has to be enabled before a refused call works; empty where that is not the trouble."""
    if error is None or error.details.get("reason") != SERVICE_DISABLED:
        return ""
    about = error.details.get("metadata", {})
    consumer = str(about.get("consumer", "")).removeprefix("projects/")
    return "" if consumer in GCLOUDS_OWN else str(about.get("service", ""))


def all_error_classes() -> list[type[TpuctlError]]:
    """Every error class, root first, in order of definition."""

    def walk(cls: type[TpuctlError]) -> list[type[TpuctlError]]:
        return [cls, *(found for sub in cls.__subclasses__() for found in walk(sub))]

    return walk(TpuctlError)


FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the system says where nothing more fits on a disk, or into what one may use of it."""


def full_disk_hint(path: str) -> str:
    """What to do when nothing more fits on the disk of `path`."""
    return f"free some space on that disk: df -h {shlex.quote(path)}"
