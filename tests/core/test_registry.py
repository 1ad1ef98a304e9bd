"""Registries: objects by name, each loaded from the file that registers it."""

import sys
from pathlib import Path

import pytest

from hvscale.core.errors import RequestError
from hvscale.core.registry import Registry
from hvscale.core.suggest import nearest_name

PACKAGE = "things_for_the_registry"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[int]:
    """A registry of numbers, registered by generated modules that import it."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").touch()
    for file, numbers in {
        "one": {"one": 1},
        "two": {"two": 2, "two:twice": 4},
        "thirty_three": {"thirty-three": 33},
    }.items():
        lines = "".join(f"things.register({name!r}, {number})\n" for name, number in numbers.items())
        (folder / f"{file}.py").write_text(f"from {PACKAGE} import things\n{lines}")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    registry_of_numbers: Registry[int] = Registry("number", PACKAGE)
    __import__(PACKAGE)
    monkeypatch.setattr(sys.modules[PACKAGE], "things", registry_of_numbers, raising=False)
    return registry_of_numbers


def test_a_name_loads_only_its_file(registry: Registry[int]) -> None:
    assert registry.get("two:twice") == 4
    assert registry.get("thirty-three") == 33
    assert f"{PACKAGE}.one" not in sys.modules


def test_entries_are_sorted_by_name(registry: Registry[int]) -> None:
    assert registry.all() == {"one": 1, "thirty-three": 33, "two": 2, "two:twice": 4}
    assert registry.names() == ["one", "thirty-three", "two", "two:twice"]


def test_an_unknown_name_suggests_the_nearest(registry: Registry[int]) -> None:
    with pytest.raises(RequestError) as raised:
        registry.get("twoo", "--number")
    assert str(raised.value) == (
        "--number twoo: unknown number; did you mean two? Known: one, thirty-three, two, two:twice"
    )
    with pytest.raises(RequestError, match=r"^xyz: unknown number\. Known: one, "):
        registry.get("xyz")


def test_a_name_cannot_be_registered_twice(registry: Registry[int]) -> None:
    registry.register("five", 5)
    with pytest.raises(ValueError, match="'five'"):
        registry.register("five", 6)


def test_the_nearest_name_ignores_case() -> None:
    assert nearest_name("RESNET50", ["resnet50", "vgg16"]) == "resnet50"
    assert nearest_name("nothing", ["resnet50", "vgg16"]) is None
