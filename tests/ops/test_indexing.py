"""Gather, scatter and one-hot."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from extent import some
from messages import pinned

batch, length, vocab, hidden = mx.dims(batch=3, length=5, vocab=10, hidden=4)
mesh = mx.Mesh("rows:2 cols:4")
LAYOUTS = ["", "vocab:cols", "vocab:rows+cols", "length:rows vocab:cols", "vocab:cols length:cols", "hidden:cols"]
SOME_LAYOUTS = some(LAYOUTS, "length:rows vocab:cols")

PLACES = np.int32([0, 9, -1, 10, 4])  # the first, the last, one before, one behind, the middle
ONE_HOT = ["vocab:cols", "length:rows vocab:cols", "length:rows+cols"]
INSIDE = np.array([True, True, False, False, True])
table, ids = counting(vocab, hidden) + 1, mx.tensor(PLACES, length)


def under(layout, fn, *args):
    return fn(*args) if layout is None else mx.spmd(fn, mesh, layout)(*args)


@pytest.mark.parametrize("layout", [None, *SOME_LAYOUTS])
def test_an_index_out_of_range_gathers_zeros(layout):
    taken = under(layout, lambda table, ids: mx.gather(table, ids, vocab), table, ids)

    assert taken.dims == (length, hidden)
    wanted = np.where(INSIDE[:, None], table.numpy()[np.clip(PLACES, 0, 9)], 0)
    np.testing.assert_array_equal(taken.numpy(), wanted, strict=True)


@pytest.mark.parametrize("layout", [None, *SOME_LAYOUTS])
def test_nan_is_not_gathered_from_out_of_range(layout):
    nan = mx.full((vocab, hidden), np.nan)

    taken = under(layout, lambda table, ids: mx.gather(table, ids, vocab), nan, ids)

    np.testing.assert_array_equal(np.isnan(taken.numpy()), np.broadcast_to(INSIDE[:, None], (5, 4)))


@pytest.mark.parametrize("layout", [None, *some(["", *ONE_HOT], "length:rows vocab:cols")])
@pytest.mark.parametrize("dtype", some([jnp.float32, jnp.int8, jnp.bool_], jnp.int8))
def test_an_index_out_of_range_is_one_hot_nowhere(layout, dtype):
    hot = under(layout, lambda ids: mx.one_hot(ids, vocab, dtype), ids)

    assert (hot.dims, hot.dtype) == ((length, vocab), dtype)
    np.testing.assert_array_equal(hot.numpy(), (PLACES[:, None] == np.arange(10)).astype(dtype))


@pytest.mark.parametrize("dtype", some(["bfloat16", "float16"], "bfloat16"))
@pytest.mark.parametrize("layout", [None, *SOME_LAYOUTS])
def test_what_comes_to_one_row_is_added_up_in_float32(layout, dtype):
    """As frequent words have it, whose embedding gets many small gradients: in bfloat16 they would stop counting."""
    many = mx.Dim("length", 2200)
    same = mx.tensor(np.full(many.size, 3, np.int32), many)
    small = mx.full((many, hidden), 0.001).astype(dtype)

    def both(table, same, small):
        pulled = mx.grad(lambda table: mx.sum(mx.gather(table, same, vocab) * small))(table)
        return pulled, mx.scatter_add(table * 0, same, small, vocab)

    wanted = np.where(np.arange(vocab.size)[:, None] == 3, 2200 * float(small.array[0, 0]), 0) * np.ones(hidden.size)
    for got in under(layout, both, table.astype(dtype), same, small):
        assert got.dtype == dtype
        np.testing.assert_allclose(got.numpy().astype(np.float32), wanted, rtol=5e-3)


@pytest.mark.parametrize("layout", [None, *SOME_LAYOUTS])
def test_what_is_scattered_out_of_range_is_dropped(layout):
    updates = counting(length, hidden)

    added = under(layout, lambda *args: mx.scatter_add(*args, vocab), table, ids, updates)

    wanted = table.numpy().copy()
    np.add.at(wanted, PLACES[INSIDE], updates.numpy()[INSIDE])
    assert added.dims == (vocab, hidden)
    np.testing.assert_array_equal(added.numpy(), wanted, strict=True)


@pytest.mark.parametrize("layout", [None, *SOME_LAYOUTS])
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


@pytest.mark.parametrize("layout", [None, *SOME_LAYOUTS])
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
@pytest.mark.parametrize("layout", some([None, "vocab:cols", "vocab:cols length:cols"], "vocab:cols"))
def test_dtypes_are_kept(layout, dtype):
    def both(table, ids):
        table = table.astype(dtype)
        taken = mx.gather(table, ids, vocab)
        return taken, mx.scatter_add(table, ids, taken, vocab)

    assert [x.dtype for x in under(layout, both, table, ids)] == [dtype, dtype]


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int16, jnp.uint32])
@pytest.mark.parametrize("layout", some([None, "vocab:cols"], "vocab:cols"))
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


BROADCAST = ["", "hidden:cols", "hidden:rows+cols", "vocab:cols", "length:rows hidden:cols", "vocab:rows hidden:cols"]
BROADCAST += ["wide:cols", "wide:rows+cols", "vocab:rows wide:cols"]
wide = mx.Dim("wide", 5)


@pytest.mark.parametrize("layout", some(BROADCAST, "hidden:rows+cols", "vocab:rows wide:cols"))
def test_nothing_flows_back_from_padding_that_updates_are_broadcast_along(layout):
    x = mx.tensor(np.sin(np.arange(200)).reshape(10, 5, 4).astype(np.float32), (vocab, wide, hidden))
    where, updates = mx.tensor(np.int32([1, 6, 1, 9, 30]), length), counting(length) / 5

    def loss(updates, x, where):
        return mx.mean(mx.square(mx.scatter_add(1 / (x * x), where, updates, vocab)))

    found = under(layout, mx.grad(loss), updates, x, where)

    alone = jnp.asarray(x.numpy())

    def reference(updates):
        added = jnp.zeros((10, 5, 4)).at[jnp.array([1, 6, 1, 9])].add(updates[:4, None, None])
        return jnp.mean((1 / alone**2 + added) ** 2)

    np.testing.assert_allclose(found.numpy(), jax.grad(reference)(jnp.asarray(updates.numpy())), rtol=1e-4)


@pytest.mark.parametrize("layout", [None, *SOME_LAYOUTS])
def test_no_index_is_taken_for_another(layout):
    """2**32 + 1 is not 1, as a cast would have it."""
    fits = np.array([True, False, False, True, False])
    with jax.enable_x64(True):
        for places in (np.int64([0, 2**32 + 1, -(2**32), 9, 2**31]), np.uint32([0, 2**32 - 1, 2**31, 9, 10])):
            i, updates = mx.tensor(places, length), counting(length, hidden) + 1

            def all_three(table, i, updates):
                hot = mx.one_hot(i, mx.Dim("hot", 10))
                return mx.gather(table, i, vocab), mx.scatter_add(table, i, updates, vocab), hot

            gathered, added, hot = under(layout, all_three, table, i, updates)
            kept = np.where(fits, places, 0).astype(int)
            wanted = table.numpy().copy()
            np.add.at(wanted, kept[fits], updates.numpy()[fits])
            np.testing.assert_array_equal(gathered.numpy(), np.where(fits[:, None], table.numpy()[kept], 0))
            np.testing.assert_array_equal(added.numpy(), wanted)
            np.testing.assert_array_equal(hot.numpy(), fits[:, None] & (kept[:, None] == np.arange(10)))


def test_small_integers_index_large_dims():
    large = counting(mx.Dim("large", 300))

    taken = mx.gather(large, mx.tensor(np.int8([5, -1, 127]), "three"), "large")

    np.testing.assert_array_equal(taken.numpy(), [5, 0, 127])


cut, one, three = mx.dims(cut=6, one=1, three=3)
mx.Dim.declare({"joined": "cut, renamed"})
CUT = {  # what is added to is a block of a larger array
    "a scan's": lambda x: mx.scan(lambda c, r: (c, r * 1.0), mx.zeros(()), x, over="cut")[1],
    "a rename's": lambda x: x.rename(cut="joined").rename(joined="cut"),
    "a concat's": lambda x: mx.slice(mx.concat([x, x], "cut"), "cut", 3, 6),
    "a stack's": lambda x: mx.unstack(mx.stack([x, x + 1], "pair"), "pair")[1],
}


CUT_LAYOUTS = ["", "cut:rows", "cut:cols", "joined:rows", "cut:rows joined:cols", "three:cols"]


@pytest.mark.parametrize("layout", some(CUT_LAYOUTS, "cut:cols", "cut:rows joined:cols"))
def test_an_index_outside_of_a_block_changes_nothing_in_it(layout):
    x, updates = counting(cut, three), counting(one, three) + 1

    def add(x, i, updates):
        added = {name: mx.scatter_add(make(x), i, updates, cut) for name, make in CUT.items()}
        added["joined"] = mx.scatter_add(x.rename(cut="joined"), i, updates, "joined")
        loss = lambda x, make: mx.sum(mx.gather(make(x), i, cut) * updates)  # noqa: E731
        taken = {name: mx.grad(partial(loss, make=make))(x) for name, make in CUT.items()}
        return added, taken

    whole = x.numpy()
    starts = dict.fromkeys([*CUT, "joined"], whole)
    starts |= {"a concat's": np.concatenate([whole, whole])[3:9], "a stack's": whole + 1}
    program = mx.spmd(add, mesh, layout)
    for place in (0, 2, 3, 5, 6, -1):
        added, taken = program(x, mx.tensor(np.int32([place]), one), updates)
        for name, start in starts.items():
            wanted = start.copy()
            if 0 <= place < 6:
                wanted[place] += updates.numpy()[0]
            np.testing.assert_array_equal(added[name].numpy(), wanted, err_msg=f"{name}, {place}")
        for name in CUT:
            wanted = np.zeros((6, 3))
            if 0 <= place < 6:
                wanted[(place + 3) % 6 if name == "a concat's" else place] = updates.numpy()[0]
            np.testing.assert_array_equal(taken[name].numpy(), wanted, err_msg=f"{name}, {place}")


def scatters(jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive.name.startswith("scatter"):
            yield eqn
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from scatters(inner)


@pytest.mark.parametrize(("layout", "block"), [("", 10), ("vocab:cols", 3), ("length:rows vocab:cols", 3)])
def test_a_row_more_receives_what_is_dropped(layout, block):
    program = mx.spmd(lambda t, i, u: mx.scatter_add(t, i, u, vocab), mesh, layout)

    (found,) = scatters(program.trace(table, ids, counting(length, hidden)).jaxpr.jaxpr)

    assert found.invars[0].aval.shape == (block + 1, 4)


@pytest.mark.parametrize("layout", [None, "", "length:rows", "length:cols", "vocab:cols", "vocab:rows length:cols"])
def test_halves_overflow_only_where_the_result_does(layout):
    updates = mx.tensor(np.float16([60000, 60000, -60000, -59968, 7]), length)
    where = mx.tensor(np.int32([4, 4, 4, 4, 9]), length)

    added = under(layout, lambda x, i, u: mx.scatter_add(x, i, u, vocab), mx.ones(vocab, jnp.float16), where, updates)

    assert added.dtype == jnp.float16
    np.testing.assert_array_equal(added.numpy(), [1, 1, 1, 1, 33, 1, 1, 1, 1, 8])


@pytest.mark.parametrize("op", ["gather", "scatter_add", "one_hot"])
def test_places_along_a_dim_beyond_32_bits(op):
    long = mx.Dim("long", 2**31 + 1)

    def call(i):
        args = {"gather": (i, long), "scatter_add": (i, mx.ones(i.dims), long)}
        return mx.one_hot(i, long) if op == "one_hot" else getattr(mx, op)(mx.zeros(long), *args[op])

    with pytest.raises(mx.ShapeError, match=f"mx.{op} counts places along dim long:2147483649, which do not fit"):
        mx.spmd(call, mx.Mesh("data:64", abstract=True), "long:data").trace(ids)


@pytest.mark.parametrize("layout", some(["", "a:x", "a:y", "b:x a:y", "b:x+y"], "b:x a:y"))
@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.float16, jnp.int8])
def test_elements_and_ranges_by_name(layout, dtype):
    x = mx.tensor((np.arange(35).reshape(7, 5) % 3).astype(dtype), "a b")
    take = mx.spmd(
        lambda x: (x[{"a": -1}], x[{"b": 3, "a": slice(1, 6, 2)}], x[{}]), mx.Mesh("x:2 y:4"), layout
    )  # fmt: skip
    last, some_, every = take(x)
    assert last.shape == {"b": 5} and some_.shape == {"a": 3} and last.dtype == some_.dtype == dtype
    np.testing.assert_array_equal(last.numpy(), x.numpy()[-1])
    np.testing.assert_array_equal(some_.numpy(), x.numpy()[1:6:2, 3])
    np.testing.assert_array_equal(every.numpy(), x.numpy())


def test_an_element_of_an_unsplit_dim_costs_no_communication():
    x = mx.tensor(np.zeros((7, 5)), "a b")
    take = mx.spmd(lambda x: x[{"a": 3}], mx.Mesh("x:2 y:4"), "b:y")
    assert not take.explain(x).collectives


MISTAKES = {
    "a place without a name": (
        mx.ShapeError,
        lambda: counting(*mx.dims("a:7 b:5"))[3],
        """
        elements are taken by the names of dims, not by 3.
          values: [a:7, b:5]
          fix: name the dim: x[{"batch": 0}], or x[{"batch": slice(0, 2)}].
        """,
    ),
    "a place that is not there": (
        mx.ArgumentError,
        lambda: counting(*mx.dims("a:7 b:5"))[{"a": 7}],
        """
        dim a:7 has no element 7.
          fix: its elements are 0 to 6, or -7 to -1.
        """,
    ),
    "a place between two": (
        mx.ArgumentError,
        lambda: counting(*mx.dims("a:7 b:5"))[{"a": 1.5}],
        """
        mx.Tensor.__getitem__ takes integers, not a=1.5.
          rule: such a number is part of the program: it is known before the program runs.
          fix: pass a Python int.
        """,
    ),
    "an empty range": (
        mx.ArgumentError,
        lambda: counting(*mx.dims("a:7 b:5"))[{"a": slice(3, 3)}],
        """
        a range of dim a:7 is empty.
          rule: a dim has at least one element.
          fix: take one element or more.
        """,
    ),
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
