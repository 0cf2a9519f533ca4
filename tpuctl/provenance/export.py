"""A manifest in the words of others: SLSA provenance, an MLflow run, a research object crate. Pure.

Each is one JSON document by the published schema; nothing of these systems is needed to write it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tpuctl.lib.time import parse_timestamp
from tpuctl.provenance.manifest import RunManifest
from tpuctl.provenance.phases import goodput

BUILD_TYPE = "https://tpuctl.dev/run/v1"
"""What `externalParameters` and `internalParameters` of the provenance mean: sections of a manifest."""
_MLFLOW_STATUS = {"succeeded": "FINISHED", "stopped": "KILLED", "failed": "FAILED", "gave-up": "FAILED"}
MLFLOW_PARAM_MAX, MLFLOW_TAG_MAX = 6000, 8000
"""Characters (mlflow.org, REST API, limits of log-batch)."""


def as_slsa(manifest: RunManifest, data: Mapping[str, Any]) -> dict[str, Any]:
    """An in-toto statement with SLSA provenance v1 (https://slsa.dev/spec/v1.1/provenance). Its subject is the
    run, by the last digest of its manifest."""
    code, environment = manifest.code, manifest.environment
    materials: list[dict[str, Any]] = [{"name": "code", "digest": {"sha256": code.bundle_sha256}}]
    if code.commit:
        materials.append({"uri": f"git+{code.remote or 'unknown'}", "digest": {"gitCommit": code.commit}})
    if code.diff_sha256:
        materials.append({"name": "uncommitted changes", "digest": {"sha256": code.diff_sha256}})
    if environment is not None:
        name = f"environment {environment.name}"
        materials.append({"name": name, "digest": {"sha256": environment.spec_sha256}})
        materials += [{"uri": f"pkg:pypi/{n}@{version}"} for n, version in sorted(environment.pins.items())]
    for receipt in manifest.data:
        digest = receipt.get("digest") or {}
        materials.append({"uri": receipt.get("uri"), "digest": {"sha256": digest.get("value")}})
    end = manifest.end
    metadata = {
        "invocationId": manifest.run.id,
        "startedOn": manifest.run.created,
        **({"finishedOn": end.ended} if end is not None and end.ended else {}),
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": f"run {manifest.run.id}", "digest": {"sha256": _last(manifest)}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {key: data.get(key) for key in ("command", "variables", "slice")},
                "internalParameters": {key: data.get(key) for key in ("configuration", "attempts", "checks")},
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {
                    "id": "https://tpuctl.dev",
                    "version": {"tpuctl": manifest.run.tpuctl_version},
                },
                "metadata": metadata,
            },
        },
    }


def as_mlflow(manifest: RunManifest, data: Mapping[str, Any]) -> dict[str, Any]:
    """A run as MLflow's REST API has it (https://mlflow.org/docs/latest/api_reference/rest-api.html): `info`
    and `data` with params, tags and metrics; times in milliseconds."""
    end, code, slice_ = manifest.end, manifest.code, manifest.slice
    environment = manifest.environment
    begun, ended = _milliseconds(manifest.run.created), _milliseconds(end.ended if end is not None else None)
    params = {
        "argv": " ".join(manifest.command.argv),
        "accelerator_type": slice_.accelerator_type,
        "hosts": slice_.hosts,
        "chips": slice_.chips,
        "runtime_version": slice_.runtime_version,
        "zone": slice_.zone,
        **{f"var.{name}": value for name, value in sorted(manifest.variables.requested.items())},
        **({f"pin.{n}": v for n, v in sorted(environment.pins.items())} if environment else {}),
    }
    tags = {
        "mlflow.runName": manifest.run.id,
        "mlflow.user": manifest.run.owner,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": " ".join(manifest.command.argv),
        "mlflow.source.git.commit": code.commit,
        "mlflow.source.git.branch": code.branch,
        "mlflow.source.git.repoURL": code.remote,
        "mlflow.source.git.dirty": str(code.dirty).lower(),
        "tpuctl.bundle_sha256": code.bundle_sha256,
        "tpuctl.manifest_sha256": _last(manifest),
        "tpuctl.state": end.state if end is not None else None,
    }
    phases = (data.get("end") or {}).get("phases") or {}
    metrics = {
        **{f"tpuctl.{name}": value for name, value in phases.items()},
        "tpuctl.goodput": goodput(phases),
        "tpuctl.chip_hours": end.chip_hours if end is not None else None,
        "tpuctl.usd": end.usd if end is not None else None,
        "tpuctl.attempts": end.attempts if end is not None else None,
    }
    return {
        "run": {
            "info": {
                "run_id": manifest.run.id,
                "run_name": manifest.run.id,
                "user_id": manifest.run.owner,
                "status": _MLFLOW_STATUS.get(end.state, "FAILED") if end is not None else "RUNNING",
                "start_time": begun,
                **({"end_time": ended} if ended is not None else {}),
                "lifecycle_stage": "active",
            },
            "data": {
                "params": _pairs(params, MLFLOW_PARAM_MAX),
                "tags": _pairs(tags, MLFLOW_TAG_MAX),
                "metrics": [
                    {"key": key, "value": float(value), "timestamp": ended or begun, "step": 0}
                    for key, value in metrics.items()
                    if value is not None
                ],
            },
        }
    }


def as_rocrate(manifest: RunManifest, data: Mapping[str, Any]) -> dict[str, Any]:
    """`ro-crate-metadata.json` of a crate with `run.json` in it (https://w3id.org/ro/crate/1.2): the run is a
    CreateAction of the code, on the data."""
    end, code = manifest.end, manifest.code
    action: dict[str, Any] = {
        "@id": f"#run-{manifest.run.id}",
        "@type": "CreateAction",
        "name": f"run {manifest.run.id}",
        "description": " ".join(manifest.command.argv),
        "agent": {"@id": f"#user-{manifest.run.owner}"},
        "instrument": {"@id": "#code"},
        "object": [{"@id": str(each.get("uri"))} for each in manifest.data],
        "startTime": manifest.run.created,
        "actionStatus": {"@id": _status(end.state if end is not None else "")},
    }
    if end is not None:
        action["endTime"] = end.ended
    source: dict[str, Any] = {
        "@id": "#code",
        "@type": "SoftwareSourceCode",
        "name": f"code {code.bundle_sha256[:12]}",
        "identifier": code.bundle_sha256,
        "version": code.commit,
        **({"codeRepository": code.remote} if code.remote else {}),
    }
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"run {manifest.run.id}",
        "description": f"What exactly ran as {manifest.run.id}: manifest of tpuctl",
        "datePublished": end.ended if end is not None else manifest.run.created,
        "license": "https://spdx.org/licenses/NOASSERTION",
        "hasPart": [{"@id": "run.json"}, *({"@id": str(each.get("uri"))} for each in manifest.data)],
        "mentions": {"@id": action["@id"]},
    }
    return {
        "@context": "https://w3id.org/ro/crate/1.2/context",
        "@graph": [
            {
                "@id": "ro-crate-metadata.json",
                "@type": "CreativeWork",
                "about": {"@id": "./"},
                "conformsTo": {"@id": "https://w3id.org/ro/crate/1.2"},
            },
            root,
            {
                "@id": "run.json",
                "@type": "File",
                "name": "manifest",
                "encodingFormat": "application/json",
                "conformsTo": {"@id": data.get("schema")},
            },
            action,
            source,
            {"@id": f"#user-{manifest.run.owner}", "@type": "Person", "name": manifest.run.owner},
            *({"@id": str(e.get("uri")), "@type": "Dataset", "name": str(e.get("uri"))} for e in manifest.data),
        ],
    }


FORMATS: Mapping[str, Callable[[RunManifest, Mapping[str, Any]], dict[str, Any]]] = {
    "slsa": as_slsa,
    "mlflow": as_mlflow,
    "rocrate": as_rocrate,
}
_MARKS = {
    "slsa": (BUILD_TYPE.encode(),),
    "mlflow": (b'"run_id"', b'"lifecycle_stage"'),
    "rocrate": (b"https://w3id.org/ro/crate/",),
}


def begins_export(form: str, head: bytes) -> bool:
    """Whether the first bytes of a file are those of an export of this form."""
    return all(mark in head for mark in _MARKS[form])


def _last(manifest: RunManifest) -> str:
    return manifest.chain[-1] if manifest.chain else ""


def _status(state: str) -> str:
    known = {"": "ActiveActionStatus", "succeeded": "CompletedActionStatus"}
    return f"http://schema.org/{known.get(state, 'FailedActionStatus')}"


def _milliseconds(text: str | None) -> int | None:
    at = parse_timestamp(text) if text else None
    return None if at is None else round(at * 1000)


def _pairs(values: Mapping[str, Any], most: int) -> list[dict[str, str]]:
    return [{"key": key, "value": str(value)[:most]} for key, value in values.items() if value is not None]
