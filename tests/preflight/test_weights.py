"""Parameters drawn here, measured by the program that measures a user's, and judged."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.support.session import ROOT
from tpuctl.errors import UsageError
from tpuctl.preflight.check_weights import check_initialiser

SIZE = 64 * 64


def load_module() -> Any:
    """The agent's module, as hosts and environments have it."""
    spec = importlib.util.spec_from_file_location("weights", ROOT / "tpuctl" / "agent" / "weights.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


weights = load_module()


def leaf(name: str, *, std: float = 0.125, shape: tuple[int, ...] = (64, 64), **numbers: Any) -> dict[str, Any]:
    """A fresh matrix whose digest is its name's."""
    size = 1
    for each in shape:
        size *= each
    given = {"size": size, "digest": name, "mean": 0.0, "std": std, "dtype": "float32", **numbers}
    return {"name": name, "shape": list(shape), **given}


def layers(count: int = 4) -> list[dict[str, Any]]:
    return [leaf(f"layer_{i}/kernel") for i in range(count)]


def found(
    leaves: list[dict[str, Any]], *, fresh: bool | None = True, init: str | None = None
) -> list[tuple[str, str]]:
    return [(each["level"], each["leaf"]) for each in weights.judge(leaves, fresh, init)]


def test_good_parameters_have_no_findings():
    norm = leaf("norm/scale", std=0.0, shape=(64,), mean=1.0, equal=True)
    bias = leaf("layer_0/bias", std=0.0, shape=(64,), zeros=64, equal=True)
    assert found([*layers(), norm, bias]) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nan": 3}, "3 NaN and 0 infinite"),
        ({"zeros": SIZE, "std": 0.0, "equal": True}, "all zeros"),
        ({"std": 0.0, "mean": 0.5, "equal": True}, "every element is 0.5"),
        ({"digest": "layer_0/kernel"}, "the same values as layer_0/kernel"),
        ({"std": 0.0125}, "is 0.1 of what the other 3 layers have"),
        ({"std": 0.25}, "is 2 of what the other 3 layers have"),
    ],
)
def test_a_bad_layer_is_named(change, said):
    leaves = layers()
    leaves[2] = leaf("layer_2/kernel", **change)
    errors = [each for each in weights.judge(leaves, True) if each["level"] == "error"]
    assert [each["leaf"] for each in errors] == ["layer_2/kernel"]
    assert said in errors[0]["what"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mean": 0.01}, "its mean is 0.01"),
        ({"zeros": SIZE // 10}, "10% of it are zeros"),
        ({"dtype": "float64"}, "float64"),
        ({"dtype": "bfloat16"}, "layers of different types: bfloat16, float32"),
    ],
)
def test_what_may_be_wrong_is_a_warning(change, said):
    leaves = layers()
    leaves[2] = leaf("layer_2/kernel", **change)
    told = weights.judge(leaves, True)
    assert {each["level"] for each in told} == {"warning"}
    assert any(said in each["what"] for each in told)


def test_bfloat16_with_its_shift_and_zeros_is_good():
    drawn = {"mean": -0.018 * 0.125, "zeros": int(0.008 * SIZE), "dtype": "bfloat16"}
    assert found([leaf(f"layer_{i}/kernel", **drawn) for i in range(4)]) == []


def test_a_truncated_normal_is_good():
    assert found([leaf("embed", std=0.0176)]) == []


def test_a_scale_that_no_initialiser_gives_is_told_of_the_whole_leaf():
    assert found([leaf("kernel", std=0.003)]) == [("warning", "kernel")]
    assert found([leaf("kernel", std=0.003)], fresh=False) == []


def test_a_named_initialiser_makes_it_an_error():
    assert found([leaf("kernel", std=(2 / 64) ** 0.5)], init="he") == []
    assert found([leaf("kernel")], init="he") == [("error", "kernel")]
    assert found([leaf("kernel", std=0.0204)], init="0.02") == []


def test_a_stack_whose_fan_in_counted_the_layers():
    std = (1 / (16 * 64)) ** 0.5
    parts = [{"size": SIZE, "digest": str(i), "std": std} for i in range(16)]
    stack = leaf("layers", std=std, shape=(16, 64, 64), slices=parts)
    [told] = weights.judge([stack], True)
    assert "1/sqrt(16)" in told["what"]


def test_a_dead_layer_of_a_stack_is_named_by_its_number():
    parts = [{"size": SIZE, "digest": str(i), "std": 0.125} for i in range(4)]
    parts[1] = {"size": SIZE, "digest": "0000", "zeros": SIZE, "std": 0.0, "equal": True}
    parts[3] = {"size": SIZE, "digest": "2", "std": 0.125}
    stack = leaf("layers", shape=(4, 64, 64), slices=parts)
    assert found([stack]) == [("error", "layers[1]"), ("error", "layers[3]")]


def test_tied_embeddings_and_zero_initialised_outputs_are_meant():
    tied = [leaf("embed", digest="e"), leaf("lm_head", digest="e")]
    zero = leaf("lora_b/kernel", std=0.0, zeros=SIZE, equal=True)
    assert found([*tied, zero]) == []


def test_trained_layers_may_differ_but_not_by_orders():
    leaves = [leaf(f"layer_{i}/kernel", std=std) for i, std in enumerate((0.1, 0.2, 0.3, 0.01))]
    assert found(leaves, fresh=False) == [("warning", "layer_3/kernel")]


@pytest.mark.parametrize("small", [0.0125, 0.03])
def test_a_checkpoint_that_looks_drawn_is_judged_as_fresh(small):
    leaves = [leaf(f"layer_{i}/kernel", std=0.125 if i else small) for i in range(5)]
    assert found(leaves, fresh=None)[0] == ("error", "layer_0/kernel")


def test_one_that_has_been_trained_is_not():
    leaves = [leaf(f"layer_{i}/kernel", std=0.3 + 0.1 * i, mean=0.02) for i in range(5)]
    assert found(leaves, fresh=None) == []


def test_what_pytorch_draws_is_known_by_the_names_that_it_gives():
    wide = {"shape": (64, 256), "std": (1 / (3 * 256)) ** 0.5}
    assert found([leaf("up.weight", **wide), leaf("embed.weight", shape=(512, 64), std=1.0)]) == []
    assert found([leaf("up/kernel", **wide)]) == [("warning", "up/kernel")]
    assert found([leaf("up.weight", **wide)], init="torch") == []
    assert found([leaf("up.weight", **wide)], init="lecun") == [("error", "up.weight")]


def test_moments_of_an_optimizer_are_judged_for_nan_alone():
    names = ("optimizer/state/0/exp_avg", "opt_state[0].mu['kernel']", "square/w0")
    moments = [leaf(name, std=0.0, zeros=SIZE, equal=True) for name in names]
    assert found([*layers(), *moments]) == []
    assert found([leaf(names[0], nan=1)]) == [("error", names[0])]


@pytest.mark.parametrize("words", ["xavier?", "0", "-1", "nan", "inf", ""])
def test_no_initialiser(words):
    with pytest.raises(UsageError, match="no such initialiser"):
        check_initialiser(words)
