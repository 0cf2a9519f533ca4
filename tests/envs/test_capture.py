"""What an interpreter says of itself, as an environment file."""

from __future__ import annotations

import pytest

from tpuctl.envs.capture import captured
from tpuctl.envs.write import render_environment


@pytest.mark.parametrize(
    ("packages", "backend", "imports"),
    [
        ({"jax": "0.9.0", "libtpu": "0.0.34"}, "jax", ("jax",)),
        ({"jax": "0.9.0", "jaxlib": "0.9.0"}, "cpu", ("jax",)),
        ({"torch_xla": "2.9.0", "jax": "0.9.0", "libtpu": "0.0.34"}, "torch_xla", ("torch_xla",)),
        ({"idna": "3.10"}, "cpu", ()),
    ],
)
def test_the_backend_follows_from_the_packages(
    packages: dict[str, str], backend: str, imports: tuple[str, ...]
) -> None:
    found = captured("mine", {"python": "3.12", "packages": packages, "sources": {}}, "as it was")
    assert (found.spec.backend, found.spec.imports) == (backend, imports)


def test_tools_stay_away_names_are_normal_and_own_builds_are_told() -> None:
    found = captured(
        "mine",
        {
            "python": "3.12",
            "packages": {"pip": "25.0", "Jinja2": "3.1", "torch": "2.9.0a0+git1"},
            "sources": {"torch": "file:///tmp/torch.whl"},
        },
        "as it was",
    )
    assert found.spec.requirements == ("jinja2==3.1", "torch==2.9.0a0+git1")
    assert "torch 2.9.0a0+git1 came from file:///tmp/torch.whl" in found.notes[0]
    assert "verified: false" in render_environment(found.spec)
