"""What cannot be read is raised, or counted with its first place."""

from meshax import DataError
from meshax.data.left_out import KINDS, FileError, LeftOut, show_left_out


def test_strict_takes_nothing():
    left_out = LeftOut("strict")
    assert not left_out.takes("empty", "a.txt") and not left_out.counts


def test_the_first_place_of_each_kind_is_kept():
    left_out = LeftOut("skip", {"empty": (2, "a.txt")})
    assert left_out.takes("empty", "b.txt") and left_out.takes("broken", "c.gz")
    assert left_out.counts == {"empty": (3, "a.txt"), "broken": (1, "c.gz")}
    assert show_left_out(left_out.counts) == "3 empty files (first: a.txt), 1 broken file (c.gz)"


def test_every_kind_has_words():
    for kind, (singular, plural) in KINDS.items():
        assert show_left_out({kind: (1, "x")}) == f"1 {singular} (x)"
        assert show_left_out({kind: (1234, "x")}) == f"1,234 {plural} (first: x)"


def test_a_file_error_says_its_kind_and_place():
    error = FileError("it failed.", kind="broken", values="a.gz: cut off", fix="fetch it.")
    assert isinstance(error, DataError) and (error.kind, error.where) == ("broken", "a.gz: cut off")
    assert str(error) == "it failed.\n  values: a.gz: cut off\n  fix: fetch it."
