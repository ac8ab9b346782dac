from __future__ import annotations

import pytest

from segpl import errors
from segpl.errors import UserError, did_you_mean, unknown


def test_near_name_is_suggested():
    expected = "Did you mean 'segpl'? Known: fixmatch, segpl, segpl-vi."
    assert did_you_mean("segp", ["segpl-vi", "segpl", "fixmatch"]) == expected


def test_name_unlike_any_other_gets_the_list_alone():
    assert did_you_mean("zzz", ["b", "a"]) == "Known: a, b."


def test_message_of_an_unknown_name_is_not_put_in_quotes():
    """A plain KeyError would show the representation of its message."""
    assert str(unknown("method", "x", ["supervised"])).startswith("no method named 'x'. ")


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InputError", ValueError),
        ("MissingFileError", FileNotFoundError),
        ("UnknownNameError", KeyError),
        ("StorageError", OSError),
        ("DivergedError", FloatingPointError),
    ],
)
def test_error_is_what_a_python_user_would_catch(name, builtin):
    kind = getattr(errors, name)
    assert issubclass(kind, UserError)
    assert issubclass(kind, builtin)
    assert str(kind("a sentence.")) == "a sentence."


def test_error_without_a_message_can_be_shown():
    assert str(UserError()) == ""
