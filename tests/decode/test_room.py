"""Room for texts: few programs, and what a prompt that comes in touches."""

import jax
import numpy as np
import pytest

import meshax as mx
from meshax.decode.requests import Request
from meshax.decode.room import Room
from meshax.errors import ArgumentError
from meshax.models.decoder import DecoderConfig
from meshax.tensors import is_tensor

CONFIG = DecoderConfig(d_model=8, heads=2, d_kv=4, d_ff=12, layers=1, vocab=21, dtype="float32", positions="rotary")


def room(slots=2, places=64, page=1, mesh="x:1", layout=""):
    return Room(CONFIG.make(jax.random.key(0)), mx.Mesh(mesh), layout, (mx.Dim("batch", slots),), places, page)


@pytest.mark.parametrize(
    ("places", "counts"),
    [(64, [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64]), (9, [1, 2, 4, 6, 8, 9]), (3, [1, 2, 3]), (1, [1])],
)
def test_a_step_reads_few_numbers_of_pages(places, counts):
    """So many pages as are used, and less than half as many more; never more than there are."""
    one = room(places=places)
    assert one.page_counts == counts
    for used in range(1, places + 1):
        assert used <= one.pages(used) <= min(max(2 * used, 1), places)
        assert used < 4 or one.pages(used) < 1.5 * used


def test_texts_that_grow_read_less_than_with_powers_of_two():
    one = room()
    read = sum(one.pages(used) for used in range(1, 65)) / sum(range(1, 65))
    doubled = sum(1 << (used - 1).bit_length() for used in range(1, 65)) / sum(range(1, 65))
    assert (round(read, 2), round(doubled, 2)) == (1.15, 1.31)


def test_no_memory_for_so_many_tokens(monkeypatch):
    monkeypatch.setattr("meshax.decode.room.memory_there", lambda mesh: 1e9)
    with pytest.raises(ArgumentError) as raised:
        room(slots=3, places=10**12, page=128, mesh="data:2 model:2", layout="batch:data heads:model")
    assert str(raised.value) == (
        "there is no memory for 3 texts of 1,000,000,000,000 tokens.\n"
        "  values: what is kept takes 192 TB, and there are 4 GB\n"
        "  fix: write fewer tokens, or fewer texts at once."
    )


def by_slots(cache):
    """The arrays of a cache, slots first: a stack of layers stands before them."""
    leaves = jax.tree.leaves(cache, is_leaf=is_tensor)
    return [np.moveaxis(leaf.numpy(), list(leaf.shape).index("batch"), 0) for leaf in leaves]


def test_a_prompt_is_written_into_its_slot_alone():
    """Of 64 slots over 2 rows of processors two are filled: the others are neither read nor written."""
    one, alone = room(64, 256, 16, "data:2 model:2", "batch:data heads:model"), room(1, 256, 16)
    first = one.fill(one.empty(), {slot: Request((slot % 20, 4, 5)) for slot in range(0, 64, 3)})
    before, prompts = by_slots(first), {3: Request((7, 8, 9, 1)), 49: Request((2, 6, 4))}
    after = by_slots(one.fill(first, prompts))
    for slot in range(64):
        fresh = slot in prompts and by_slots(alone.fill(alone.empty(), {0: prompts[slot]}))
        for i, ours in enumerate(after):
            np.testing.assert_allclose(ours[slot], fresh[i][0] if fresh else before[i][slot], atol=1e-6)
    batch, length = mx.dims(batch=2, length=16)
    kinds = one.slots, (batch, length), (batch,)
    inputs = [mx.tensor(np.zeros([dim.size for dim in dims], np.int32), dims) for dims in kinds]
    (program,) = one.filling.values()
    compiled = program.compile(one.model, jax.eval_shape(one.empty), *inputs)
    assert compiled.cost_analysis()["bytes accessed"] < sum(array.nbytes for array in before) / one.mesh.size
