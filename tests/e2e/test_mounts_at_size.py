"""A bucket on two hosts at once, by the real gcsfuse: very many files, a large checkpoint, a slow bucket."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.e2e.test_mounts import make_tree_bucket
from tests.support.cache import cached, link_tree, run_commands
from tests.support.require import require_gcsfuse, require_isolated_hosts
from tests.support.session import Session, open_session
from tests.support.soak import soak

HOSTS = 2
UP = ("up", "v4-16", "big", "--spot", "--pay", "--zone", "us-central2-b")
TREE, FLAT = "/mnt/tree", "/mnt/flat"
OF_HOSTS = 25
"""So many each host writes itself; the rest comes past gcsfuse, which takes ten times as long."""
SLOW_S = 4.0
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

ORBAX = "0.12.8"
CHECKPOINT = """
import hashlib, sys
import numpy, orbax.checkpoint
verb, path, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
checkpointer = orbax.checkpoint.PyTreeCheckpointer()
if verb == "save":
    block = numpy.random.default_rng(1).integers(0, 1 << 63, size // 80)
    tree = {"w%d" % number: block + number for number in range(10)}
    checkpointer.save(path, tree)
else:
    tree = checkpointer.restore(path)
found = hashlib.sha256()
for key in sorted(tree):
    found.update(numpy.ascontiguousarray(tree[key]))
print(sum(each.nbytes for each in tree.values()), found.hexdigest())
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Two hosts with a bucket that has a hierarchical namespace, and one that has not."""
    require_isolated_hosts()
    program = require_gcsfuse()
    with open_session("--instant", "--hosts", "isolated") as made:
        made.environ["TPUCTL_GCSFUSE"] = program
        make_tree_bucket(made)
        mounts = (f"gs://tree-bucket:{TREE}:checkpoint", f"gs://sim-bucket/flat:{FLAT}:checkpoint")
        made.type(*UP, "--mount", mounts[0], "--mount", mounts[1], within_s=300)
        yield made


@pytest.fixture
def seen_by_hosts() -> Iterator[Path]:
    """A folder of this machine that hosts see: their /tmp is their own."""
    folder = Path(tempfile.mkdtemp(prefix="tpuctl-mounts-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def on(session: Session, script: str, *chosen: str) -> list[str]:
    """What the workers print, in their order."""
    out = session.type("exec", "big", *chosen, "--json", "--", "sh", "-c", script, within_s=600).stdout
    found = json.loads(out)
    return [str(row["stdout"]).strip() for row in (found if isinstance(found, list) else found["workers"])]


@dataclass(frozen=True)
class Bucket:
    """sim-bucket, asked past gcsfuse."""

    connection: HTTPConnection
    token: str

    def write(self, name: str, content: str) -> None:
        self._ask(f"/upload/storage/v1/b/sim-bucket/o?uploadType=media&name={quote(name, safe='')}", content)

    def copy(self, name: str, others: list[str]) -> None:
        """In one request (docs.cloud.google.com/storage/docs/batch): a third of the processor time."""
        source = f"/storage/v1/b/sim-bucket/o/{quote(name, safe='')}/copyTo/b/sim-bucket/o"
        calls = [f"POST {source}/{quote(other, safe='')} HTTP/1.1\r\nContent-Length: 0" for other in others]
        parts = [f"--part\r\nContent-Type: application/http\r\n\r\n{call}\r\n\r\n\r\n" for call in calls]
        said = self._ask("/batch/storage/v1", "".join(parts) + "--part--\r\n", "multipart/mixed; boundary=part")
        assert said.count(b"200 OK") == len(others), said

    def _ask(self, where: str, body: str, kind: str = "text/plain") -> bytes:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        self.connection.request("POST", where, body, headers)
        answer = self.connection.getresponse()
        said = answer.read()
        assert answer.status == 200, said
        return said


@pytest.mark.parametrize("files", [soak(1_500), soak(10_000)])
def test_thousands_of_files_of_one_folder_are_listed_by_every_host(session: Session, files: int) -> None:
    """More than Cloud Storage lists in a page of its own choice."""
    info = session.sim()
    folder = f"many{files}"
    on(session, f"mkdir {FLAT}/{folder}", "--worker", "0")
    on(session, f"for n in $(seq {OF_HOSTS}); do echo $n > {FLAT}/{folder}/$(hostname)-$n; done")

    with closing(HTTPConnection(urlsplit(info.http).netloc, timeout=30)) as connection:
        bucket = Bucket(connection, info.token)
        for number in (0, 777):
            bucket.write(f"flat/{folder}/{number:06d}", str(number))
        others = [number for number in range(1, files - HOSTS * OF_HOSTS) if number != 777]
        for first in range(0, len(others), 100):
            copies = [f"flat/{folder}/{each:06d}" for each in others[first : first + 100]]
            bucket.copy(f"flat/{folder}/000000", copies)
    began = time.monotonic()
    assert on(session, f"ls {FLAT}/{folder} | wc -l") == [str(files)] * HOSTS
    print(f"{files} files listed by {HOSTS} hosts in {time.monotonic() - began:.1f} s")
    assert on(session, f"cat {FLAT}/{folder}/000777") == ["777"] * HOSTS


def install_orbax(folder: Path) -> None:
    """With all that it needs, 600 MB; compiled is what an import takes."""

    def install(made: Path) -> None:
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--upgrade", "--target", made)
        run_commands((*pip, f"orbax-checkpoint=={ORBAX}"))
        run_commands((sys.executable, "-c", "import orbax.checkpoint"), PYTHONPATH=str(made))

    link_tree(cached(f"orbax-{ORBAX}-{sys.implementation.cache_tag}", install), folder)


@pytest.mark.parametrize(("readers", "size"), [("1", 50_000_000), soak("0-1", 500_000_000)])
def test_a_large_checkpoint_is_read_back_by_other_hosts(
    session: Session, seen_by_hosts: Path, readers: str, size: int
) -> None:
    """By orbax, which writes beside its place and renames the folder at the end."""
    if Path(sys.executable).is_relative_to("/tmp"):
        pytest.skip("needs a Python outside of /tmp: hosts have one of their own")
    install_orbax(seen_by_hosts / "packages")
    (seen_by_hosts / "checkpoint.py").write_text(CHECKPOINT)
    words = f"PYTHONPATH={seen_by_hosts}/packages {sys.executable} {seen_by_hosts}/checkpoint.py"
    path = f"{TREE}/checkpoint-{readers}"
    began = time.monotonic()
    [wrote] = on(session, f"{words} save {path} {size}", "--worker", "0")
    wrote_s, began = time.monotonic() - began, time.monotonic()
    assert int(wrote.split()[0]) == size
    assert set(on(session, f"{words} restore {path} {size}", "--worker", readers)) == {wrote}
    print(f"{size} bytes by orbax: written in {wrote_s:.1f} s, read in {time.monotonic() - began:.1f} s")


def test_all_hosts_wait_for_a_slow_bucket_at_the_same_time(session: Session) -> None:
    """What takes time is to wait for answers of the bucket, not this machine's processors."""
    session.type("sim", "fault", "storage-slow-reads", "--set", f"seconds={SLOW_S}")
    try:
        session.type("mount", "add", "gs://sim-bucket/more:/mnt/more:checkpoint")
    finally:
        session.type("sim", "fault", "--clear")
    started = on(session, "stat -c %Y /proc/$(pgrep -f '[g]csfuse.*/mnt/more$')")
    assert max(map(int, started)) - min(map(int, started)) <= SLOW_S
