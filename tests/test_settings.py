"""Environment variables: each is parsed, and a malformed one names itself and what is expected."""

import pytest

from collectives import settings
from tests.programs import run_program

MALFORMED = [
    ("COLLECTIVES_CHECK", "maybe", "0 or 1"),
    ("COLLECTIVES_CHECK", "2", "0 or 1"),
    ("COLLECTIVES_ABORT", "never", "0 or 1"),
    ("COLLECTIVES_DEBUG", "LOUD", "a log level"),
    ("COLLECTIVES_STALL_SECONDS", "soon", "a number of seconds >= 0"),
    ("COLLECTIVES_STALL_SECONDS", "-1", "a number of seconds >= 0"),
    ("COLLECTIVES_STALL_SECONDS", "nan", "a number of seconds >= 0"),
    ("COLLECTIVES_STALL_ABORT", "inf", "a number of seconds >= 0"),
    ("COLLECTIVES_STALL_ABORT", "", "a number of seconds >= 0"),
    ("COLLECTIVES_SEGMENT", "64K", "a number of bytes >= 1"),
    ("COLLECTIVES_SEGMENT", "0", "a number of bytes >= 1"),
]


@pytest.mark.parametrize("name, text, expected", MALFORMED)
def test_a_malformed_value_names_variable_value_and_expectation(name, text, expected):
    with pytest.raises(ValueError) as info:
        settings.parse({name: text})
    for part in (name, repr(text), expected):
        assert part in str(info.value)


def test_nothing_set_gives_the_defaults_and_foreign_variables_are_ignored():
    assert settings.parse({"PATH": "x", "COLLECTIVE_CHECK": "maybe"}) == settings.Settings()


def test_well_formed_values_are_parsed():
    parsed = settings.parse({
        "COLLECTIVES_CHECK": "on", "COLLECTIVES_ABORT": "False", "COLLECTIVES_DEBUG": "debug",
        "COLLECTIVES_STALL_SECONDS": "2.5", "COLLECTIVES_STALL_ABORT": "0",
        "COLLECTIVES_SEGMENT": "4096", "COLLECTIVES_ALGORITHM": "ring"})
    assert parsed == settings.Settings(
        algorithm="ring", check=True, debug="DEBUG", stall_seconds=2.5, abort=False, segment=4096)


def test_the_table_in_the_docstring_is_complete():
    for field in settings.Settings.__dataclass_fields__:
        assert f"COLLECTIVES_{field.upper()} " in settings.__doc__


@pytest.mark.parametrize("name, text, expected", [
    ("COLLECTIVES_STALL_SECONDS", "soon", "a number of seconds >= 0"),
    ("COLLECTIVES_ALGORITHM", "rings", "double_binary_tree")])
def test_the_first_call_raises_on_every_rank(name, text, expected, tmp_path):
    out = run_program(2, "", tmp_path, status="failure", **{name: text})
    assert f"ValueError: {name}={text!r}: expected" in out and expected in out, out
