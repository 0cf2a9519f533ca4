"""obstore: Rust's object_store, which speaks the XML API."""

import os

import obstore
from checks import BUCKET, check, main, raises
from obstore.store import GCSStore

store = GCSStore(BUCKET, prefix="obstore")


@check
def put_and_get():
    """put, get, head"""
    written = obstore.put(store, "a/b c.txt", b"hello")
    assert written["e_tag"]
    got = obstore.get(store, "a/b c.txt")
    assert bytes(got.bytes()) == b"hello"
    head = obstore.head(store, "a/b c.txt")
    assert (head["size"], head["path"]) == (5, "a/b c.txt")
    return f"version {head['version']}"


@check
def odd_names():
    """names that must be escaped"""
    for name in ("grüße/雪", "a+b&c=d", "q?x#y", "per%cent", "<xml>"):
        obstore.put(store, f"odd/{name}", name.encode())
        assert bytes(obstore.get(store, f"odd/{name}").bytes()) == name.encode()
    names = [row["path"] for page in obstore.list(store, "odd") for row in page]
    assert len(names) == 5, names


@check
def ranges():
    """ranges"""
    obstore.put(store, "r", bytes(range(100)))
    assert bytes(obstore.get_range(store, "r", start=10, end=20)) == bytes(range(10, 20))
    found = obstore.get_ranges(store, "r", starts=[0, 90], lengths=[5, 10])
    assert [bytes(each) for each in found] == [bytes(range(5)), bytes(range(90, 100))]
    assert bytes(obstore.get(store, "r", options={"range": {"suffix": 3}}).bytes()) == bytes([97, 98, 99])


@check
def conditions():
    """conditional get"""
    tag = obstore.put(store, "cond", b"1")["e_tag"]
    assert bytes(obstore.get(store, "cond", options={"if_match": tag}).bytes()) == b"1"
    raises(obstore.exceptions.PreconditionError, obstore.get, store, "cond", options={"if_match": '"x"'})
    raises(obstore.exceptions.NotModifiedError, obstore.get, store, "cond", options={"if_none_match": tag})


@check
def create_and_update():
    """put that creates, and put that replaces one version"""
    written = obstore.put(store, "once", b"1", mode="create")
    raises(obstore.exceptions.AlreadyExistsError, obstore.put, store, "once", b"2", mode="create")
    obstore.put(store, "once", b"2", mode={"version": written["version"]})
    raises(
        obstore.exceptions.PreconditionError,
        obstore.put,
        store,
        "once",
        b"3",
        mode={"version": written["version"]},
    )
    assert bytes(obstore.get(store, "once").bytes()) == b"2"


@check
def in_parts():
    """a multipart upload of 23 MB, and one that creates"""
    content = os.urandom(23_000_000)
    obstore.put(store, "big", content, use_multipart=True, chunk_size=5 * 2**20, max_concurrency=4)
    assert bytes(obstore.get(store, "big").bytes()) == content


@check
def writer():
    """a writer"""
    with obstore.open_writer(store, "w", buffer_size=5 * 2**20) as stream:
        for _ in range(12):
            stream.write(b"x" * 2**20)
    assert obstore.head(store, "w")["size"] == 12 * 2**20


@check
def attributes():
    """attributes come back"""
    asked = {"Content-Type": "text/x-odd", "Cache-Control": "no-cache", "Content-Language": "de", "step": "12"}
    obstore.put(store, "attr", b"x", attributes=asked)
    found = obstore.get(store, "attr").attributes
    assert {key: found.get(key) for key in asked} == asked, found


@check
def listing():
    """a list of 1200 in pages, with an offset and with a delimiter"""
    for number in range(1200):
        obstore.put(store, f"many/{number:04}", b"")
    names = [row["path"] for page in obstore.list(store, "many") for row in page]
    assert names == [f"many/{number:04}" for number in range(1200)]
    rest = [row["path"] for page in obstore.list(store, "many", offset="many/1197") for row in page]
    assert rest == ["many/1198", "many/1199"]
    one = obstore.list_with_delimiter(store)
    assert "many" in one["common_prefixes"]


@check
def copying():
    """copy, copy that does not replace, rename"""
    obstore.put(store, "from", b"1", attributes={"Content-Type": "text/x-odd"})
    obstore.copy(store, "from", "to")
    assert obstore.get(store, "to").attributes["Content-Type"] == "text/x-odd"
    raises(obstore.exceptions.AlreadyExistsError, obstore.copy, store, "from", "to", overwrite=False)
    obstore.rename(store, "from", "renamed")
    raises(FileNotFoundError, obstore.head, store, "from")


@check
def removal():
    """delete of one and of several"""
    obstore.delete(store, "to")
    raises(FileNotFoundError, obstore.get, store, "to")
    obstore.delete(store, [f"many/{number:04}" for number in range(50)])
    assert sum(len(page) for page in obstore.list(store, "many")) == 1150


main()
