"""Objects in buckets, through google-cloud-storage."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from io import BytesIO
from typing import Any, TypeVar
from urllib.parse import quote

import requests
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import NotFound
from google.auth.credentials import Credentials
from google.cloud.storage import Client
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from requests import RequestException
from urllib3.exceptions import HTTPError

from tpuctl.cloud import errors
from tpuctl.cloud.retry import read
from tpuctl.cloud.session import ApiSession
from tpuctl.errors import (
    DeniedError,
    NoCapacityError,
    NotFoundError,
    RateLimitedError,
    TpuctlError,
    TransientError,
    UsageError,
    disabled_api,
)
from tpuctl.model.cloud import ObjectHeaders, ObjectInfo
from tpuctl.model.error_table import ErrorKind
from tpuctl.model.facts import BucketSpec

T = TypeVar("T")
# Else the client, from a thread of its own, asks for each bucket itself, to tell tracing of its place: one more
# connection and call for each command, and in the logs of users one that their roles do not allow.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
CALL_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 20.0
"""Without a byte, for reads: a pass asks again, and a step must end."""
REFRESH_TIMEOUT_S = 300
"""For all tries to get a new token."""
_BROKEN_TRANSFERS = (DataCorruption, InvalidResponse, RequestException, HTTPError, HTTPException, OSError)
"""What the client and what it builds on raise for an answer that broke off or does not match its checksum."""
GONE = 410
"""An upload in several parts that the server gave up; it is begun anew
(https://cloud.google.com/storage/docs/resumable-uploads#handle-error)."""
TOO_FAST = 429
UPLOAD_PIECE = 8 << 20
"""Bytes of an upload or download in memory; for uploads a multiple of 256 KiB
(https://cloud.google.com/storage/docs/performing-resumable-uploads#chunked-upload)."""
_LISTED = "items(name,generation,size,updated,crc32c,metadata),nextPageToken"
_READ = "storage.objects.get"
_REFUSED = (401, 403)
LOOK = "look at bucket"
"""How a call that needs a role for the bucket itself begins; the others need one for its objects."""
STATUS_HINT = "try again in a minute; https://status.cloud.google.com tells of outages"


def split_uri(uri: str) -> tuple[str, str]:
    """Bucket and object name of `gs://bucket/name`. Raises UsageError for anything else."""
    scheme, _, rest = uri.partition("://")
    bucket, _, name = rest.partition("/")
    if scheme != "gs" or not bucket:
        raise UsageError(f"{uri!r} is not a bucket path", hint="write it as gs://BUCKET/PREFIX")
    return bucket, name


def translate(error: Exception, what: str) -> TpuctlError:
    """Our error for anything the client raised. A bucket has no stockouts: 429 means "more slowly"."""
    ours = _translate_any(error, what)
    status = ours.details.get("status")
    if status == GONE:
        return TransientError(ours.message, hint="try again", details=ours.details)
    if status == TOO_FAST or isinstance(ours, NoCapacityError):
        return RateLimitedError(
            _answered(error, ours, what), hint="try again in a minute", details=ours.details
        )
    if status is not None and isinstance(ours, TransientError):
        return TransientError(_answered(error, ours, what), hint=STATUS_HINT, details=ours.details)
    if isinstance(ours, DeniedError) and ours.details.get("status") == 403:
        if disabled_api(ours):
            return ours
        # The table of messages names the role for TPUs, which does not help here.
        return DeniedError(ours.message, hint=_denied_hint(str(error), what), details=ours.details)
    return ours


def read_again(what: str, call: Callable[[], T]) -> T:
    """Cloud Storage answers 429 where somebody asks too fast, and wants to be asked again, later
    (https://cloud.google.com/storage/docs/retry-strategy)."""
    return read(what, call, translate, (TransientError, RateLimitedError))


def _answered(error: Exception, ours: TpuctlError, what: str) -> str:
    """What was asked and what it answered, with the status, which alone says something in many answers."""
    status, said = ours.details.get("status"), errors.shorten(errors.body_text(error))
    if status is not None:
        reason = getattr(getattr(error, "response", None), "reason", "")
        said = f"{status}: {said}" if said else f"{status} {reason}"
    return f"could not {what}: Cloud Storage answered {said}"


def _translate_any(error: Exception, what: str) -> TpuctlError:
    if isinstance(error, NotFound):  # stores ask for what may not be there, and the table tells nothing of it
        return errors.render_call(error, what, ErrorKind.NOT_FOUND)
    try:
        return errors.translate(error, what)
    except _BROKEN_TRANSFERS as broken:
        line = (str(broken) or type(broken).__name__).splitlines()[0]
        return TransientError(f"could not {what}: {line}", hint="the network, or try again")


def _denied_hint(message: str, what: str) -> str | None:
    """The role that is missing (https://cloud.google.com/storage/docs/access-control/iam-roles), or the policy
    in the way (https://cloud.google.com/storage/docs/bucket-lock)."""
    named = re.search(r"gs://[^/]+", what)
    if named is None:
        return None
    bucket = named[0]
    if "retention" in message.lower():
        return f"gcloud storage buckets update {bucket} --clear-retention-period, or another bucket"
    role = "legacyBucketReader" if what.startswith(LOOK) else "objectUser"
    return (
        f"gcloud storage buckets add-iam-policy-binding {bucket} --member=user:YOU --role=roles/storage.{role}"
    )


class _Stream:
    """The file object that the client reads an upload from, over pieces of any size."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""
        self._position = 0

    def read(self, size: int) -> bytes:
        # Its value is handed on as it is: a part of an upload is in memory once.
        buffer = BytesIO()
        buffer.write(self._rest[:size])
        self._rest = self._rest[size:]
        while (wanted := size - buffer.tell()) and (piece := next(self._pieces, None)) is not None:
            buffer.write(piece[:wanted])
            self._rest = piece[wanted:]
        self._position += buffer.tell()
        return buffer.getvalue()

    def tell(self) -> int:
        return self._position


class GoogleObjects:
    """Implements `cloud_ports.Objects`."""

    def __init__(self, project: str, endpoint: str, credentials: Credentials) -> None:
        self._endpoint = endpoint
        # As the client makes its own.
        self._session = ApiSession(credentials, refresh_timeout=REFRESH_TIMEOUT_S)
        self._session.configure_mtls_channel()  # type: ignore[no-untyped-call]
        self._client = Client(
            project=project,
            credentials=credentials,
            _http=self._session,
            client_options=ClientOptions(api_endpoint=endpoint),
        )

    def bucket_exists(self, bucket: str, *, timeout_s: float | None = None) -> bool:
        def ask() -> bool:
            limit = READ_TIMEOUT_S if timeout_s is None else timeout_s
            return bool(self._client.bucket(bucket).exists(timeout=limit, retry=None))

        return read_again(f"{LOOK} gs://{bucket}", ask)

    def create_bucket(self, spec: BucketSpec) -> None:
        bucket = self._client.bucket(spec.name)
        bucket.labels = dict(spec.labels)
        bucket.iam_configuration.uniform_bucket_level_access_enabled = True
        bucket.iam_configuration.public_access_prevention = "enforced"
        bucket.soft_delete_policy.retention_duration_seconds = 0
        if spec.hierarchical:
            bucket.hierarchical_namespace_enabled = True
        try:
            # Sent once: of a second call after a lost answer nobody could tell whose bucket it met.
            self._client.create_bucket(bucket, location=spec.region, timeout=CALL_TIMEOUT_S, retry=None)
        except Exception as error:
            raise translate(error, f"create bucket gs://{spec.name}") from error

    def _blob(self, uri: str) -> Any:
        bucket, name = split_uri(uri)
        return self._client.bucket(bucket).blob(name)

    def read(self, uri: str) -> tuple[bytes, int]:
        blob = self._blob(uri)

        def ask() -> bytes:
            return bytes(blob.download_as_bytes(timeout=READ_TIMEOUT_S, retry=None))

        content = read_again(f"read {uri}", ask)
        if not blob.generation:
            # 0 would mean that there is no such object; a proxy that drops headers must not say that.
            raise TransientError(f"could not read {uri}: the answer names no generation")
        return content, int(blob.generation)

    def write(
        self,
        uri: str,
        content: bytes,
        *,
        if_generation: int | None = None,
        headers: ObjectHeaders | None = None,
    ) -> int:
        blob = self._blob(uri)
        if headers is not None:
            blob.cache_control, blob.metadata = headers.cache_control or None, dict(headers.metadata)
        try:
            # No retry with a precondition: a lost answer would read as somebody else's write.
            blob.upload_from_string(
                content,
                content_type="text/plain" if headers is None else headers.content_type,
                timeout=CALL_TIMEOUT_S,
                if_generation_match=if_generation,
                retry=None,
            )
        except Exception as error:
            raise translate(error, f"write {uri}") from error
        return int(blob.generation)

    def upload(
        self, uri: str, pieces: Iterable[bytes], size: int, *, if_generation: int | None = None
    ) -> ObjectInfo:
        blob = self._blob(uri)
        blob.chunk_size = UPLOAD_PIECE
        try:
            # Parts of an upload may be sent twice; the client compares the checksum of all at the end.
            blob.upload_from_file(
                _Stream(pieces),
                size=size,
                timeout=CALL_TIMEOUT_S,
                if_generation_match=if_generation,
                checksum="crc32c",
            )
        except TpuctlError:
            raise  # where the pieces come from
        except Exception as error:
            raise translate(error, f"write {uri}") from error
        return _info(blob)

    def read_pieces(self, uri: str) -> Iterator[bytes]:
        try:
            with self._blob(uri).open("rb", chunk_size=UPLOAD_PIECE, timeout=READ_TIMEOUT_S) as file:
                while piece := file.read(UPLOAD_PIECE):
                    yield piece
        except Exception as error:
            raise translate(error, f"read {uri}") from error

    def delete(self, uri: str, *, if_generation: int | None = None) -> None:
        try:
            self._blob(uri).delete(timeout=CALL_TIMEOUT_S, if_generation_match=if_generation, retry=None)
        except Exception as error:
            ours = translate(error, f"delete {uri}")
            if not isinstance(ours, NotFoundError):
                raise ours from error

    def list(self, prefix_uri: str, *, limit: int | None = None, glob: str = "") -> tuple[ObjectInfo, ...]:
        bucket, prefix = split_uri(prefix_uri)

        def ask() -> list[Any]:
            return list(
                self._client.list_blobs(
                    bucket,
                    prefix=prefix,
                    max_results=limit,
                    match_glob=glob or None,
                    timeout=READ_TIMEOUT_S,
                    retry=None,
                    fields=_LISTED,
                )
            )

        blobs = read_again(f"list {prefix_uri}", ask)
        return tuple(map(_info, blobs))

    def is_public(self, bucket: str) -> bool | None:
        """Asked as anybody, without credentials: what the answer names, everybody may do."""
        try:
            answer = requests.get(
                f"{self._endpoint}/storage/v1/b/{quote(bucket, safe='')}/iam/testPermissions",
                params={"permissions": _READ},
                timeout=READ_TIMEOUT_S,
                auth=_as_anybody,
                allow_redirects=False,
            )
            if answer.status_code in _REFUSED:
                return False
            return _READ in (answer.json().get("permissions") or ()) if answer.status_code == 200 else None
        except (RequestException, ValueError, AttributeError):
            return None

    def server_time(self, bucket: str) -> float:
        """By the Date of an answer. It has whole seconds (RFC 9110 §6.6.1), cut off: up to a second late and
        never early, so that no lease is taken for expired before it is."""
        what = f"read the time of gs://{bucket}"
        try:
            answer = self._session.get(
                f"{self._endpoint}/storage/v1/b/{quote(bucket, safe='')}",
                params={"fields": "name"},
                timeout=READ_TIMEOUT_S,
            )
        except Exception as error:
            raise translate(error, what) from error
        try:
            return parsedate_to_datetime(answer.headers["Date"]).timestamp()
        except (KeyError, ValueError) as error:
            raise TransientError(f"could not {what}: the answer has no Date") from error


def _as_anybody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Without this `requests` would take credentials for the host from ~/.netrc."""
    return request


def _info(blob: Any) -> ObjectInfo:
    at = blob.updated  # parsed each time that it is asked for
    updated = at.isoformat() if at else ""
    metadata = dict(blob.metadata or {})
    return ObjectInfo(
        blob.name, int(blob.generation), int(blob.size), updated, blob.crc32c or "", metadata=metadata
    )
