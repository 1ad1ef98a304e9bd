"""The command for each number of ranks in a scaling study."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.core.numbers import parse_ranks
from hvscale.studies.scaling.work import Work

TRAIN = ["/usr/bin/hvscale", "train", "edsr"]


@given(st.lists(st.integers(1, 4096), min_size=1, unique=True))
def test_numbers_of_ranks_are_parsed(ranks: list[int]) -> None:
    assert parse_ranks(",".join(map(str, ranks))) == ranks
    assert parse_ranks(" , ".join(map(str, ranks))) == ranks


@given(st.text(max_size=8))
def test_any_text_gives_ranks_or_one_error(text: str) -> None:
    words = [word.strip() for word in text.split(",")]
    if all(word.isascii() and word.isdigit() and int(word) for word in words) and len(set(map(int, words))) == len(
        words
    ):
        assert parse_ranks(text) == [int(word) for word in words]
    else:
        with pytest.raises(RequestError, match="--np"):
            parse_ranks(text)


@pytest.mark.parametrize(
    ("given_batch", "at_1", "at_4"),
    [
        ([], "16", "4"),
        (["--batch-size", "64"], "64", "16"),
        (["--batch-size=8"], "8", "2"),
        (["--batch-size", "8", "--batch-size=12"], "12", "3"),
        (["--batch-size=12", "--batch-size", "8"], "8", "2"),
    ],
)
def test_the_trainer_s_batch_size_is_divided_among_the_ranks(given_batch: list[str], at_1: str, at_4: str) -> None:
    work = Work([*TRAIN, *given_batch], "strong")
    assert work.command_for(1)[-2:] == ["--batch-size", at_1]
    assert work.command_for(4)[-2:] == ["--batch-size", at_4]
    assert Work(work.command, "weak").command_for(4) == work.command


def test_a_batch_size_divided_by_the_user_is_not_divided_again() -> None:
    work = Work([*TRAIN, "--batch-size", "{64/np}", "--seed={np}"], "strong")
    assert work.command_for(4) == [*TRAIN, "--batch-size", "16", "--seed=4"]
    assert work.check([1, 4]) is None


def test_a_share_must_be_an_integer() -> None:
    with pytest.raises(RequestError, match=r"\{10/np\} cannot be divided by np 4"):
        Work(["run", "{10/np}"], "strong").check([1, 2, 4])


def test_other_braces_are_left_unchanged() -> None:
    words = ["run", "{np:d}", "{x/np}", "{ np }", "{}", "{{n}}"]
    assert Work(words, "strong").command_for(2) == words
