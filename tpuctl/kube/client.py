"""A cluster as `kubectl` sees it: reads, server-side apply, deletion and logs, by kubectl's own configuration.

The library `kubernetes` is imported here alone, and only when a cluster is asked: it takes a second and is no
dependency of tpuctl, but of `tpuctl[gke]`. Nothing is decided here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as quote_path

from msgspec import Struct

from tpuctl.errors import (
    BadConfigError,
    ConflictError,
    DeniedError,
    InvalidRequestError,
    NoAnswerError,
    NotFoundError,
    TpuctlError,
    TransientError,
)
from tpuctl.lib.codec import parse_json
from tpuctl.lib.text import suggest
from tpuctl.model.clusters import ClusterPlace
from tpuctl.model.timeouts import KUBE_CALL_S

if TYPE_CHECKING:
    from types import ModuleType

MANAGER = "tpuctl"
"""The field manager of what tpuctl applies."""
INSTALL = "pip install 'tpuctl[gke]'"
LOGIN = "gcloud auth login; gcloud container clusters get-credentials CLUSTER --location LOCATION"
Object = Mapping[str, Any]


class ObjectKind(Struct, frozen=True):
    """A kind of object: its group, the versions that tpuctl knows, the best first, and its name in paths."""

    name: str
    group: str
    versions: tuple[str, ...]
    plural: str
    namespaced: bool = True
    part_of: str = "Kubernetes"
    """Who brings it."""


_KUEUE = ("v1beta2", "v1beta1")
KINDS: Mapping[str, ObjectKind] = {
    kind.name: kind
    for kind in (
        ObjectKind("JobSet", "jobset.x-k8s.io", ("v1alpha2",), "jobsets", part_of="JobSet"),
        ObjectKind("Workload", "kueue.x-k8s.io", _KUEUE, "workloads", part_of="Kueue"),
        ObjectKind("LocalQueue", "kueue.x-k8s.io", _KUEUE, "localqueues", part_of="Kueue"),
        ObjectKind(
            "ClusterQueue", "kueue.x-k8s.io", _KUEUE, "clusterqueues", namespaced=False, part_of="Kueue"
        ),
        ObjectKind(
            "ResourceFlavor", "kueue.x-k8s.io", _KUEUE, "resourceflavors", namespaced=False, part_of="Kueue"
        ),
        ObjectKind("Pod", "", ("v1",), "pods"),
        ObjectKind("Secret", "", ("v1",), "secrets"),
        ObjectKind("ServiceAccount", "", ("v1",), "serviceaccounts"),
        ObjectKind("PersistentVolumeClaim", "", ("v1",), "persistentvolumeclaims"),
        ObjectKind("PersistentVolume", "", ("v1",), "persistentvolumes", namespaced=False),
        ObjectKind("Namespace", "", ("v1",), "namespaces", namespaced=False),
        ObjectKind("Node", "", ("v1",), "nodes", namespaced=False),
    )
}


class Response(Struct, frozen=True):
    """What the server said."""

    status: int
    content: bytes

    @property
    def data(self) -> dict[str, Any]:
        """Its JSON; empty where it is none, such as of a path that the server does not have."""
        try:
            found = parse_json(self.content)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class Cluster:
    """One namespace of one cluster."""

    def __init__(self, place: ClusterPlace, api: Any, errors: tuple[type[Exception], ...]) -> None:
        self.place = place
        self._api = api
        self._errors = errors
        self._paths: dict[str, str | None] = {}
        self.unread: set[str] = set()
        """Pods whose log could not be read when it was last asked for."""

    @property
    def namespace(self) -> str:
        return self.place.namespace

    def path(self, kind: str) -> str | None:
        """Where the objects of a kind are; None where the cluster does not have the kind."""
        if kind not in self._paths:
            self._paths[kind] = self._find_path(KINDS[kind])
        return self._paths[kind]

    def get(self, kind: str, name: str) -> Object | None:
        """An object; None where there is none of that name. Raises NotFoundError for a kind that the cluster
        does not have."""
        answer = self._send("GET", self._path(kind, name))
        if answer.status == HTTPStatus.NOT_FOUND and answer.data:
            return None
        return self._checked(answer, f"{kind} {name}")

    def list(self, kind: str, selector: str = "", *, everywhere: bool = False) -> list[Object]:
        """The objects of a kind that have the labels of `selector`, `everywhere` those of all namespaces."""
        path = self._path(kind)
        if everywhere and KINDS[kind].namespaced:
            path = path.replace(f"/namespaces/{self.namespace}/", "/", 1)
        query = {"labelSelector": selector} if selector else {}
        found: list[Object] = []
        while True:
            page = self._checked(self._send("GET", path, {**query, "limit": "500"}), f"{KINDS[kind].plural}")
            found += page.get("items") or []
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return found
            query = {**query, "continue": more}

    def apply(self, document: Object, *, dry_run: bool = False) -> Object:
        """Server-side apply: makes the object or changes it to what `document` says; the same again changes
        nothing. With `dry_run` the server only says what it would say. Raises ConflictError where another
        manager has set it otherwise."""
        kind, name = str(document["kind"]), str(document["metadata"]["name"])
        answer = self._send(
            "PATCH",
            self._path(kind, name),
            _writing(dry_run),
            body=document,
            content_type="application/apply-patch+yaml",
        )
        return self._checked(answer, f"{kind} {name}")

    def create(self, document: Object, *, dry_run: bool = False) -> Object | None:
        """Makes the object; None where there is one of that name, whosever it is."""
        kind, name = str(document["kind"]), str(document["metadata"]["name"])
        answer = self._send("POST", self._path(kind), _writing(dry_run), body=document)
        return None if answer.status == HTTPStatus.CONFLICT else self._checked(answer, f"{kind} {name}")

    def delete(self, kind: str, name: str, uid: str) -> bool:
        """Asks for the deletion of that very object, after all that belongs to it; False where it is not there
        any more."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": uid},
        }
        answer = self._send("DELETE", self._path(kind, name), body=body)
        if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
            return False  # gone, or another one of that name
        self._checked(answer, f"{kind} {name}")
        return True

    def log(self, pod: str, container: str, since: str, limit: int) -> bytes | None:
        """At most `limit` bytes of what a container wrote, each line after its time; those of second `since`
        come again. None while it has no log."""
        query = {"container": container, "timestamps": "true", "limitBytes": str(limit)}
        answer = self._send(
            "GET", f"{self._path('Pod', pod)}/log", query | ({"sinceTime": since} if since else {})
        )
        if answer.status == HTTPStatus.NOT_FOUND or (answer.status == HTTPStatus.BAD_REQUEST and not since):
            return None  # the pod is gone, or its container has not begun
        self._check(answer, f"the log of pod {pod}")
        return answer.content

    def _find_path(self, kind: ObjectKind) -> str | None:
        if not kind.group:
            return f"/api/{kind.versions[0]}"
        for version in kind.versions:
            root = f"/apis/{kind.group}/{version}"
            answer = self._send("GET", root)
            if answer.status == HTTPStatus.NOT_FOUND:
                continue
            self._check(answer, root)
            if any(each.get("name") == kind.plural for each in answer.data.get("resources") or ()):
                return root
        return None

    def _path(self, kind: str, name: str = "") -> str:
        root, what = self.path(kind), KINDS[kind]
        if root is None:
            said = f"cluster {self.place.context} has no {what.part_of}: no {what.plural}.{what.group}"
            raise NotFoundError(said, hint=install(self.place, what.part_of), details={"kind": kind})
        inside = f"/namespaces/{quote_path(self.namespace)}" if what.namespaced else ""
        return f"{root}{inside}/{what.plural}" + (f"/{quote_path(name)}" if name else "")

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Response:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        content = body if body is None or content_type == "application/json" else json.dumps(body)
        try:
            parts = self._api.param_serialize(
                method=method,
                resource_path=path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=content,
                auth_settings=["BearerToken"],
            )
            response = self._api.call_api(*parts, _request_timeout=KUBE_CALL_S)
            return Response(response.status, response.read() or b"")
        except self._errors as error:
            raise _no_answer(self.place, self._api.configuration.host, error) from error

    def _checked(self, answer: Response, what: str) -> dict[str, Any]:
        self._check(answer, what)
        return answer.data

    def _check(self, answer: Response, what: str) -> None:
        """Raises for what is no success."""
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise refusal(self.place, answer, what)


