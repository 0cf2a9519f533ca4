"""Input that somebody made to break what reads it: deep, huge, damaged. Each is refused, in seconds."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.memory.services import MemoryPlace
from tpuctl.config.load import machine_identity
from tpuctl.config.settings import BY_NAME, parse_value, resolve
from tpuctl.datasets.plan import parse_manifest as parse_pack
from tpuctl.envs.lock import parse_lock
from tpuctl.envs.pinned import parse_frozen
from tpuctl.errors import BadConfigError, BadManifestError, TpuctlError, UsageError
from tpuctl.fleet.load import FLEET_MAX, load_fleet
from tpuctl.lib.names import check_progress
from tpuctl.lib.text import parse_number
from tpuctl.model.receipt import parse_receipt
from tpuctl.money.letters import parse_trc_letter
from tpuctl.provenance.parts import read_manifest
from tpuctl.sim.world.catalog import load_catalog
from tpuctl.state.journal import decided_at
from tpuctl.transfer.tree import parse_tree
from tpuctl.workers.forward import parse_ports

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
DIGITS = "9" * 5000


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("read", "error"),
    [
        pytest.param(lambda _: parse_receipt(DEEP.encode(), "r"), UsageError, id="receipt"),
        pytest.param(
            lambda _: parse_lock(f"a = {'[' * 100_000}", "e"), BadManifestError, id="environment-lock"
        ),
        pytest.param(lambda _: parse_frozen(DEEP.encode()), BadManifestError, id="frozen-environment"),
        pytest.param(lambda _: parse_tree(DEEP.encode()), ValueError, id="tree"),
        pytest.param(lambda at: load_catalog(written(at / "c.yaml", "[" * 3000)), UsageError, id="catalog"),
        pytest.param(lambda at: read_manifest(written(at / "m.json", DEEP)), BadManifestError, id="manifest"),
        pytest.param(lambda _: check_progress(r"(\d{1,99999999999})"), ValueError, id="progress"),
        pytest.param(lambda _: parse_ports(DIGITS), UsageError, id="ports"),
        pytest.param(lambda _: parse_ports("٣:٣"), UsageError, id="arabic-ports"),
        pytest.param(
            lambda _: parse_value(BY_NAME["ssh_port"], DIGITS, "a file"), BadConfigError, id="setting"
        ),
        pytest.param(
            lambda _: parse_value(BY_NAME["ssh_port"], "٢٢", "a file"), BadConfigError, id="arabic-setting"
        ),
        pytest.param(
            lambda _: parse_trc_letter(f"{DIGITS} spot Cloud TPU v6e chips in zone us-east1-d"),
            UsageError,
            id="grant",
        ),
    ],
)
def test_what_is_made_to_break_its_reader_is_refused(
    read: Callable[[Path], object], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error) as refused:
        read(tmp_path)
    assert len(str(refused.value)) < 1000


def test_a_pack_without_a_readable_manifest_is_none() -> None:
    assert parse_pack(DEEP.encode()) is None


@pytest.mark.parametrize(
    ("word", "number"),
    [("0", 0), ("65535", 65535), ("", None), ("-1", None), ("٣", None), ("²", None), (DIGITS, None)],
)
def test_numbers_have_the_digits_that_everybody_types(word: str, number: int | None) -> None:
    assert parse_number(word) == number


@pytest.mark.parametrize("at", ["soon", None, float("nan"), {}, [], True])
def test_a_decision_without_a_time_is_the_oldest(at: object) -> None:
    assert decided_at({"at": at}) in (0.0, 1.0)
    assert decided_at({}) == 0.0
    assert decided_at({"at": 5}) == 5.0


def sparse(path: Path) -> None:
    path.touch()
    with path.open("r+b") as file:
        file.truncate(2 << 30)


def claims_more(path: Path) -> None:
    row = tarfile.TarInfo("run.json")
    row.size = 3 << 30
    path.write_bytes(row.tobuf() + b"{}" * 500)


def unpacks_to_more(path: Path) -> None:
    content = b"0" * (8 << 20)
    with tarfile.open(path, "w:gz") as archive:
        row = tarfile.TarInfo("run.json")
        row.size = len(content)
        archive.addfile(row, io.BytesIO(content))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("make", [sparse, claims_more, unpacks_to_more])
def test_a_file_that_would_fill_the_memory_is_refused_unread(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "run.tar"
    make(path)
    with pytest.raises(TpuctlError):
        read_manifest(str(path))


def test_a_machine_whose_id_is_a_folder_says_what_to_remove(tmp_path: Path) -> None:
    (tmp_path / "machine").mkdir()
    with pytest.raises(BadConfigError, match="is a directory") as refused:
        machine_identity(tmp_path)
    assert refused.value.hint == f"rmdir {tmp_path / 'machine'}"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("slices", "said"), [(FLEET_MAX + 1, "more than 2000"), (20_000, "larger than")])
def test_a_fleet_of_thousands_of_slices_is_refused_before_each_is_checked(
    slices: int, said: str, tmp_path: Path
) -> None:
    rows = "".join(f"    s{number}: {{type: v4-8}}\n" for number in range(slices))
    path = tmp_path / "tpuctl.yaml"
    path.write_text(f"fleet:\n  name: lab\n  slices:\n{rows}")
    with pytest.raises(BadConfigError, match=said):
        load_fleet(MemoryPlace().machine(), path, lambda: resolve([], tmp_path))
