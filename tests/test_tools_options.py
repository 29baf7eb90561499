"""Options of the command: lists, seeds and `KEY=VALUE`."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topas_env._errors import InputError
from topas_env.cli._options import parse_assignments, parse_list, parse_numbers, parse_seeds


def test_lists_take_commas_and_repetition() -> None:
    assert parse_list(["a,b", "c", "a", " ,"]) == ["a", "b", "c"]


def test_numbers_are_positive_and_finite() -> None:
    assert parse_numbers(["0.05,0.1"], "--rate") == [0.05, 0.1]
    for bad in ("0", "-1", "nan", "inf", "x"):
        with pytest.raises(InputError, match="--rate"):
            parse_numbers([bad], "--rate")


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [0, 1, 2]), ("10:12", [10, 11]), ("7,3,7", [7, 3]), ("0:1", [0]), ("5,", [5])]
)
def test_seeds(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-1", "3:3", "3:1", "1:2:3", "a", "1,b", ",", "1e9", "0:999999999", "-1,2"])
def test_bad_seeds(text: str) -> None:
    with pytest.raises(InputError, match="--seeds"):
        parse_seeds(text)


def test_values_have_types() -> None:
    found = parse_assignments(["a=1", "b=0.5", "c=true", "d=null", "e=none", "f=x=y", "g=", "h=[1]"])
    assert found == {"a": 1, "b": 0.5, "c": True, "d": None, "e": "none", "f": "x=y", "g": "", "h": "[1]"}
    assert type(found["a"]) is int


@pytest.mark.parametrize("texts", [["a"], ["=1"], [" =1"], ["a=1", "a=2"], ["a=nan"], ["a=1e999"], ["a=-Infinity"]])
def test_bad_assignments(texts: list[str]) -> None:
    with pytest.raises(InputError, match="--set"):
        parse_assignments(texts)


@given(st.lists(st.text(max_size=30), max_size=4))
def test_any_text_is_taken_or_refused_in_one_line(texts: list[str]) -> None:
    try:
        found = parse_assignments(texts)
    except InputError as error:
        assert str(error).startswith("--set")
        return
    assert len(found) == len(texts)
    for value in found.values():
        assert value is None or isinstance(value, str | int) or math.isfinite(value)


@given(st.text(max_size=12))
def test_any_seeds_are_taken_or_refused(text: str) -> None:
    try:
        seeds = parse_seeds(text)
    except InputError as error:
        assert "--seeds" in str(error)
    else:
        assert seeds
        assert all(0 <= seed < 2**32 for seed in seeds)
