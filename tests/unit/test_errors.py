from __future__ import annotations

import pytest

from segpl import errors
from segpl.errors import UserError, did_you_mean, in_voxels, unknown


def test_similar_name_is_suggested():
    expected = "Did you mean 'segpl'? Known: fixmatch, segpl, segpl-vi."
    assert did_you_mean("segp", ["segpl-vi", "segpl", "fixmatch"]) == expected


def test_dissimilar_name_gets_only_the_list():
    assert did_you_mean("zzz", ["b", "a"]) == "Known: a, b."


def test_long_list_is_left_out_if_a_name_is_close():
    names = [f"net-{number}" for number in range(100)]
    assert did_you_mean("net-7x", names).startswith("Did you mean 'net-7")
    assert "Known" not in did_you_mean("net-7x", names)
    assert did_you_mean("zzz", names).startswith("Known: net-0, ")


def test_message_about_an_unknown_name_has_no_quotes():
    """A plain KeyError shows the repr of its message."""
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
def test_error_derives_from_the_matching_builtin(name, builtin):
    kind = getattr(errors, name)
    assert issubclass(kind, UserError)
    assert issubclass(kind, builtin)
    assert str(kind("a sentence.")) == "a sentence."


def test_sizes_are_in_voxels_or_pixels():
    assert in_voxels("8x8x8", 3) == "8x8x8 voxels"
    assert in_voxels("8x8", 2) == "8x8 pixels"
