"""Round trips of knob values through each library's spelling and the user's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.comm_tuning.knobs.library import MEANING, KnobLibrary, Spelling, libraries
from hvscale.comm_tuning.knobs.values import (
    Bytes,
    Milliseconds,
    Names,
    OneOf,
    Switch,
    Value,
    Values,
    WholeNumber,
    nearest_value,
)

SPELLINGS = [(library, one) for library in libraries() for one in library.spellings]
each_spelling = pytest.mark.parametrize(
    ("library", "spelling"), SPELLINGS, ids=[f"{library.key}-{one.knob}" for library, one in SPELLINGS]
)


def values_of(values: Values) -> st.SearchStrategy[Value]:
    match values:
        case Switch():
            return st.booleans()
        case OneOf():
            return st.sampled_from(list(values.words))
        case WholeNumber():
            return st.integers(values.lowest, values.highest)
        case Milliseconds():
            return st.floats(values.lowest, allow_nan=False, allow_infinity=False)
        case Names():
            name = st.sampled_from(values.known) if values.known else st.from_regex(values.pattern, fullmatch=True)
            # UCX shows no more than 127 characters of a value.
            lists = st.lists(name, min_size=1, max_size=8 if values.several else 1, unique=True)
            return lists.filter(lambda names: len(names) == 1 or values.alone not in names).map(tuple)
    raise AssertionError(values)


@each_spelling
@given(data=st.data())
def test_values_round_trip(library: KnobLibrary, spelling: Spelling, data: st.DataObject) -> None:
    value = data.draw(values_of(spelling.values))
    assert spelling.read(spelling.write(value)) == value
    assert spelling.values.parse(spelling.values.show(value)) == value


def test_a_name_that_stands_for_all_stands_alone() -> None:
    """UCX refuses UCX_TLS=all,mm."""
    values = Names("transports", known=("all", "mm", "tcp"), alone="all")
    assert values.parse("all") == ("all",)
    assert values.parse("mm,tcp") == ("mm", "tcp")
    with pytest.raises(ValueError, match="all,mm"):
        values.parse("all,mm")


@given(data=st.data())
def test_libraries_parse_the_same_text_alike(data: st.DataObject) -> None:
    _, first = data.draw(st.sampled_from(SPELLINGS))
    _, second = data.draw(st.sampled_from([it for it in SPELLINGS if it[1].knob == first.knob]))
    words = first.values.show(data.draw(values_of(first.values)))
    try:
        same = second.values.parse(words)
    except ValueError:
        return
    assert second.values.show(same) == words


@each_spelling
@given(text=st.text())
def test_invalid_text_raises_only_value_error(library: KnobLibrary, spelling: Spelling, text: str) -> None:
    for understand in (spelling.values.parse, spelling.values.read):
        try:
            value = understand(text)
        except ValueError:
            continue
        assert spelling.read(spelling.write(value)) == value


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("0", 0), ("65536", 65536), ("64K", 65536), ("64 KiB", 65536), ("1m", 1 << 20), ("2GB", 2 << 30)],
)
def test_sizes_are_in_units_of_1024(text: str, bytes_: int) -> None:
    assert Bytes().parse(text) == bytes_


@pytest.mark.parametrize(("text", "milliseconds"), [("2.5", 2.5), ("2.5ms", 2.5), ("1MS", 1.0)])
def test_times_are_in_milliseconds(text: str, milliseconds: float) -> None:
    assert Milliseconds().parse(text) == milliseconds


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (Names("devices"), "a,,b"),
        (Names("devices"), "-a"),
        (Names("devices"), "a,a"),
        (Names("transports", known=("tcp", "self")), "tcp,udp"),
        (Names("adapter", several=False), "a,b"),
    ],
)
def test_names_that_are_refused(names: Names, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        names.parse(text)


def test_names_are_shown_as_they_are_typed() -> None:
    assert Names("devices").show("mlx5_0") == "mlx5_0"
    assert Names("devices", prefix="^").write(("a", "b")) == "^a,b"
    with pytest.raises(ValueError, match="a,b"):
        Names("devices", prefix="^").read("a,b")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (Switch(), "perhaps"),
        (OneOf.of("ring"), "rink"),
        (WholeNumber(1, 8), "9"),
        (WholeNumber(1, 8), "0"),
        (Bytes(), "1T"),
        (Milliseconds(1), "0.5"),
        (Milliseconds(), "inf"),
    ],
)
def test_the_error_names_the_value(values: Values, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        values.parse(text)
    with pytest.raises(ValueError, match=text):
        values.read(text)


def test_the_limits_are_valid_values() -> None:
    assert [WholeNumber(1, 8).parse(text) for text in ("1", "8")] == [1, 8]
    assert WholeNumber(1).parse("1000000000") == 10**9
    assert Milliseconds(1).parse("1") == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (WholeNumber(1), "1 or more"),
        (WholeNumber(1, 8), "1 to 8"),
        (Milliseconds(), "0 or more"),
        (OneOf.of("ring", "tree"), "ring, tree"),
        (Names("adapter", several=False), "adapter"),
        (
            Names("transports", known=("all", "tcp"), alone="all"),
            "transports, separated by commas, or all (all, tcp)",
        ),
    ],
)
def test_the_valid_values_are_described(values: Values, words: str) -> None:
    assert values.accepted == words


@pytest.mark.parametrize(
    ("text", "expected"), [("rimg", "ring"), ("tree,rimg", "tree,ring"), ("ring", None), ("something", None)]
)
def test_the_nearest_value_is_suggested(text: str, expected: str | None) -> None:
    assert nearest_value(text, OneOf.of("ring", "tree")) == expected


def test_a_switch_is_shown_in_one_way() -> None:
    assert [Switch().show(value) for value in (True, False)] == ["on", "off"]


def test_each_knob_has_one_meaning_and_some_library() -> None:
    assert {one.knob for _, one in SPELLINGS} == set(MEANING)


@each_spelling
def test_variables_of_one_spelling_must_agree(library: KnobLibrary, spelling: Spelling) -> None:
    if len(spelling.variables) < 2:
        return
    one, other = list(spelling.variables)[:2]
    with pytest.raises(ValueError, match="differ"):
        spelling.read({**dict.fromkeys(spelling.variables, "2"), one: "1", other: "2"})