def _writing(dry_run: bool) -> dict[str, str]:
    """What the query of a change says."""
    query = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
    return {**query, "dryRun": "All"} if dry_run else query


def install(place: ClusterPlace, what: str) -> str:
    """The command that installs JobSet or Kueue."""
    url = f"https://github.com/kubernetes-sigs/{what.lower()}/releases/latest/download/manifests.yaml"
    return f"kubectl --context {place.context} apply --server-side -f {url}"


def refusal(place: ClusterPlace, answer: Response, what: str) -> TpuctlError:
    """The error for an answer that is no success, by its status."""
    said = str(answer.data.get("message") or answer.content.decode("utf-8", "replace").strip())
    details = {"status": answer.status}
    where = f"cluster {place.context}"
    if answer.status == HTTPStatus.UNAUTHORIZED:
        return DeniedError(
            f"{where} refuses the credentials: they are expired or wrong", hint=LOGIN, details=details
        )
    if answer.status == HTTPStatus.FORBIDDEN:
        verb = f"kubectl --context {place.context} auth can-i --list --namespace {place.namespace}"
        return DeniedError(f"{where} does not allow it: {said}", hint=verb, details=details)
    if answer.status == HTTPStatus.NOT_FOUND:
        return NotFoundError(f"{where}: {what} is not there: {said}", details=details)
    if answer.status == HTTPStatus.CONFLICT:
        return ConflictError(f"{where}: {what}: {said}", details=details)
    if answer.status in (HTTPStatus.TOO_MANY_REQUESTS,) or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return TransientError(f"{where} answered {answer.status} about {what}: {said}", details=details)
    return InvalidRequestError(f"{where} refuses {what}: {said}", details=details)


