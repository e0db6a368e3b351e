"""Where beams stand: who goes on stays, others take the places of those that died, and only these are copied."""

import itertools
import random

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.decode import Request
from meshax.decode.beams import BeamSearch
from meshax.decode.reordering import assign_places, inverse, moved
from meshax.models.decoder import Decoder, DecoderConfig

batch, beam = mx.dims(batch=3, beam=4)


def by_hand(parents):
    """Where each beam stands: with its parent, or at the first place that is free."""
    free = [place for place in range(len(parents)) if place not in parents]
    return [parent if parent not in parents[:i] else free.pop(0) for i, parent in enumerate(parents)]


def test_who_goes_on_stays():
    every = np.array(list(itertools.product(range(4), repeat=4)), np.int32)
    all_ = mx.Dim("batch", len(every))
    program = mx.spmd(assign_places, mx.Mesh("rows:4"), "batch:rows")
    places, comes = (x.numpy() for x in program(mx.tensor(every, (all_, beam))))
    np.testing.assert_array_equal(places, [by_hand(parents.tolist()) for parents in every])
    for place, come, parents in zip(places, comes, every, strict=True):
        assert sorted(place) == [0, 1, 2, 3] and [come[i] for i in place] == parents.tolist()
        assert sum(come[i] != i for i in range(4)) == 4 - len(set(parents.tolist()))  # no fewer can move
    back = mx.spmd(inverse, mx.Mesh("rows:4"), "batch:rows")(mx.tensor(places, (all_, beam))).numpy()
    np.testing.assert_array_equal(np.take_along_axis(back, places, 1), np.tile(np.arange(4), (len(every), 1)))


LAYOUTS = {
    "none": ("x:1", ""),
    "heads and rows": ("rows:2 model:2", "batch:rows heads:model"),
    "memory": ("model:4", "memory:model"),
    "beams": ("model:2", "beam:model"),
    "uneven": ("rows:2 model:3", "batch:rows heads:model"),
}


@pytest.mark.parametrize("layout", some(LAYOUTS, "heads and rows"))
def test_what_moves(layout):
    """Pages of the prompt, and those that hold nothing, are left alone; a window's cache is used all over."""
    mesh, rules = LAYOUTS[layout]
    comes = np.array([[0, 1, 2, 3], [2, 1, 2, 1], [3, 3, 3, 3]], np.int32)
    dims = {
        "whole": "layers batch beam heads pages memory d_kv",
        "window": "batch beam heads pages memory d_kv",
        "tokens": "batch beam length",
        "source": "batch heads memory d_kv",
    }
    sizes = dict(layers=2, batch=3, beam=4, heads=5, pages=6, memory=4, d_kv=3, length=7)
    arrays = {}
    for name, words in dims.items():
        shape = [3 if (name, word) == ("window", "pages") else sizes[word] for word in words.split()]
        arrays[name] = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    program = mx.spmd(lambda cache, comes: moved(cache, comes, range(1, 4), 6), mx.Mesh(mesh), rules, donate=0)
    tensors = {name: mx.tensor(array, dims[name]) for name, array in arrays.items()}
    got = {name: x.numpy() for name, x in program(tensors, mx.tensor(comes, (batch, beam))).items()}

    rows = np.arange(3)[:, None]
    wanted = {name: array.copy() for name, array in arrays.items()}
    wanted["whole"][:, :, :, :, 1:4] = arrays["whole"][:, rows, comes][:, :, :, :, 1:4]
    if layout == "beams":  # of a split dim all is moved
        wanted["whole"] = arrays["whole"][:, rows, comes]
    wanted["window"], wanted["tokens"] = arrays["window"][rows, comes], arrays["tokens"][rows, comes]
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


def test_nothing_of_the_size_of_the_cache_is_copied():
    """What is needed beside the donated cache is what moves: of the pages written since the prompt all but one beam."""
    one = mx.Dim("batch", 1)
    dims = (one, beam, *mx.dims(heads=2, pages=16, memory=32, d_kv=8))
    cache = [mx.tensor(jax.ShapeDtypeStruct([dim.size for dim in dims], "float32"), dims) for _ in range(4)]

    def steps(cache, parents):
        step = lambda cache, parents: (moved(cache, assign_places(parents)[1], range(14, 16), 16), None)  # noqa: E731
        return mx.scan(step, cache, parents, over="steps")[0]

    parents = mx.tensor(np.zeros((5, 1, 4), np.int32), (mx.Dim("steps", 5), one, beam))
    memory = mx.spmd(steps, mx.Mesh("x:1"), "", donate=0).compile(cache, parents).memory_analysis()
    each = 4 * 2 * 16 * 32 * 8 * 4
    assert memory.alias_size_in_bytes >= 4 * each and memory.temp_size_in_bytes < each


@pytest.mark.exhaustive
def test_prompts_that_fill_pages():
    """Beams found with pages that the prompt fills, and are never moved, are those found with one page for all."""
    sizes = dict(d_model=16, heads=4, d_kv=6, d_ff=24, layers=2, vocab=21, dtype="float32", positions="rotary")
    draw = random.Random(0)
    for window in (None, 5):
        model = Decoder.init(jax.random.key(0), DecoderConfig(**sizes, window=window))
        requests = [Request(tuple(draw.choices(range(21), k=k)), 12, stop=(1,)) for k in (21, 13, 18)]
        found = []
        for page in (4, 40):
            search = BeamSearch(
                model, mx.Mesh("model:2"), "heads:model", beams=3, slots=3, places=40, page=page, chunk=3
            )
            found.append([[text.tokens for text in texts] for texts in search.search(requests)])
            assert {shared for _, shared, _ in search.steps} == {2 if page == 4 else 0}
        assert found[0] == found[1]
