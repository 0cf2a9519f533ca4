"""Where on Kubernetes a run is: `gke:CONTEXT/NAMESPACE`, by the contexts of kubectl."""

from __future__ import annotations

import re

from msgspec import Struct

from tpuctl.errors import UsageError

PREFIX = "gke:"
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""A label of RFC 1123, as the API server wants it."""


class ClusterPlace(Struct, frozen=True):
    """A namespace of a cluster, which is what kubectl's context calls it. Without a namespace: that of the
    context."""

    context: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{PREFIX}{self.context}" + (f"/{self.namespace}" if self.namespace else "")


def is_cluster(name: str | None) -> bool:
    """Whether what `--on` names is a cluster, not a slice: no slice has a colon in its name."""
    return name is not None and name.startswith(PREFIX)


def parse_cluster(text: str) -> ClusterPlace:
    """What `gke:CONTEXT[/NAMESPACE]` says. Raises UsageError."""
    hint = "--on gke:CONTEXT or gke:CONTEXT/NAMESPACE; kubectl config get-contexts lists contexts"
    context, slash, namespace = text.removeprefix(PREFIX).partition("/")
    if not is_cluster(text) or not context:
        raise UsageError.of("on", f"{text!r} names no cluster", hint)
    if slash and not _NAMESPACE.fullmatch(namespace):
        raise UsageError.of("on", f"{namespace!r} cannot be the name of a namespace", hint)
    return ClusterPlace(context, namespace)
