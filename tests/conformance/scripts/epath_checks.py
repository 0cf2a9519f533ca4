"""etils.epath on gs://."""

from checks import BUCKET, check, main, raises
from etils import epath

ROOT = epath.Path(f"gs://{BUCKET}/epath")


@check
def text_and_bytes():
    """write_text, read_text, write_bytes"""
    (ROOT / "a.txt").write_text("grüße")
    assert (ROOT / "a.txt").read_text() == "grüße"
    (ROOT / "b.bin").write_bytes(b"\0\1")
    assert (ROOT / "b.bin").read_bytes() == b"\0\1"


@check
def folders():
    """mkdir, exists, iterdir, glob, stat"""
    (ROOT / "d/e").mkdir(parents=True, exist_ok=True)
    (ROOT / "d/e/f.txt").write_text("x")
    assert (ROOT / "d").is_dir()
    assert not (ROOT / "nothing").exists()
    assert [each.name for each in (ROOT / "d/e").iterdir()] == ["f.txt"]
    assert [each.name for each in ROOT.glob("*.txt")] == ["a.txt"]
    assert (ROOT / "a.txt").stat().length == 7


@check
def changes():
    """copy, rename, unlink, rmtree"""
    (ROOT / "a.txt").copy(ROOT / "copy.txt")
    (ROOT / "copy.txt").rename(ROOT / "renamed.txt")
    assert (ROOT / "renamed.txt").read_text() == "grüße"
    (ROOT / "renamed.txt").unlink()
    raises(FileNotFoundError, (ROOT / "renamed.txt").read_text)
    (ROOT / "d").rmtree()
    assert not (ROOT / "d/e/f.txt").exists()


main()
