"""tensorstore's gcs driver."""

import numpy as np
import tensorstore as ts
from checks import BUCKET, check, main


def kvstore(prefix):
    return ts.KvStore.open({"driver": "gcs", "bucket": BUCKET, "path": f"ts/{prefix}/"}).result(timeout=30)


@check
def key_values():
    """write, read, list, delete"""
    store = kvstore("kv")
    store.write("a", b"hello").result(timeout=30)
    assert store.read("a").result(timeout=30).value == b"hello"
    store.write("b/c", b"x").result(timeout=30)
    assert store.list().result(timeout=30) == [b"a", b"b/c"]
    store.write("a", None).result(timeout=30)
    assert store.read("a").result(timeout=30).state == "missing"
    store.delete_range(ts.KvStore.KeyRange()).result(timeout=30)
    assert store.list().result(timeout=30) == []


@check
def conditional():
    """conditional writes and reads"""
    store = kvstore("cond")
    missing = store.read("a").result(timeout=30).stamp.generation
    store.write("a", b"1", if_equal=missing).result(timeout=30)
    generation = store.read("a").result(timeout=30).stamp.generation
    store.write("a", b"2", if_equal=generation).result(timeout=30)
    same = store.read("a", if_not_equal=store.read("a").result(timeout=30).stamp.generation).result(timeout=30)
    assert same.state == "unspecified", same
    lost = store.write("a", b"3", if_equal=generation).result(timeout=30)
    assert store.read("a").result(timeout=30).value == b"2", lost


@check
def zarr():
    """a zarr array, written and read in chunks"""
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "gcs", "bucket": BUCKET, "path": "ts/zarr/"},
        "metadata": {"shape": [500, 400], "chunks": [100, 100], "dtype": "<f4"},
    }
    data = np.random.default_rng(0).random((500, 400), dtype=np.float32)
    ts.open(spec, create=True).result(timeout=60).write(data).result(timeout=60)
    again = ts.open({**spec}, open=True).result(timeout=60)
    assert np.array_equal(again[100:300, 50:60].read().result(timeout=60), data[100:300, 50:60])


@check
def ocdbt():
    """an OCDBT database with 500 keys"""
    spec = {"driver": "ocdbt", "base": f"gs://{BUCKET}/ts/ocdbt/"}
    store = ts.KvStore.open(spec).result(timeout=30)
    writes = [store.write(f"{number:04}", b"x" * number) for number in range(500)]
    for each in writes:
        each.result(timeout=60)
    again = ts.KvStore.open(spec).result(timeout=30)
    assert len(again.list().result(timeout=60)) == 500
    assert len(again.read("0499").result(timeout=60).value) == 499


main()
