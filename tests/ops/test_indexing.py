"""Gather, scatter and one-hot."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from messages import pinned
from samples import counting

batch, length, vocab, hidden = mx.dims(batch=3, length=5, vocab=10, hidden=4)
mesh = mx.Mesh("rows:2 cols:4")
LAYOUTS = ["", "vocab:cols", "vocab:rows+cols", "length:rows vocab:cols", "vocab:cols length:cols", "hidden:cols"]

PLACES = np.int32([0, 9, -1, 10, 4])  # the first, the last, one before, one behind, the middle
INSIDE = np.array([True, True, False, False, True])
table, ids = counting(vocab, hidden) + 1, mx.tensor(PLACES, length)


def under(layout, fn, *args):
    return fn(*args) if layout is None else mx.spmd(fn, mesh, layout)(*args)


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
def test_an_index_out_of_range_gathers_zeros(layout):
    taken = under(layout, lambda table, ids: mx.gather(table, ids, vocab), table, ids)

    assert taken.dims == (length, hidden)
    wanted = np.where(INSIDE[:, None], table.numpy()[np.clip(PLACES, 0, 9)], 0)
    np.testing.assert_array_equal(taken.numpy(), wanted, strict=True)


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
def test_nan_is_not_gathered_from_out_of_range(layout):
    nan = mx.full((vocab, hidden), np.nan)

    taken = under(layout, lambda table, ids: mx.gather(table, ids, vocab), nan, ids)

    np.testing.assert_array_equal(np.isnan(taken.numpy()), np.broadcast_to(INSIDE[:, None], (5, 4)))


@pytest.mark.parametrize("layout", [None, "", "vocab:cols", "length:rows vocab:cols", "length:rows+cols"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int8, jnp.bool_])
def test_an_index_out_of_range_is_one_hot_nowhere(layout, dtype):
    hot = under(layout, lambda ids: mx.one_hot(ids, vocab, dtype), ids)

    assert (hot.dims, hot.dtype) == ((length, vocab), dtype)
    np.testing.assert_array_equal(hot.numpy(), (PLACES[:, None] == np.arange(10)).astype(dtype))


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
def test_what_is_scattered_out_of_range_is_dropped(layout):
    updates = counting(length, hidden)

    added = under(layout, lambda *args: mx.scatter_add(*args, vocab), table, ids, updates)

    wanted = table.numpy().copy()
    np.add.at(wanted, PLACES[INSIDE], updates.numpy()[INSIDE])
    assert added.dims == (vocab, hidden)
    np.testing.assert_array_equal(added.numpy(), wanted, strict=True)


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
def test_updates_of_one_place_add_up(layout):
    same = mx.tensor(np.int32([7, 7, 7, 2, 7]), length)

    added = under(layout, lambda x, i: mx.scatter_add(x, i, mx.ones(length), "vocab"), mx.zeros(vocab), same)

    np.testing.assert_array_equal(added.numpy(), [0, 0, 1, 0, 0, 0, 0, 4, 0, 0])


def test_the_dims_of_the_indices_stand_where_the_dim_stood():
    wide, pairs = counting(batch, vocab, hidden), mx.tensor(np.int32([[1, 2], [3, 4]]), "first second")

    taken = mx.gather(wide, pairs, vocab)

    assert taken.dims == (batch, *mx.dims("first:2 second:2"), hidden)
    np.testing.assert_array_equal(taken.numpy(), wide.numpy()[:, [[1, 2], [3, 4]]])


def test_a_dim_that_both_have_is_a_batch_dim():
    wide = counting(vocab, batch, hidden)
    rows = mx.tensor(np.int32([[0, 9, 3, -1, 2], [1, 1, 1, 1, 1], [8, 7, 10, 5, 4]]), (batch, length))

    taken = mx.gather(wide, rows, "vocab")
    added = mx.scatter_add(wide, rows, taken, "vocab")

    assert (taken.dims, added.dims) == ((length, batch, hidden), wide.dims)
    wanted, sums = np.zeros((5, 3, 4), np.float32), wide.numpy().copy()
    for b in range(3):
        for n, place in enumerate(rows.numpy()[b]):
            if 0 <= place < 10:
                wanted[n, b] = wide.numpy()[place, b]
                sums[place, b] += wide.numpy()[place, b]
    np.testing.assert_array_equal(taken.numpy(), wanted)
    np.testing.assert_array_equal(added.numpy(), sums)


def test_one_place_for_each_row():
    scores, labels = counting(batch, vocab), mx.tensor(np.int32([9, 0, 12]), batch)

    chosen = mx.gather(scores, labels, vocab)

    assert chosen.dims == (batch,)
    np.testing.assert_array_equal(chosen.numpy(), [9, 10, 0])


def test_a_missing_dim_of_the_updates_is_broadcast():
    added = mx.scatter_add(mx.zeros((vocab, hidden)), ids, mx.ones(length), vocab)

    np.testing.assert_array_equal(added.numpy(), np.repeat(np.isin(np.arange(10), PLACES)[:, None], 4, 1))


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
def test_gather_and_scatter_are_each_others_gradient(layout):
    weights = counting(length, hidden) + 1

    def gradients(table, ids):
        gathered = mx.grad(lambda table: mx.sum(mx.gather(table, ids, vocab) * weights))(table)
        scattered = mx.grad(lambda updates: mx.sum(mx.scatter_add(table, ids, updates, vocab) * table))(weights)
        return gathered, scattered

    gathered, scattered = under(layout, gradients, table, ids)

    wanted = np.zeros((10, 4), np.float32)
    np.add.at(wanted, PLACES[INSIDE], weights.numpy()[INSIDE])
    np.testing.assert_array_equal(gathered.numpy(), wanted)
    wanted = np.where(INSIDE[:, None], table.numpy()[np.clip(PLACES, 0, 9)], 0)
    np.testing.assert_array_equal(scattered.numpy(), wanted)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32, jnp.int8])
@pytest.mark.parametrize("layout", [None, "vocab:cols", "vocab:cols length:cols"])
def test_dtypes_are_kept(layout, dtype):
    def both(table, ids):
        table = table.astype(dtype)
        taken = mx.gather(table, ids, vocab)
        return taken, mx.scatter_add(table, ids, taken, vocab)

    assert [x.dtype for x in under(layout, both, table, ids)] == [dtype, dtype]


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int16, jnp.uint32])
@pytest.mark.parametrize("layout", [None, "vocab:cols"])
def test_indices_of_any_integer_dtype(layout, dtype):
    places = mx.tensor(np.array([0, 9, 11, 10, 4]).astype(dtype), length)

    def all_three(table, places):
        taken = mx.gather(table, places, vocab)
        return taken, mx.scatter_add(table, places, taken, vocab), mx.one_hot(places, vocab)

    taken, added, hot = under(layout, all_three, table, places)

    wanted = table.numpy().copy()
    wanted[[0, 9, 4]] *= 2
    np.testing.assert_array_equal(added.numpy(), wanted)
    np.testing.assert_array_equal(taken.numpy() != 0, np.broadcast_to(INSIDE[:, None], (5, 4)))
    np.testing.assert_array_equal(hot.numpy(), np.array([0, 9, 11, 10, 4])[:, None] == np.arange(10))


def no_fit(indices, updates):
    return f"""
        updates do not fit what they are added to.
          values: [vocab:10, hidden:4], indices {indices} and updates {updates}
          rule: updates have the indices' dims, and of x only dims other than the one indexed.
          fix: rename or broadcast the updates.
        """


MISTAKES = {
    "places that are floats": (
        mx.DtypeError,
        lambda: mx.gather(table, counting(length), vocab),
        """
        indices are integers, not float32.
          values: [length:5]
          fix: cast them with .astype.
        """,
    ),
    "places that are truth values": (
        mx.DtypeError,
        lambda: mx.scatter_add(table, ids > 3, mx.ones(length), vocab),
        """
        indices are integers, not bool.
          values: [length:5]
          fix: cast them with .astype.
        """,
    ),
    "one-hot floats": (
        mx.DtypeError,
        lambda: mx.one_hot(counting(length), vocab),
        """
        indices are integers, not float32.
          values: [length:5]
          fix: cast them with .astype.
        """,
    ),
    "one-hot of unknown size": (
        mx.ShapeError,
        lambda: mx.one_hot(ids, "vocab"),
        """
        mx.one_hot does not know the size of 'vocab'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
    "one-hot along two dims": (
        mx.ShapeError,
        lambda: mx.one_hot(ids, mx.dims("first:2 second:2")),
        """
        mx.one_hot takes one dim, not 2.
          values: [first:2, second:2]
          fix: pass one dim.
        """,
    ),
    "places that are an array": (
        mx.ShapeError,
        lambda: mx.gather(table, PLACES, vocab),
        """
        mx.gather takes tensors, not an array.
          values: int32[5]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "places along the dim that they index": (
        mx.ShapeError,
        lambda: mx.gather(table, counting(vocab, dtype=np.int32), vocab),
        """
        the indices have the dim 'vocab' that they index.
          values: [vocab:10, hidden:4] and [vocab:10]
          fix: rename that dim of the indices.
        """,
    ),
    "places of another size of batch": (
        mx.ShapeError,
        lambda: mx.gather(table, counting(mx.Dim("hidden", 2), dtype=np.int32), vocab),
        """
        dim 'hidden' has size 4 in one operand and 2 in another.
          values: [vocab:10, hidden:4] and [hidden:2]
          rule: operands meet by name, and dims of one name have one size.
          fix: rename the dim of one operand if another dim is meant, or slice it to the same size.
        """,
    ),
    "a dim that is not there": (
        mx.ShapeError,
        lambda: mx.gather(table, ids, "length"),
        """
        there is no dim 'length' here.
          values: [vocab:10, hidden:4]
          fix: known names: hidden, vocab.
        """,
    ),
    "updates without the dims of the indices": (
        mx.ShapeError,
        lambda: mx.scatter_add(table, ids, counting(hidden), vocab),
        no_fit("[length:5]", "[hidden:4]"),
    ),
    "updates with a dim too many": (
        mx.ShapeError,
        lambda: mx.scatter_add(table, ids, counting(length, batch), vocab),
        no_fit("[length:5]", "[length:5, batch:3]"),
    ),
    "updates with the dim indexed": (
        mx.ShapeError,
        lambda: mx.scatter_add(table, ids, counting(length, vocab), vocab),
        no_fit("[length:5]", "[length:5, vocab:10]"),
    ),
    "indices with the dim indexed": (
        mx.ShapeError,
        lambda: mx.scatter_add(table, counting(vocab, dtype=np.int32), counting(vocab), vocab),
        no_fit("[vocab:10]", "[vocab:10]"),
    ),
    "updates of another dtype": (
        mx.DtypeError,
        lambda: mx.scatter_add(table, ids, mx.ones(length, jnp.int32), vocab),
        """
        updates have another dtype.
          values: int32 for float32
          fix: cast them with .astype.
        """,
    ),
    "truth values to add": (
        mx.DtypeError,
        lambda: mx.scatter_add(
            mx.zeros(mx.Dim("word", 3), bool), mx.arange(mx.Dim("place", 2)), mx.ones((), bool), "word"
        ),
        """
        truth values cannot be added up.
          values: [word:3] bool
          fix: cast them: x.astype(jnp.int32).
        """,
    ),
    "places of one axis in a table split over it": (
        mx.LayoutError,
        lambda: under("hidden:cols length:cols", lambda *args: mx.gather(*args, vocab), table, ids),
        """
        dims of the operands of one operation are split over the same mesh axis: 'length' and 'hidden' over 'cols'.
          values: [vocab:10, hidden:4/cols] and [length:5/cols] under Layout("hidden:cols length:cols")
          rule: an axis splits at most one of the dims that meet in a tensor.
          fix: split one of them over another axis, or rename it where they meet, to a name without a rule.
        """,
    ),
}

test_messages = pinned(MISTAKES)
