"""The schema of a JobSet, made from the CRD of the pinned module: `python -m tests.kube.schema CRD` writes it.

`go mod download -json sigs.k8s.io/jobset@v0.12.0` says where the module is; the CRD is
config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml in it (Apache License 2.0, The Kubernetes Authors). Of
what no file in tests/data/kube has, only the name is kept; of the rest names, types and rules.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.kube.goldens import jobs
from tpuctl.kube.jobset import jobset

PATH = Path(__file__).parents[1] / "data" / "kube" / "jobset.schema.json"
ORIGIN = "Names and rules of the CRD of sigs.k8s.io/jobset v0.12.0, The Kubernetes Authors, Apache License 2.0"
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


if __name__ == "__main__":
    crd = yaml.safe_load(Path(sys.argv[1]).read_text())
    [version] = crd["spec"]["versions"]
    whole = version["schema"]["openAPIV3Schema"]
    whole["properties"]["metadata"] = {"type": "object"}  # the API server's own
    made = {"$comment": ORIGIN, **derive(whole, [jobset(job) for job in jobs().values()])}
    PATH.write_text(json.dumps(made) + "\n")
