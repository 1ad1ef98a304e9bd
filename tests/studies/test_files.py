"""The files that launch options name, as a study compares them when it is resumed."""

from pathlib import Path

from hvscale.launch.options import LaunchOptions
from hvscale.studies.base import changed_parts, difference, files_of
from hvscale.studies.document import StudyDocument


class Document(StudyDocument):
    schema_: str = "hvscale/files/1"
    launch: LaunchOptions


def document(folder: Path, **options: Path) -> Document:
    launch = LaunchOptions.of(**options)
    return Document(folder=str(folder), launch=launch, files=files_of([launch]))


def test_a_hostfile_is_compared_by_its_contents(tmp_path: Path) -> None:
    for name in ("hosts", "copy"):
        (tmp_path / name).write_text("node-1 slots=2\n")
    first = document(tmp_path, hostfile=tmp_path / "hosts")
    assert difference(first, document(tmp_path, hostfile=tmp_path / "copy"), ("launch",)) is None
    assert difference(first, document(tmp_path), ("launch",)) == "its launch differs in hostfile"
    (tmp_path / "copy").write_text("node-1 slots=2\nnode-2 slots=2\n")
    other = document(tmp_path, hostfile=tmp_path / "copy")
    assert difference(first, other, ("launch",)) == "the contents of its hostfile differ"


def test_a_difference_names_the_options_that_differ() -> None:
    first, other = (
        Document(folder="study", launch=LaunchOptions.of(**options))
        for options in ({"np": 2, "placement": "netns"}, {"np": 4, "placement": "netns", "link": "1gbit"})
    )
    assert difference(first, other, ("launch",)) == "its launch differs in np, link"
    assert changed_parts({"knobs": ["binding"], "metric": None}, {"knobs": None, "metric": None}) == ["knobs"]
    assert changed_parts("weak", "strong") == []


def test_the_files_of_all_launches_count(tmp_path: Path) -> None:
    launches = []
    for name in ("first", "second", "third"):
        (tmp_path / name).write_text("a" if name == "third" else name)
        launches.append(LaunchOptions.of(settings=tmp_path / name))
    before = files_of(launches)
    assert len(before["settings"].split()) == 3
    (tmp_path / "first").write_text("other")
    assert files_of(launches) != before
    (tmp_path / "first").write_text("a")
    assert len(files_of(launches)["settings"].split()) == 2
