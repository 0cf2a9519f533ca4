"""pyarrow's GcsFileSystem, which is Google's library for C++."""

import datetime
import os
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from checks import BUCKET, check, main, raises
from pyarrow import fs

# The token is in the path of this endpoint, as that library keeps its own to encrypted connections.
HOST = urlsplit(os.environ["STORAGE_EMULATOR_HOST"])
LATER = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
gcs = fs.GcsFileSystem(
    access_token=os.environ["GOOGLE_BEARER_TOKEN"],
    credential_token_expiration=LATER,
    scheme="http",
    endpoint_override=HOST.netloc,
    retry_time_limit=datetime.timedelta(seconds=20),
)
ROOT = f"{BUCKET}/arrow"


def write(path, content):
    with gcs.open_output_stream(f"{ROOT}/{path}") as stream:
        stream.write(content)


def read(path):
    with gcs.open_input_stream(f"{ROOT}/{path}") as stream:
        return stream.read()


@check
def small():
    """write and read a small file"""
    write("a.txt", b"hello")
    assert read("a.txt") == b"hello"


@check
def large():
    """a file of 20 MB, written in pieces and read by ranges"""
    content = os.urandom(20_000_000)
    write("big", content)
    with gcs.open_input_file(f"{ROOT}/big") as file:
        assert file.size() == len(content)
        assert file.read_at(1000, 12_345_678) == content[12_345_678:12_346_678]
        assert file.read() == content


@check
def metadata():
    """metadata of a file"""
    with gcs.open_output_stream(f"{ROOT}/m", metadata={"Content-Type": "text/x-test"}) as stream:
        stream.write(b"x")
    with gcs.open_input_stream(f"{ROOT}/m") as stream:
        assert stream.metadata()["Content-Type"] == b"text/x-test"


@check
def listing():
    """a directory is listed, and below it"""
    gcs.create_dir(f"{ROOT}/d/e")
    write("d/one", b"1")
    write("d/e/two", b"22")
    shallow = gcs.get_file_info(fs.FileSelector(f"{ROOT}/d"))
    assert {(each.base_name, each.type) for each in shallow} == {
        ("one", fs.FileType.File),
        ("e", fs.FileType.Directory),
    }
    deep = gcs.get_file_info(fs.FileSelector(f"{ROOT}/d", recursive=True))
    assert f"{ROOT}/d/e/two" in {each.path for each in deep}


@check
def kinds():
    """a file, a directory, and what is not there"""
    found = gcs.get_file_info([f"{ROOT}/d/one", f"{ROOT}/d", f"{ROOT}/none"])
    assert [each.type for each in found] == [fs.FileType.File, fs.FileType.Directory, fs.FileType.NotFound]


@check
def copy_and_move():
    """a file is copied and moved"""
    gcs.copy_file(f"{ROOT}/a.txt", f"{ROOT}/b.txt")
    gcs.move(f"{ROOT}/b.txt", f"{ROOT}/c.txt")
    assert read("c.txt") == b"hello"
    assert gcs.get_file_info(f"{ROOT}/b.txt").type == fs.FileType.NotFound


@check
def missing():
    """what is not there is FileNotFoundError"""
    raises(FileNotFoundError, read, "none")


@check
def delete():
    """files and directories are deleted"""
    gcs.delete_file(f"{ROOT}/c.txt")
    gcs.create_dir(f"{ROOT}/x/y")
    gcs.delete_dir(f"{ROOT}/x")
    assert gcs.get_file_info(f"{ROOT}/x").type == fs.FileType.NotFound
    gcs.delete_dir(f"{ROOT}/d")
    assert gcs.get_file_info(f"{ROOT}/d").type == fs.FileType.NotFound


@check
def parquet():
    """a data set of parquet files, with partitions"""
    table = pa.table({"part": ["a", "a", "b"], "value": [1, 2, 3]})
    pq.write_to_dataset(table, f"{ROOT}/set", partition_cols=["part"], filesystem=gcs)
    back = pq.read_table(f"{ROOT}/set", filesystem=gcs, filters=[("part", "=", "a")])
    assert sorted(back["value"].to_pylist()) == [1, 2]


@check
def buckets():
    """a bucket is made, emptied and deleted"""
    made = fs.GcsFileSystem(
        access_token=os.environ["GOOGLE_BEARER_TOKEN"],
        credential_token_expiration=LATER,
        scheme="http",
        endpoint_override=HOST.netloc,
        project_id="sim-project",
        default_bucket_location="us-central2",
    )
    made.create_dir("arrow-bucket")
    with made.open_output_stream("arrow-bucket/a/b") as stream:
        stream.write(b"x")
    made.delete_dir_contents("arrow-bucket")
    made.delete_dir("arrow-bucket")
    assert made.get_file_info("arrow-bucket").type == fs.FileType.NotFound


main()
