"""Files for clusters: as they are checked in, and as the schema of JobSet has it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from tests.kube.goldens import FOLDER, jobs, render
from tests.kube.schema import PATH
from tpuctl.kube.jobset import jobset

SCHEMA = jsonschema.Draft202012Validator(json.loads(PATH.read_text()))
JOBS = jobs()


def test_every_file_is_of_a_job():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_a_run_is_written_as_it_was_reviewed(name: str):
    expected = (FOLDER / f"{name}.yaml").read_text()
    assert render(JOBS[name]) == expected, "right? python -m tests.kube.goldens writes it anew"


@pytest.mark.parametrize("name", JOBS)
def test_the_schema_of_jobset_has_every_field(name: str):
    assert [error.message for error in SCHEMA.iter_errors(jobset(JOBS[name]))] == []


def _misspell(path: str, wrong: str) -> Callable[[Any], None]:
    def change(place: Any) -> None:
        *above, last = path.split(".")
        for word in above:
            place = place[int(word)] if word.isdigit() else place[word]
        place[wrong] = place.pop(last)

    return change


POD = "spec.replicatedJobs.0.template.spec.template.spec"


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("spec.failurePolicy.maxRestarts", "maxRestartz"),
        ("spec.failurePolicy.rules.0.name", "nam"),
        (f"{POD}.nodeSelector", "nodeSelectr"),
        (f"{POD}.containers.0.env.0.valueFrom", "valueFor"),
        (f"{POD}.volumes.2.csi.volumeAttributes", "attributes"),
        ("spec.replicatedJobs.0.template.spec.podFailurePolicy.rules.1.onExitCodes.operator", "op"),
    ],
)
def test_the_schema_tells_a_field_that_is_none(path: str, wrong: str):
    """A schema that takes everything would prove nothing."""
    made = copy.deepcopy(jobset(JOBS["v6e-two-slices-all-volumes"]))
    _misspell(path, wrong)(made)
    assert any(wrong in error.message for error in SCHEMA.iter_errors(made))
