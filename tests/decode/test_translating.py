"""Many texts translated together: in their order, blank ones left blank, long ones cut, each as if it were alone."""

import functools

import jax
import pytest

import meshax as mx
from extent import some
from meshax.data.vocabulary import Vocabulary
from meshax.decode.translating import Translator
from meshax.models.encoder_decoder import EncoderDecoderConfig

WORDS = Vocabulary.train(["one two three four five six seven eight nine ten"] * 9, 300)
CONFIG = EncoderDecoderConfig(
    d_model=16, heads=2, d_kv=8, d_ff=16, layers=1, vocab=300, positions="learned", max_length=16, dtype="float32"
)
TEXTS = ["one", "", "two three four five six", " \u2028\r", "seven", "one two three", "one " * 500, "\ufffd\0", "nine"]


@functools.cache
def model():
    make = lambda: jax.tree.map(lambda x: 3 * x, CONFIG.make(jax.random.key(3)))  # noqa: E731 - far from undecided
    return mx.spmd(make, mx.Mesh("x:1"), "")()


@functools.cache
def translator(mesh="x:1", layout=""):
    return Translator(model(), mx.Mesh(mesh), layout, (WORDS, WORDS), source_length=12, length=10, slots=4, beams=2)


def test_order_blanks_and_long_texts():
    many, done = translator(), []
    many.num_cut = 0
    found = many.translate(TEXTS, done.append)
    assert [len(one) for one in found] == [2, 0, 2, 0, 2, 2, 2, 2, 2]
    assert sum(done) == len(TEXTS) and done[0] == 2
    assert many.num_cut == 1
    assert found == many.translate(TEXTS)
    assert all(a.score >= b.score for a, b in filter(None, found))
    backwards = many.translate(TEXTS[::-1])[::-1]
    assert [[one.text for one in row] for row in backwards] == [[one.text for one in row] for row in found]
    assert len({row[0].text for row in found if row}) > 1
    cut = " ".join(["one"] * 500)
    assert many.translate([cut])[0][0].text == found[6][0].text


LAYOUTS = [("data:2 model:2", "batch:data heads:model vocab:model"), ("data:4 model:2", "batch:data d_ff:model")]


@pytest.mark.parametrize("placed", some(LAYOUTS, LAYOUTS[0]))
def test_a_layout_changes_nothing(placed):
    texts = [[one.text for one in row] for row in translator().translate(TEXTS)]
    assert [[one.text for one in row] for row in translator(*placed).translate(TEXTS)] == texts


def test_no_texts():
    assert translator().translate([]) == []
    assert translator().translate(["", "\n"]) == [[], []]
