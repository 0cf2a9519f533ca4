"""zarr on gs://, by gcsfs."""

import os

import numpy as np
import zarr
from checks import BUCKET, check, main, raises

TOKEN = "anon" if "STORAGE_EMULATOR_HOST" in os.environ else "google_default"
OPTIONS = {"token": TOKEN, "project": "sim-project"}
ROOT = f"gs://{BUCKET}/zarr"
DATA = np.arange(10_000, dtype="f4").reshape(100, 100)


@check
def write_and_read():
    """an array in chunks, written and read"""
    array = zarr.create_array(
        f"{ROOT}/a", shape=DATA.shape, chunks=(30, 30), dtype="f4", storage_options=OPTIONS
    )
    array[:] = DATA
    back = zarr.open_array(f"{ROOT}/a", mode="r", storage_options=OPTIONS)
    np.testing.assert_array_equal(back[:], DATA)
    np.testing.assert_array_equal(back[35:70, 5], DATA[35:70, 5])


@check
def shards():
    """an array in shards, of which a chunk is a range"""
    kinds = {"shards": (50, 50), "chunks": (10, 10)}
    array = zarr.create_array(f"{ROOT}/s", shape=DATA.shape, dtype="f4", storage_options=OPTIONS, **kinds)
    array[:] = DATA
    back = zarr.open_array(f"{ROOT}/s", mode="r", storage_options=OPTIONS)
    np.testing.assert_array_equal(back[40:60, 40:60], DATA[40:60, 40:60])


@check
def groups():
    """a group with attributes, its members listed"""
    group = zarr.create_group(f"{ROOT}/g", storage_options=OPTIONS)
    group.attrs["who"] = "me"
    group.create_array("one", shape=(3,), dtype="i4")[:] = [1, 2, 3]
    back = zarr.open_group(f"{ROOT}/g", mode="r", storage_options=OPTIONS)
    assert back.attrs["who"] == "me"
    assert [name for name, _ in back.members()] == ["one"]


@check
def change():
    """a part is written again, and the array grows"""
    array = zarr.open_array(f"{ROOT}/a", mode="r+", storage_options=OPTIONS)
    array[:10] = 0
    array.resize((120, 100))
    back = zarr.open_array(f"{ROOT}/a", mode="r", storage_options=OPTIONS)
    assert back.shape == (120, 100)
    assert float(back[:10].sum()) == 0


@check
def missing():
    """what is not there is refused"""
    raises(FileNotFoundError, zarr.open_array, f"{ROOT}/none", mode="r", storage_options=OPTIONS)


main()
