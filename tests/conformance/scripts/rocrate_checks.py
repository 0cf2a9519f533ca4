"""A crate with what `manifest export --as rocrate` writes."""

from pathlib import Path

from checks import WORK, check, main
from rocrate.rocrate import ROCrate


def crate():
    folder = Path(WORK, "crate")
    folder.mkdir(exist_ok=True)
    (folder / "ro-crate-metadata.json").write_text(Path(WORK, "rocrate.json").read_text())
    (folder / "run.json").write_text("{}")
    return ROCrate(folder)


@check
def described():
    """a crate of the run, with its manifest"""
    read = crate()
    assert read.root_dataset["name"] == "run first"
    assert [part.id for part in read.root_dataset["hasPart"]] == ["run.json"]


@check
def linked():
    """the action with its code and its person, all in the crate"""
    action = crate().dereference("#run-first")
    assert action.type == "CreateAction"
    return action["instrument"]["name"], action["agent"]["name"]


@check
def written():
    """the crate written again"""
    crate().write(Path(WORK, "again"))
    assert Path(WORK, "again", "run.json").exists()


if __name__ == "__main__":
    main()
