"""Schemas of JobSet's and Kueue's kinds, made from the CRDs of the pinned modules.

`python -m tests.kube.schema` writes them, with the folders of both modules' CRDs, config/components/crd/bases;
`go mod download -json sigs.k8s.io/jobset@v0.12.0 sigs.k8s.io/kueue@v0.19.0` says where the modules are (Apache
License 2.0, The Kubernetes Authors). Of what no file in tests/data/kube and no stand-in of a test has, only the
name is kept; of the rest names, types and rules.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kube.goldens import jobs
from tests.support.kube_objects import cluster_queue, flavor, local_queue, workload
from tpuctl.kube.jobset import jobset

FOLDER = Path(__file__).parents[1] / "data" / "kube"
PATH, KUEUE_PATH = FOLDER / "jobset.schema.json", FOLDER / "kueue.schema.json"
ORIGIN = "Names and rules of the CRDs of sigs.k8s.io/{}, The Kubernetes Authors, Apache License 2.0"
KEPT = ("type", "enum", "required", "minimum", "maximum", "maxItems", "minItems", "maxLength", "pattern")


def derive(schema: dict[str, Any], examples: list[Any]) -> Any:
    """What the schema says of the examples, and the names beside those that they have."""
    found = {key: schema[key] for key in KEPT if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "pattern" in found:
        re.compile(found["pattern"])
    if "properties" in schema:
        found["properties"] = {
            name: derive(below, inside)
            if (inside := [each[name] for each in examples if name in each])
            else True
            for name, below in schema["properties"].items()
        }
        found["additionalProperties"] = False
    elif "additionalProperties" in schema:
        values = [value for each in examples for value in each.values()]
        found["additionalProperties"] = derive(schema["additionalProperties"], values)
    if "items" in schema:
        found["items"] = derive(schema["items"], [item for each in examples for item in each])
    return found


def stand_ins() -> Mapping[str, list[dict[str, Any]]]:
    """What tests say that Kueue says, by the plural of the kind."""
    checks = ({"name": "dws", "state": "Pending", "message": "no capacity"},)
    return {
        "workloads": [
            workload("train", queue="tpu", chips=4, why="no quota", owner_uid="uid-1"),
            workload("train", queue="tpu", chips=4, admitted=True, owner_uid="uid-1"),
            workload("train", queue="tpu", chips=4, checks=checks, active=False, owner_uid="uid-1"),
        ],
        "localqueues": [local_queue("tpu", "cq")],
        "clusterqueues": [cluster_queue("cq", {"v6e": 32}, used={"v6e": 8})],
        "resourceflavors": [flavor(accelerator="tpu-v6e-slice", topology="4x4")],
    }


def schemas(crd: Path, examples: list[Any]) -> dict[str, Any]:
    """Of each version that the API server serves."""
    found = {}
    for version in yaml.safe_load(crd.read_text())["spec"]["versions"]:
        whole = version["schema"]["openAPIV3Schema"]
        whole["properties"]["metadata"] = {"type": "object"}  # the API server's own
        found[version["name"]] = derive(whole, examples)
    return found


if __name__ == "__main__":
    of_jobset, of_kueue = map(Path, sys.argv[1:])
    crd = of_jobset / "jobset.x-k8s.io_jobsets.yaml"
    [made] = schemas(crd, [jobset(job) for job in jobs().values()]).values()
    PATH.write_text(json.dumps({"$comment": ORIGIN.format("jobset v0.12.0"), **made}) + "\n")
    kinds = {
        kind: schemas(of_kueue / f"kueue.x-k8s.io_{kind}.yaml", examples)
        for kind, examples in stand_ins().items()
    }
    KUEUE_PATH.write_text(json.dumps({"$comment": ORIGIN.format("kueue v0.19.0"), **kinds}) + "\n")