def _no_answer(place: ClusterPlace, host: str, error: Exception) -> TpuctlError:
    cause = " ".join(str(getattr(error, "reason", None) or error).split())
    if "certificate" in cause.lower():
        said = f"the certificate of cluster {place.context} ({host}) is not the one that the kubeconfig names"
        return DeniedError(f"{said}: {cause}", hint=LOGIN)
    said = f"cluster {place.context} does not answer at {host}: {cause}"
    return NoAnswerError(said, hint=f"kubectl --context {place.context} version")


def connect(place: ClusterPlace) -> Cluster:
    """The cluster of a context, and its namespace by default. Raises NotFoundError for a context that is not in
    the kubeconfig, BadConfigError for one that cannot be read, DeniedError where its login program gives no
    credentials."""
    client, config = _library()
    from urllib3.exceptions import HTTPError

    contexts = _contexts(config)
    found = contexts.get(place.context)
    if found is None:
        near = suggest(place.context, contexts)
        known = ", ".join(sorted(contexts)) or "none"
        hint = (
            f"--on gke:{near}"
            if near
            else "gcloud container clusters get-credentials CLUSTER --location LOCATION"
        )
        raise NotFoundError(f"kubectl has no context called {place.context} (known: {known})", hint=hint)
    with _said_by_plugins() as said:
        try:
            settings = client.Configuration()
            settings.retries = False  # the loops repeat
            api = config.new_client_from_config(context=place.context, client_configuration=settings)
        except config.ConfigException as error:
            raise BadConfigError(f"context {place.context} of the kubeconfig: {error}", hint=LOGIN) from error
    if said:
        why = said[-1].removeprefix("exec: ")
        raise DeniedError(
            f"the login program of context {place.context} gave no credentials: {why}", hint=LOGIN
        )
    namespace = place.namespace or str(found.get("namespace") or "default")
    return Cluster(ClusterPlace(place.context, namespace), api, (HTTPError, OSError, client.ApiException))


def _library() -> tuple[ModuleType, ModuleType]:
    """Its parts `client` and `config`. Raises NotFoundError where tpuctl was installed without it."""
    try:
        from kubernetes import client, config
    except ImportError as error:
        said = "runs on clusters need the library kubernetes, which is not installed"
        raise NotFoundError(said, hint=INSTALL) from error
    return client, config


def _contexts(config: ModuleType) -> Mapping[str, Mapping[str, Any]]:
    """The contexts of the kubeconfig by name. Raises NotFoundError or BadConfigError."""
    import yaml

    try:
        rows = config.list_kube_config_contexts()[0]
        return {str(row["name"]): row.get("context") or {} for row in rows}
    except config.ConfigException as error:
        if "No configuration found" in str(error) or "Invalid kube-config file" in str(error):
            raise NotFoundError(f"there is no kubeconfig to read: {error}", hint=LOGIN) from error
        raise BadConfigError(f"the kubeconfig cannot be used: {error}", hint="kubectl config view") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        raise BadConfigError(f"the kubeconfig cannot be read: {error}", hint="kubectl config view") from error


@contextmanager
def _said_by_plugins() -> Iterator[list[str]]:
    """What the library logs of a login program that failed: it goes on without credentials."""
    said: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        said.append(record.getMessage())
        return False

    root = logging.getLogger()
    root.addFilter(keep)
    try:
        yield said
    finally:
        root.removeFilter(keep)
