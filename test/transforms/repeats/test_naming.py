"""One name for several, and back."""

from __future__ import annotations

from distir.transforms.repeats.naming import generalise, specialise


def test_numbers_that_differ_become_a_star():
    assert generalise(["h.0.a", "h.11.a"]) == "h.*.a"
    assert generalise(["h.0.a", "h.0.a"]) == "h.0.a"


def test_names_that_differ_in_words_or_length_have_no_common_one():
    assert generalise(["h.0.a", "h.1"]) is None
    assert generalise(["h.a", "h.b"]) is None


def test_a_call_says_which_number_a_star_stands_for():
    assert specialise("h.*.e.*", "h.3") == "h.3.e.*"
