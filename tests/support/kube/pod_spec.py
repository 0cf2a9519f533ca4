"""What of a pod's spec says how its containers run: variables, words and volumes."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.kube.api import KubeApi, Object
from tests.support.kube.container import Mount

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
INDEX, JOB = "batch.kubernetes.io/job-completion-index", "batch.kubernetes.io/job-name"
CHIPS = "google.com/tpu"


class ConfigError(Exception):
    """A container cannot be made from its spec; Kubernetes' reason is CreateContainerConfigError."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes the variable if there is one, `$$` becomes `$`."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] is None else variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def field_of(pod: Object, path: str) -> str:
    """The downward API: '' for a label that the pod does not have."""
    if found := _FIELD.fullmatch(path):
        return str(pod["metadata"].get(found[1], {}).get(found[2], ""))
    known = {
        "spec.nodeName": pod["spec"].get("nodeName"),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": "127.0.0.1",
        "status.hostIP": "127.0.0.1",
        **{f"metadata.{name}": pod["metadata"][name] for name in ("name", "namespace", "uid")},
    }
    return str(known[path])


def variables_of(api: KubeApi, pod: Object, container: Object) -> dict[str, str]:
    """The container's environment. Raises ConfigError for a Secret or ConfigMap that is not there."""
    found = _given_by_gke(api, pod, container)
    for source in container.get("envFrom", ()):
        for kind in ("secretRef", "configMapRef"):
            if kind in source:
                values = _values(api, pod, kind.removesuffix("Ref"), source[kind])
                found.update({source.get("prefix", "") + key: value for key, value in values.items()})
    for each in container.get("env", ()):
        source = each.get("valueFrom")
        if source is None:
            found[each["name"]] = expand(each.get("value", ""), found)
        elif "fieldRef" in source:
            found[each["name"]] = field_of(pod, source["fieldRef"]["fieldPath"])
        else:
            ((kind, place),) = source.items()
            values = _values(api, pod, kind.removesuffix("KeyRef"), place)
            if place["key"] in values:
                found[each["name"]] = values[place["key"]]
            elif not place.get("optional"):
                raise ConfigError(f"couldn't find key {place['key']} in {kind} {place['name']}")
    return found


def _given_by_gke(api: KubeApi, pod: Object, container: Object) -> dict[str, str]:
    """What GKE's webhook gives containers with chips in an indexed Job with a headless service."""
    labels, spec = pod["metadata"].get("labels", {}), pod["spec"]
    if CHIPS not in container.get("resources", {}).get("limits", {}) or INDEX not in labels:
        return {}
    job = api.get(f"/apis/batch/v1/namespaces/{pod['metadata']['namespace']}/jobs/{labels[JOB]}")
    stem = spec.get("hostname", "").rpartition("-")[0]
    names = [f"{stem}-{number}.{spec.get('subdomain', '')}" for number in range(job["spec"]["completions"])]
    return {
        "TPU_WORKER_ID": labels[INDEX],
        "TPU_WORKER_HOSTNAMES": ",".join(names),
        "TPU_SKIP_MDS_QUERY": "true",
    }


def _values(api: KubeApi, pod: Object, kind: str, place: Object) -> dict[str, str]:
    plural = {"secret": "secrets", "configMap": "configmaps"}[kind]
    answer = api.request("GET", f"/api/v1/namespaces/{pod['metadata']['namespace']}/{plural}/{place['name']}")
    if answer.status_code == 404:
        if place.get("optional"):
            return {}
        raise ConfigError(f'{kind.lower()} "{place["name"]}" not found')
    data = answer.json().get("data", {})
    return {key: base64.b64decode(value).decode() if kind == "secret" else value for key, value in data.items()}


def volumes_of(api: KubeApi, pod: Object, folder: Path, bucket: Callable[[str], Path]) -> dict[str, Path]:
    """A folder for each volume: below `folder`, or a bucket's or claimed disk's, which outlive the pod."""
    found = {}
    for volume in pod["spec"].get("volumes", ()):
        place = folder / volume["name"]
        if "csi" in volume:
            place = bucket(volume["csi"]["volumeAttributes"]["bucketName"])
        elif "persistentVolumeClaim" in volume:
            place = bucket(f"disk-{volume['persistentVolumeClaim']['claimName']}")
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        for kind, name in (("secret", "secretName"), ("configMap", "name")):
            if kind in volume:
                values = _values(api, pod, kind, {"name": volume[kind][name], **volume[kind]})
                for key, value in values.items():
                    (place / key).write_text(value)
        found[volume["name"]] = place
    return found


def mounts_of(container: Object, volumes: Mapping[str, Path]) -> list[Mount]:
    """In order, the shallow ones first."""
    found = [
        Mount(volumes[each["name"]] / each.get("subPath", ""), each["mountPath"], bool(each.get("readOnly")))
        for each in container.get("volumeMounts", ())
    ]
    return sorted(found, key=lambda mount: mount.path.count("/"))
