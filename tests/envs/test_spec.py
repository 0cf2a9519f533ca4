"""Environment files, locks and keys: what is accepted, what is refused with which words."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.support.environments import make_pinned
from tpuctl.config.yaml_positions import parse_marked
from tpuctl.envs.load import environment_names, pin, read_environment, require_lock
from tpuctl.envs.lock import (
    cuda_builds,
    missing_wheels,
    parse_lock,
    render_lock,
    requirement_lines,
    versions_of,
    wheel_rank,
    wheels_for,
)
from tpuctl.envs.parse import parse_environment
from tpuctl.envs.pinned import environment_files, environment_key, parse_frozen
from tpuctl.envs.spec import EnvironmentSpec, run_variables
from tpuctl.envs.write import derive, new_environment
from tpuctl.errors import BadConfigError, BadManifestError, NotFoundError, TpuctlError

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "manifests" / "env").glob("*.yaml"))
EXAMPLES = sorted((ROOT / "manifests" / "examples" / "envs").glob("*.yaml"))
GOOD = 'name: e\nbackend: cpu\npython: "3.11"\nrequirements: [six==1.17.0]\n'
A, B = "a" * 64, "b" * 64
WHEEL = '  {{ name = "{0}", url = "https://files.pythonhosted.org/p/{0}", hashes = {{ sha256 = "{1}" }} }},\n'


def lock_text(**packages: Any) -> str:
    text = 'lock-version = "1.0"\ncreated-by = "uv"\n'
    for name, (version, wheels, *marker) in packages.items():
        text += f'\n[[packages]]\nname = "{name}"\nversion = "{version}"\n'
        text += f"marker = {json.dumps(marker[0])}\n" if marker else ""
        text += "wheels = [\n" + "".join(WHEEL.format(*wheel) for wheel in wheels) + "]\n"
    return text


def project(folder: Path, text: str, name: str = "e", lock: str | None = None) -> Path:
    envs = folder / "envs"
    envs.mkdir(exist_ok=True)
    (envs / f"{name}.yaml").write_text(text)
    if lock is not None:
        (envs / f"pylock.{name}.toml").write_text(lock)
    return envs


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_environment_is_right_and_locked_for_each_of_its_pythons_or_says_that_nobody_saw_it(path):
    found = read_environment(path.stem, Path("/nowhere"))
    assert found.origin == f"{path.name} of tpuctl"
    assert found.complaints == []
    if not found.lock:
        assert not found.spec.verified
        with pytest.raises(BadManifestError, match="is not locked") as caught:
            require_lock(found)
        assert caught.value.hint == f"tpuctl env lock {path.stem}"
        return
    assert not found.stale
    assert found.packages.installer is not None
    for minor in found.spec.python:
        installed = versions_of(found.packages, minor)
        wheels = wheels_for(found.packages, minor)
        assert len(wheels) == len(installed)
        for requirement in found.spec.requirements:
            name, _, version = requirement.partition("==")
            if ";" not in version:
                assert installed[name] == version
        assert installed.get("jax") == installed.get("jaxlib")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_right(path):
    spec, problems = parse_environment(parse_marked(path.read_text(), path.name), path.stem)
    assert problems == []
    assert spec is not None


def test_the_projects_environments_come_first_and_hide_those_of_the_same_name(tmp_path):
    envs = project(tmp_path, GOOD.replace("name: e", "name: cpu"), "cpu")
    assert environment_names(envs)[0] == "cpu"
    assert environment_names(envs).count("cpu") == 1
    assert read_environment("cpu", envs).spec.requirements == ("six==1.17.0",)


def test_an_environment_that_is_nowhere_is_refused_with_those_that_are_there(tmp_path):
    with pytest.raises(NotFoundError, match="no environment called nope") as caught:
        read_environment("nope", tmp_path)
    assert "jax-tpu" in str(caught.value.hint)


def test_every_mistake_of_a_file_is_said_at_once_with_its_place(tmp_path):
    envs = project(
        tmp_path,
        'name: other\nbackend: jaxx\npython: "3.11"\nrequirments: []\nrequirements: [jax>=1]\n'
        "files:\n  - source: a.so\n    to: /etc/passwd\n    sha256: abc\n"
        "variables: {A B: 1}\nlibtpu_flags: [xla]\n",
    )
    with pytest.raises(BadConfigError) as caught:
        read_environment("e", envs)
    told = {(p["line"], p["message"].partition(": ")[0]) for p in caught.value.details["problems"]}
    assert {line for line, _ in told} == {1, 2, 4, 5, 8, 9, 10, 11}
    assert "unknown key 'requirments' in environment; did you mean 'requirements'?" in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("extra", ["epath-gcs", "epath,epath-gcs"])
def test_a_compile_cache_in_a_bucket_needs_an_extra_and_no_lock_yet(tmp_path, extra):
    text = GOOD.replace("six==1.17.0", f'"etils[{extra}]==1.13.0"') + "compile_cache: gs://b/cache"
    assert read_environment("e", project(tmp_path, text)).spec.compile_cache == "gs://b/cache"
    with pytest.raises(TpuctlError, match="gcsfs is not required"):
        read_environment("e", project(tmp_path, text.replace(extra, "epath")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "must hold keys and values"),
        ("name: e", "lacks the key 'python'"),
        ("name: e\npython: 3.11", "must be text"),
        ('name: e\npython: "2.7"', "'2.7' is not a Python version"),
        (f'name: e\npython: ["3.11", "3.12"]\npython_archive: {{source: a, sha256: {A}}}', "one version"),
        ("name: e\npython: /mnt/venv", "/mnt/venv is a place, and not a version"),
        (f"{GOOD}unmanaged: {{path: venv, sha256: {A}}}", "'venv' is not the path of a folder of the hosts"),
        (f"{GOOD}unmanaged: {{path: /v, sha256: {A}}}", "requirements would change /v, which is unmanaged"),
        (GOOD + f"files:\n  - {{source: x, to: ../x, sha256: {A}}}", "is not a path inside the environment"),
        (GOOD + f"files:\n  - {{source: ../x, to: x, sha256: {A}}}", "is no place of a file"),
        (
            GOOD + f"files:\n  - {{source: x, to: x, sha256: {A}}}\n  - {{source: y, to: x, sha256: {A}}}",
            "two files go to x",
        ),
        (GOOD + "files:\n  - {source: x, to: x}", "lacks the key 'sha256'"),
        (GOOD + "files: {source: x}", "must be a list"),
        (GOOD + "compile_cache: nowhere", "compile_cache 'nowhere' is no place"),
        (
            GOOD + "compile_cache: gs://b/cache",
            "JAX reads and writes gs:// with etils[epath-gcs], and etils is not required",
        ),
        (GOOD.replace("cpu", "torch_tpu") + "compile_cache: disk", "no compile cache of TorchTPU is known"),
        (
            GOOD.replace("cpu", "torch_xla") + "compile_cache: gs://b/cache",
            "PyTorch/XLA keeps compiled programs in a directory of the host only",
        ),
        (GOOD + "kernel: {transparent_hugepages: sometimes}", "'sometimes' is not a mode"),
        (GOOD + "exclude: [SIX]", "exclude has SIX, and so has requirements"),
        (GOOD + "libtpu_flags: [--a=1]\nvariables: {LIBTPU_INIT_ARGS: x}", "say the same"),
        (GOOD + "generations: [v6]", "'v6' is no generation; did you mean 'v6e'?"),
        (GOOD + "probe: probe.py", "the probe probe.py is not beside it"),
        (GOOD.replace("cpu", "jax"), "the backend is jax, and jax is not required"),
        (GOOD.replace("cpu", "jax").replace("six==1.17.0", "jax==0.9.0"), "libtpu is not required"),
        (GOOD.replace("six==1.17.0", "jax==0.4.32"), "jax 0.4.32 is known to be bad: it was withdrawn"),
        (GOOD.replace("six==1.17.0", "jax==0.12.0"), "jax 0.12.0 needs Python >=3.12, not 3.11"),
        (GOOD.replace("six==1.17.0", "torch-xla==2.9.0"), "needs torch 2.9.0, and does not say so"),
        (
            GOOD.replace("six==1.17.0", "torch_xla==2.9.0, torch==2.13.0+cpu"),
            "torch-xla 2.9.0 goes with torch 2.9.0, not with 2.13.0+cpu: importing it fails",
        ),
        (
            GOOD.replace('"3.11"', '"3.13"').replace("six==1.17.0", "torch-xla==2.9.0, torch==2.9.0+cpu"),
            "its libtpu 0.0.21 has no wheel for Python 3.13",
        ),
        (GOOD.replace("six==1.17.0", "libtpu==0.0.43"), "libtpu 0.0.43 has wheels for Python 3.12"),
        (
            GOOD.replace("six==1.17.0", "libtpu==0.0.51")
            + "libtpu_flags: [--xla_jf_vmem_memory_space_assignment=true]",
            "libtpu 0.0.51 refuses --xla_jf_vmem_memory_space_assignment=true: gone since libtpu 0.0.41",
        ),
        (GOOD + "libtpu_flags: [--xla_disable_hlo_passes=a]", "libtpu never took it; XLA does"),
        (GOOD + "xla_flags: [--xla_tpu_foo=1]", "is a flag of libtpu"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_what_is_wrong(tmp_path, text, said):
    with pytest.raises(TpuctlError) as caught:
        read_environment("e", project(tmp_path, text))
    assert said in caught.value.message
    assert caught.value.exit_code == 2


def test_what_is_bad_on_one_generation_only_is_refused_there(tmp_path):
    bad = GOOD.replace("six==1.17.0", "jax==0.4.36")
    assert read_environment("e", project(tmp_path, bad + "generations: [v4]")).spec.generations == ("v4",)
    with pytest.raises(BadConfigError, match="compiles wrongly for v6e"):
        read_environment("e", project(tmp_path, bad + "generations: [v4, v6e]"))


def test_what_is_only_slow_is_said_and_goes_on(tmp_path):
    text = GOOD.replace("six==1.17.0", "torch-xla==2.6.0, torch==2.6.0+cpu")
    (told,) = read_environment("e", project(tmp_path, text)).complaints
    assert "150 times slower" in told.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "not valid TOML"),
        ("a = 1", "not a lock file of PEP 751"),
        (lock_text(six=("1.17.0", [])), "six 1.17.0 has no wheel"),
        (lock_text(six=("1.17.0", [("six-1-py3-none-any.whl", "abc")])), "a wheel of six 1.17.0 has no sha256"),
        (lock_text(six=("1.17.0", [("six-1-py3-none-any.whl", A)])).replace(A, ""), "has no sha256"),
        (
            lock_text(torch=("2.9.0", [("torch-2.9.0-cp311-cp311-manylinux_2_28_x86_64.whl", A)])),
            "builds for NVIDIA's devices: torch 2.9.0",
        ),
        (
            lock_text(
                **{"nvidia-cublas-cu12": ("1", [("nvidia_cublas-1-py3-none-manylinux_2_28_x86_64.whl", A)])}
            ),
            "builds for NVIDIA's devices",
        ),
    ],
)
def test_a_lock_that_pins_nothing_or_brings_cuda_is_refused(tmp_path, text, said):
    with pytest.raises(TpuctlError, match="lock") as caught:
        require_lock(read_environment("e", project(tmp_path, GOOD, lock=text)))
    assert said in caught.value.message


def test_a_lock_of_other_requirements_is_refused(tmp_path):
    made = parse_lock(lock_text(six=("1.17.0", [("six-1.17.0-py3-none-any.whl", A)])), "e")
    text = render_lock(dataclasses.replace(made, asked="0" * 16))
    found = read_environment("e", project(tmp_path, GOOD, lock=text))
    with pytest.raises(BadManifestError, match="older than the requirements") as caught:
        require_lock(found)
    assert caught.value.hint == "tpuctl env lock e"


def test_a_lock_reads_as_it_was_written():
    wheels = [("six-1.17.0-py3-none-any.whl", A), ("b-1-cp312-cp312-manylinux_2_28_x86_64.whl", B)]
    lock = parse_lock(lock_text(six=("1.17.0", wheels, "python_full_version >= '3.12'")), "e")
    assert parse_lock(render_lock(lock), "e") == lock
    assert versions_of(lock, "3.11") == {}
    assert requirement_lines(lock, "3.12") == f"six==1.17.0 --hash=sha256:{A} --hash=sha256:{B}\n"


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-cp312-cp312-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp39-abi3-manylinux2014_x86_64.whl", True),
        ("a-1-py3-none-manylinux_2_31_x86_64.whl", True),
        ("a-1-cp313-cp313-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp313-abi3-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp312-cp312-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp312-cp312-manylinux_2_28_aarch64.whl", False),
        ("a-1-cp312-cp312-macosx_11_0_arm64.whl", False),
        ("a-1.tar.gz", False),
    ],
)
def test_wheels_are_chosen_by_their_tags(name, fits):
    assert (wheel_rank(name, "3.12") > 0) is fits


def test_the_most_specific_wheel_is_taken_and_none_is_an_error():
    names = ["a-1-py3-none-any.whl", "a-1-cp312-cp312-manylinux_2_28_x86_64.whl"]
    lock = parse_lock(lock_text(a=("1", [(name, A) for name in names])), "e")
    assert [wheel.name for wheel in wheels_for(lock, "3.12")] == [names[1]]
    assert [wheel.name for wheel in wheels_for(lock, "3.11")] == [names[0]]
    only = parse_lock(lock_text(a=("1", [(names[1], A)])), "e")
    with pytest.raises(BadManifestError, match=r"a 1: no wheel for Python 3\.11 on x86_64"):
        wheels_for(only, "3.11")


def test_wheels_that_are_missing_for_another_machine_are_all_named():
    jaxlib = [(f"jaxlib-1-cp312-cp312-manylinux_2_28_{each}.whl", A) for each in ("x86_64", "aarch64")]
    libtpu = [("libtpu-2-cp312-cp312-manylinux_2_31_x86_64.whl", B)]
    grain = [("grain-3-cp312-cp312-manylinux_2_17_x86_64.whl", B)]
    only_x86 = "platform_machine == 'x86_64'"
    locked = lock_text(jaxlib=("1", jaxlib), libtpu=("2", libtpu), grain=("3", grain, only_x86))
    lock = parse_lock(locked, "e")
    assert missing_wheels(lock, "3.12") == []
    assert missing_wheels(lock, "3.12", "aarch64") == ["libtpu 2"]
    with pytest.raises(BadManifestError, match=r"libtpu 2: no wheel for Python 3\.12 on aarch64"):
        wheels_for(lock, "3.12", "aarch64")


def test_torch_for_the_cpu_is_no_cuda_build():
    wheel = ("torch-2.9.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl", A)
    assert cuda_builds(parse_lock(lock_text(torch=("2.9.0+cpu", [wheel])), "e")) == []
    assert cuda_builds(parse_lock(lock_text(torch=("2.9.0+cu126", [wheel])), "e")) == ["torch 2.9.0+cu126"]


def test_the_key_follows_the_content_and_not_name_or_words():
    first = make_pinned({"six": ("1.17.0", A)}, imports=("six",), variables={"A": "1"})
    key = environment_key(first, "3.11")
    assert len(key) == 16
    same = structs.replace(first.spec, name="other", description="words", generations=("v4",))
    assert environment_key(dataclasses.replace(first, spec=same), "3.11") == key


@pytest.mark.parametrize(
    "change",
    [
        {"imports": ()},
        {"variables": {"A": "2"}},
        {"libtpu_flags": ("--a=1",)},
        {"os_packages": {"a": "1"}},
    ],
)
def test_the_key_changes_with_everything_that_is_installed_set_or_verified(change):
    first = make_pinned({"six": ("1.17.0", A)}, imports=("six",), variables={"A": "1"})
    other = dataclasses.replace(first, spec=structs.replace(first.spec, **change))
    assert environment_key(other, "3.11") != environment_key(first, "3.11")
    assert environment_key(make_pinned({"six": ("1.17.0", B)}), "3.11") != environment_key(
        make_pinned({"six": ("1.17.0", A)}), "3.11"
    )


def test_the_key_differs_between_pythons_and_machines_and_a_foreign_one_is_refused():
    pinned = make_pinned({"six": ("1.17.0", A)}, python=("3.11", "3.12"))
    assert environment_key(pinned, "3.11") != environment_key(pinned, "3.12")
    assert environment_key(pinned, "3.11", "aarch64") != environment_key(pinned, "3.11", "x86_64")
    with pytest.raises(BadManifestError, match=r"not for Python 3\.10, only for 3\.11, 3\.12"):
        environment_key(pinned, "3.10")


def test_a_host_gets_the_installer_the_exact_versions_and_what_to_verify():
    pinned = make_pinned({"six": ("1.17.0", A)}, imports=("six",), variables={"A": "1"})
    files = environment_files(pinned, "3.11", b"print()")
    assert files["env_install.py"] == b"print()"
    assert files["requirements.txt"] == f"six==1.17.0 --hash=sha256:{A}\n".encode()
    request = json.loads(files["env.json"])
    assert request["key"] == environment_key(pinned, "3.11")
    assert (request["imports"], request["variables"]) == (["six"], {"A": "1"})


def test_flags_become_the_variables_that_libtpu_and_xla_read():
    spec = EnvironmentSpec("e", ("3.11",), libtpu_flags=("--a=1", "--b"), xla_flags=("--c",))
    assert run_variables(spec) == {"LIBTPU_INIT_ARGS": "--a=1 --b", "XLA_FLAGS": "--c"}


def test_a_frozen_environment_reads_back_the_same():
    pinned = make_pinned({"six": ("1.17.0", A)}, imports=("six",))
    found = parse_frozen(pinned.content)
    assert (found, found.ref) == (pinned, pinned.ref)
    older = pinned.content.replace(b'"probe"', b'"no_more": 1, "probe"')
    assert parse_frozen(older).ref.spec == hashlib.sha256(older).hexdigest()
    shipped = pin(read_environment("demo-cpu", Path("/nowhere")))
    assert {environment_key(shipped, minor) for minor in shipped.spec.python}.__len__() == 4


@pytest.mark.parametrize("content", [b"", b"[]", b'{"spec": 1}'])
def test_frozen_bytes_that_are_no_environment_are_refused(content):
    with pytest.raises(BadManifestError, match="cannot be read"):
        parse_frozen(content)


def test_a_derived_environment_has_the_new_versions_in_the_place_of_the_old_and_nobody_saw_it():
    base = read_environment("jax-tpu", Path("/nowhere"))
    spec = derive(base.spec, "mine", versions=["libtpu==0.0.50", "einops==0.8.1"], files=[])
    assert spec.requirements == ("jax==0.12.0.1", "jaxlib==0.12.0.1", "libtpu==0.0.50", "einops==0.8.1")
    assert (spec.verified, spec.variables) == (False, base.spec.variables)
    again, problems = parse_environment(parse_marked(new_environment(base, spec), "mine"), "mine")
    assert (again, problems) == (spec, [])
