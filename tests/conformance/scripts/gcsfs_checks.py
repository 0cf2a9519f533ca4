"""gcsfs and fsspec."""

import os

import fsspec
import gcsfs
from checks import BUCKET, WORK, check, main, raises

TOKEN = "anon" if "STORAGE_EMULATOR_HOST" in os.environ else "google_default"
fs = gcsfs.GCSFileSystem(token=TOKEN, project="sim-project")
ROOT = f"{BUCKET}/gcsfs"


@check
def write_and_read():
    """write and read a small file"""
    with fs.open(f"{ROOT}/a.txt", "wb") as stream:
        stream.write(b"hello")
    assert fs.cat(f"{ROOT}/a.txt") == b"hello"


@check
def text_by_fsspec():
    """fsspec.open of gs:// in text mode"""
    with fsspec.open(f"gs://{ROOT}/t.txt", "w", token=TOKEN) as stream:
        stream.write("grüße")
    with fsspec.open(f"gs://{ROOT}/t.txt", token=TOKEN, mode="r") as stream:
        assert stream.read() == "grüße"


@check
def empty_file():
    """an empty file"""
    fs.touch(f"{ROOT}/empty")
    assert fs.info(f"{ROOT}/empty")["size"] == 0


@check
def many_chunks():
    """a file of 13 MB in chunks of 5 MiB, read back by ranges"""
    content = os.urandom(13_000_000)
    with fs.open(f"{ROOT}/big", "wb", block_size=5 * 2**20) as stream:
        stream.write(content)
    assert fs.cat(f"{ROOT}/big") == content
    assert fs.cat_file(f"{ROOT}/big", start=5_000_000, end=5_000_100) == content[5_000_000:5_000_100]
    with fs.open(f"{ROOT}/big", "rb", block_size=2**20) as stream:
        stream.seek(12_999_990)
        assert stream.read() == content[-10:]


@check
def exclusive():
    """exclusive creation loses to what is there"""
    fs.pipe_file(f"{ROOT}/lock", b"1", mode="create")
    raises(Exception, fs.pipe_file, f"{ROOT}/lock", b"2", mode="create")
    assert fs.cat(f"{ROOT}/lock") == b"1"


@check
def listing():
    """ls, find, glob, du, walk"""
    for name in ("l/1.txt", "l/2.txt", "l/sub/3.txt"):
        fs.pipe(f"{ROOT}/{name}", b"xx")
    fs.invalidate_cache()
    assert fs.ls(f"{ROOT}/l") == [f"{ROOT}/l/1.txt", f"{ROOT}/l/2.txt", f"{ROOT}/l/sub"]
    assert len(fs.find(f"{ROOT}/l")) == 3
    assert fs.glob(f"{ROOT}/l/?.txt") == [f"{ROOT}/l/1.txt", f"{ROOT}/l/2.txt"]
    assert fs.du(f"{ROOT}/l") == 6
    assert [len(files) for _, _, files in fs.walk(f"{ROOT}/l")] == [2, 1]


@check
def information():
    """info, exists, isdir, checksum"""
    info = fs.info(f"{ROOT}/l/1.txt")
    assert (info["size"], info["type"]) == (2, "file")
    assert fs.isdir(f"{ROOT}/l")
    assert not fs.exists(f"{ROOT}/nothing")
    raises(FileNotFoundError, fs.cat, f"{ROOT}/nothing")
    assert isinstance(fs.checksum(f"{ROOT}/l/1.txt"), int)


@check
def copying():
    """cp, mv, recursive mv"""
    fs.cp(f"{ROOT}/l/1.txt", f"{ROOT}/c/1.txt")
    fs.mv(f"{ROOT}/c/1.txt", f"{ROOT}/c/moved.txt")
    assert fs.find(f"{ROOT}/c") == [f"{ROOT}/c/moved.txt"]
    fs.mv(f"{ROOT}/l", f"{ROOT}/m", recursive=True)
    assert len(fs.find(f"{ROOT}/m")) == 3
    assert not fs.exists(f"{ROOT}/l/1.txt")


@check
def merging():
    """merge (compose)"""
    fs.pipe(f"{ROOT}/p1", b"one")
    fs.pipe(f"{ROOT}/p2", b"two")
    fs.merge(f"{ROOT}/p", [f"{ROOT}/p1", f"{ROOT}/p2"])
    assert fs.cat(f"{ROOT}/p") == b"onetwo"


@check
def metadata():
    """custom and fixed metadata"""
    fs.pipe(f"{ROOT}/meta", b"x")
    fs.setxattrs(f"{ROOT}/meta", content_type="text/x-odd", step="12")
    assert fs.getxattr(f"{ROOT}/meta", "step") == "12"
    assert fs.info(f"{ROOT}/meta")["contentType"] == "text/x-odd"


@check
def put_and_get():
    """put and get of folders"""
    source, target = os.path.join(WORK, "gcsfs-up"), os.path.join(WORK, "gcsfs-down")
    os.makedirs(os.path.join(source, "d"))
    for name in ("a", "d/b"):
        with open(os.path.join(source, name), "w") as stream:
            stream.write(name)
    fs.put(source + "/", f"{ROOT}/folder/", recursive=True)
    fs.get(f"{ROOT}/folder/", target + "/", recursive=True)
    with open(os.path.join(target, "d/b")) as stream:
        assert stream.read() == "d/b"


@check
def removal():
    """rm of one, of many and of a folder"""
    fs.rm(f"{ROOT}/a.txt")
    assert not fs.exists(f"{ROOT}/a.txt")
    fs.rm([f"{ROOT}/p1", f"{ROOT}/p2"])
    fs.rm(f"{ROOT}/m", recursive=True)
    fs.invalidate_cache()
    assert fs.find(f"{ROOT}/m") == []


@check
def buckets():
    """mkdir and rmdir of a bucket"""
    fs.mkdir("gcsfs-bucket")
    assert "gcsfs-bucket/" in fs.ls("") or "gcsfs-bucket" in fs.ls("")
    fs.rmdir("gcsfs-bucket")


@check
def versions():
    """a bucket with versions"""
    fs.mkdir("gcsfs-versions", enable_versioning=True)
    aware = gcsfs.GCSFileSystem(token=TOKEN, project="sim-project", version_aware=True)
    aware.pipe("gcsfs-versions/v", b"1")
    first = aware.info("gcsfs-versions/v")["generation"]
    aware.pipe("gcsfs-versions/v", b"2")
    assert aware.cat(f"gcsfs-versions/v#{first}") == b"1"
    assert aware.cat("gcsfs-versions/v") == b"2"
    assert len(aware.ls("gcsfs-versions", versions=True)) == 2


@check
def pandas_like():
    """a file object that is read by lines"""
    with fs.open(f"{ROOT}/lines", "w") as stream:
        stream.writelines(f"{number}\n" for number in range(1000))
    with fs.open(f"{ROOT}/lines", "r") as stream:
        assert sum(int(line) for line in stream) == 499_500


main()
