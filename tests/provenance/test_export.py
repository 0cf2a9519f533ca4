"""Manifests in the words of others, and in one file with all that a run needs."""

from __future__ import annotations

import json
import tarfile

import pytest

from tests.provenance.samples import a_manifest
from tests.support.memory.services import MemoryPlace
from tpuctl.errors import BadManifestError, NotFoundError
from tpuctl.kube.source import source_of_run
from tpuctl.provenance.bundle import code_problem, read_bundle, store_bundle, write_bundle
from tpuctl.provenance.export import FORMATS, as_mlflow, as_rocrate, as_slsa
from tpuctl.provenance.manifest import typed
from tpuctl.transfer.tree import list_blobs, make_tree, parse_tree

MANIFEST = a_manifest()


def test_slsa_names_code_and_digest():
    made = as_slsa(typed(MANIFEST), MANIFEST)
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    assert made["subject"] == [{"name": "run first", "digest": {"sha256": MANIFEST["chain"][-1]}}]
    definition = made["predicate"]["buildDefinition"]
    assert {"uri": "git+https://example.org/code.git", "digest": {"gitCommit": "c" * 40}} in definition[
        "resolvedDependencies"
    ]
    assert definition["externalParameters"]["command"]["argv"] == ["python3", "train.py"]


def test_mlflow_has_strings_and_milliseconds():
    run = as_mlflow(typed(MANIFEST), MANIFEST)["run"]
    assert (run["info"]["status"], run["info"]["end_time"] - run["info"]["start_time"]) == (
        "FINISHED",
        1_780_000,
    )
    tags = {each["key"]: each["value"] for each in run["data"]["tags"]}
    assert tags["mlflow.source.git.commit"] == "c" * 40
    assert all(isinstance(each["value"], str) for each in run["data"]["params"] + run["data"]["tags"])
    metrics = {each["key"]: each["value"] for each in run["data"]["metrics"]}
    assert metrics["tpuctl.running_s"] == 1500.0


def test_a_crate_refers_to_nothing_that_it_lacks():
    graph = as_rocrate(typed(MANIFEST), MANIFEST)["@graph"]
    known = {each["@id"] for each in graph}
    assert {"./", "ro-crate-metadata.json", "run.json", "#run-first", "#code"} <= known
    used = {row["@id"] for each in graph for key in ("hasPart", "object") for row in each.get(key, ())}
    assert used <= known


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_that_goes_on_can_be_exported(form):
    going = {**MANIFEST, "attempts": [], "end": None, "chain": MANIFEST["chain"][:1]}
    assert json.dumps(FORMATS[form](typed(going), going))


def test_a_bundle_brings_all_that_a_run_needs_to_another_store(tmp_path):
    place = MemoryPlace()
    try:
        here, elsewhere = place.machine().store, MemoryPlace().machine()
        there = elsewhere.store
        content = make_tree({"main.py": b"print(1)", "a/b.txt": b"x" * 5000})
        tree = here.put_blob(content.tree)
        for data in (b"print(1)", b"x" * 5000):
            here.put_blob(data)
        code = {**MANIFEST["code"], "bundle_sha256": tree, "diff_sha256": here.put_blob(b"diff")}
        manifest = {**MANIFEST, "code": code}
        path = tmp_path / "run.tar"
        assert write_bundle(here, manifest, path) == 4
        assert read_bundle(path) == manifest
        assert source_of_run(elsewhere, str(path)).read(tree) == content.tree
        assert "not in this store" in code_problem(there, manifest)
        assert store_bundle(there, path) == 4
        assert code_problem(there, manifest) == ""
        assert len(list_blobs(parse_tree(there.get_blob(tree)))) == 2
        with pytest.raises(NotFoundError):
            write_bundle(there, {**manifest, "code": {**code, "diff_sha256": "0" * 64}}, tmp_path / "other.tar")
        assert [each.name for each in tmp_path.iterdir()] == ["run.tar"]
        changed = path.read_bytes().replace(b"print(1)", b"print(2)")
        path.write_bytes(changed)
        with pytest.raises(BadManifestError, match="was changed"):
            store_bundle(there, path)
        path.write_bytes(changed[: len(changed) // 2])
        with pytest.raises(BadManifestError, match="cut off"):
            store_bundle(there, path)
        with tarfile.open(path, "w") as archive:
            archive.addfile(tarfile.TarInfo("notes.txt"))
        with pytest.raises(BadManifestError, match=r"has no run\.json"):
            read_bundle(path)
    finally:
        place.close()
