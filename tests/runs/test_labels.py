"""Group and tags of a run: what may be one, which runs they list, and what Weights & Biases is told."""

from __future__ import annotations

import re

import pytest

from tests.support.builders import a_run, a_run_spec
from tpuctl.errors import UsageError
from tpuctl.model.run_identity import fingerprint
from tpuctl.model.run_spec import RunRequest
from tpuctl.runs.process_env import render_defaults
from tpuctl.runs.rules import check_run
from tpuctl.views.runs import is_listed

TAGS = ("baseline", "stage=pretrain")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"group": "Sweep 1"}, ""),
        ({"tag": TAGS}, ""),
        ({"tag": ("a=",)}, ""),
        ({"group": ""}, "--group '' is not valid"),
        ({"group": "a,b"}, "no comma"),
        ({"tag": ("a\nb",)}, "--tag 'a\\nb' is not valid"),
        ({"tag": ("=x",)}, "a letter or digit first"),
        ({"tag": ("x" * 65,)}, "1 to 64 characters"),
        ({"tag": ("a=1", "a=2")}, "--tag a is given twice"),
        ({"tag": ("hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",)}, "looks like"),
        ({"tag": ("api_key=abcdefgh1234",)}, "looks like"),
    ],
)
def test_what_may_be_a_group_or_tag(fields, said):
    request = RunRequest(script="train.py", **fields)
    if not said:
        check_run(request)
        return
    with pytest.raises(UsageError, match=re.escape(said)):
        check_run(request)


@pytest.mark.parametrize(
    ("group", "tags", "listed"),
    [
        (None, (), True),
        ("sweep", (), True),
        ("swe", (), False),
        (None, ("stage",), True),
        (None, ("stage=pretrain", "baseline"), True),
        ("sweep", ("stage=",), False),
        (None, ("pretrain",), False),
    ],
)
def test_runs_are_listed_by_all_that_was_asked_for(group, tags, listed):
    assert is_listed(a_run(group="sweep", tags=TAGS), group, tags) is listed


def test_labels_make_another_run_and_none_makes_the_one_from_before():
    plain = fingerprint(a_run_spec(), "0" * 64)
    assert fingerprint(a_run_spec(group="", tags=()), "0" * 64) == plain
    assert fingerprint(a_run_spec(tags=TAGS), "0" * 64) != plain


def test_every_attempt_is_the_same_run_of_weights_and_biases():
    run = a_run(id="r" * 63, group="sweep", tags=TAGS)
    told = render_defaults(run)
    assert (told["WANDB_RESUME"], told["WANDB_RUN_GROUP"]) == ("allow", "sweep")
    assert told["WANDB_TAGS"] == "baseline,stage=pretrain"
    assert re.fullmatch(r"r{55}-[0-9a-f]{8}", told["WANDB_RUN_ID"])
    assert told == render_defaults(a_run(id="r" * 63, group="sweep", tags=TAGS, attempt=None))
    assert told["WANDB_RUN_ID"] != render_defaults(a_run(id="r" * 63, created_at=1901.0))["WANDB_RUN_ID"]
    assert "WANDB_TAGS" not in render_defaults(a_run())
