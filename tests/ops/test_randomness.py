"""Random numbers equal jax.random's, bit for bit, under every layout, uneven ones included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from extent import some
from meshax.ops.randomness import _places
from messages import pinned

KEY = jax.random.key(7)
a, b, c, batch = mx.dims(a=10, b=6, c=7, batch=6)
LAYOUTS = ["", "a:x", "a:x+y", "a:y+x b:z", "a:x b:y c:z", "c:x a:z+y", "b:x+y+z", "c:z+x+y"]
SAMPLERS = {
    "normal": (lambda d: mx.random.normal(KEY, d), lambda s: jax.random.normal(KEY, s)),
    "uniform": (
        lambda d: mx.random.uniform(KEY, d, -2.0, 5.0),
        lambda s: jax.random.uniform(KEY, s, minval=-2.0, maxval=5.0),
    ),
    "truncated_normal": (
        lambda d: mx.random.truncated_normal(KEY, d),
        lambda s: jax.random.truncated_normal(KEY, -2.0, 2.0, s),
    ),
    "gumbel": (lambda d: mx.random.gumbel(KEY, d), lambda s: jax.random.gumbel(KEY, s)),
    "exponential": (lambda d: mx.random.exponential(KEY, d), lambda s: jax.random.exponential(KEY, s)),
    "bernoulli": (lambda d: mx.random.bernoulli(KEY, d, 0.3), lambda s: jax.random.bernoulli(KEY, 0.3, s)),
    "randint": (lambda d: mx.random.randint(KEY, d, -3, 1000), lambda s: jax.random.randint(KEY, s, -3, 1000)),
    "bfloat16": (lambda d: mx.random.normal(KEY, d, jnp.bfloat16), lambda s: jax.random.normal(KEY, s, jnp.bfloat16)),
    "int8": (lambda d: mx.random.randint(KEY, d, 0, 9, jnp.int8), lambda s: jax.random.randint(KEY, s, 0, 9, jnp.int8)),
}


@pytest.mark.parametrize("layout", some(LAYOUTS, "a:x b:y c:z", "c:z+x+y"))
def test_samplers_equal_jax_random(layout):
    drawn = mx.spmd(lambda: [draw((a, b, c)) for draw, _ in SAMPLERS.values()], mx.Mesh("x:2 y:2 z:2"), layout)()
    for name, one in zip(SAMPLERS, drawn, strict=True):
        assert one.numpy().tobytes() == np.asarray(SAMPLERS[name][1]((10, 6, 7))).tobytes(), name


def test_samplers_outside_a_program_equal_jax_random():
    for draw, wanted in SAMPLERS.values():
        assert draw((a, b)).numpy().tobytes() == np.asarray(wanted((10, 6))).tobytes()


def test_old_style_keys_are_the_same_keys():
    assert (mx.random.normal(jax.random.PRNGKey(7), a).numpy() == mx.random.normal(KEY, a).numpy()).all()


def test_a_key_split_or_folded_inside_a_program():
    def draw(key):
        first, second = jax.random.split(key)
        return mx.random.normal(first, a), mx.random.normal(jax.random.fold_in(second, 3), a)

    for got, wanted in zip(mx.spmd(draw, mx.Mesh("x:8"), "a:x")(KEY), draw(KEY), strict=True):
        assert (got.numpy() == wanted.numpy()).all()


@pytest.mark.parametrize("layout", some(LAYOUTS, "a:y+x b:z"))
def test_dropout_drops_the_same_elements_under_every_layout(layout):
    x = mx.tensor(np.arange(1, 61, dtype=np.float32).reshape(10, 6), (a, b))
    drop = lambda x: mx.random.dropout(KEY, x, 0.4)  # noqa: E731
    got = mx.spmd(drop, mx.Mesh("x:2 y:2 z:2"), layout)(x).numpy()
    kept = np.asarray(jax.random.bernoulli(KEY, 0.6, (10, 6)))
    np.testing.assert_allclose(got, np.where(kept, x.numpy() / np.float32(0.6), 0), rtol=1e-6)


@pytest.mark.parametrize("layout", some(LAYOUTS, "a:y+x b:z"))
def test_categorical_and_permutation_equal_jax_random(layout):
    logits = mx.tensor(np.sin(np.arange(420, dtype=np.float32)).reshape(10, 6, 7), (a, b, c))

    def draw(logits):
        drawn = [mx.random.categorical(KEY, logits, over=dim) for dim in (a, b, c)]
        return drawn, [mx.random.permutation(KEY, dim) for dim in (a, b, c)]

    drawn, orders = mx.spmd(draw, mx.Mesh("x:2 y:2 z:2"), layout)(logits)
    for axis, (places, order) in enumerate(zip(drawn, orders)):
        wanted = jax.random.categorical(KEY, logits.numpy(), axis=axis)
        assert places.dims == tuple(dim for i, dim in enumerate((a, b, c)) if i != axis)
        np.testing.assert_array_equal(places.numpy(), np.asarray(wanted, np.int32), strict=True)
        wanted = jax.random.permutation(KEY, np.arange(logits.dims[axis].size, dtype=np.int32))
        np.testing.assert_array_equal(order.numpy(), wanted, strict=True)


def test_categorical_and_permutation_outside_a_program():
    logits = mx.tensor(np.sin(np.arange(60, dtype=np.float32)).reshape(10, 6), (a, b))
    wanted = jax.random.categorical(KEY, logits.numpy(), axis=0)

    np.testing.assert_array_equal(mx.random.categorical(KEY, logits, "a").numpy(), wanted)
    np.testing.assert_array_equal(mx.random.permutation(KEY, a).numpy(), jax.random.permutation(KEY, 10))


def test_no_dropout_is_no_work():
    x = mx.ones((a,))
    assert mx.random.dropout(KEY, x, 0.0) is x


def test_places_beyond_32_bits():
    """A tensor of more than 2**32 elements: the place of an element takes 64 bits."""
    high, low = _places(jnp.array([2, 17497, 20], jnp.uint32), (3, 70000, 70000), (1, 4, 5))
    places = (np.asarray(high).astype(object) << 32) + np.asarray(low).astype(object)
    wanted = ((2 * 70000 + 69988 + np.arange(4))[:, None] * 70000 + 100 + np.arange(5)).astype(object)
    assert (places[0] == wanted).all()


def test_places_along_one_dim_beyond_32_bits():
    """The first place of a block does not fit into 32 bits either."""
    block, whole = 2**21 + 1, 2**33 + 7
    high, low = _places(jnp.array([4000, 1], jnp.uint32), (whole, 3), (block, 2))
    places = (np.asarray(high[-1]).astype(object) << 32) + np.asarray(low[-1]).astype(object)
    assert list(places) == [(4000 * block + block - 1) * 3 + 2, (4000 * block + block - 1) * 3 + 3]


HUGE = mx.Mesh("data:64 model:64", abstract=True)
wide, high, long = mx.dims(wide=32768, high=65536, long=2**33 + 7)
DRAWN = {
    "normal": lambda dims: mx.random.normal(KEY, dims),
    "uniform": lambda dims: mx.random.uniform(KEY, dims),
    "bernoulli": lambda dims: mx.random.bernoulli(KEY, dims),
    "randint": lambda dims: mx.random.randint(KEY, dims, 0, 5),
    "dropout": lambda dims: mx.random.dropout(KEY, mx.ones(dims), 0.1),
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("dims", [(high, wide), (long,)], ids=str)
def test_more_elements_than_32_bits_count(name, dims):
    program = mx.spmd(lambda: DRAWN[name](dims), HUGE, "long:data+model high:data wide:model")

    assert program.trace().results.dims == dims


MISTAKES = {
    "places that do not fit": (
        mx.ShapeError,
        lambda: mx.random.permutation(KEY, mx.Dim("long", 2**31 + 1)),
        """
        mx.random.permutation counts places along dim long:2147483649, which do not fit into int32.
          rule: places along a dim are int32: at most 2147483648 of them.
          fix: use two dims in its place, for example of 65536 and the rest.
        """,
    ),
    "a choice among more than fit": (
        mx.ShapeError,
        lambda: (
            mx.spmd(lambda: mx.random.categorical(KEY, mx.zeros(long), long), HUGE, "long:data+model").trace().jaxpr
        ),
        """
        mx.random.categorical counts places along dim long:8589934599, which do not fit into int32.
          rule: places along a dim are int32: at most 2147483648 of them.
          fix: use two dims in its place, for example of 65536 and the rest.
        """,
    ),
    "a key of another generator": (
        mx.DtypeError,
        lambda: mx.random.normal(jax.random.key(0, impl="rbg"), batch),
        """
        mx.random takes one threefry key, not a rbg key of shape ().
          rule: only partitionable threefry keys give each processor the numbers of its own slice.
          fix: make it with jax.random.key(seed), and split it with jax.random.split.
        """,
    ),
    "several keys": (
        mx.DtypeError,
        lambda: mx.random.normal(jax.random.split(KEY, 3), batch),
        """
        mx.random takes one threefry key, not a threefry2x32 key of shape (3,).
          rule: only partitionable threefry keys give each processor the numbers of its own slice.
          fix: make it with jax.random.key(seed), and split it with jax.random.split.
        """,
    ),
    "a seed": (
        mx.DtypeError,
        lambda: mx.random.uniform(7, batch),
        """
        mx.random takes one threefry key, not int.
          rule: only partitionable threefry keys give each processor the numbers of its own slice.
          fix: make it with jax.random.key(seed), and split it with jax.random.split.
        """,
    ),
    "a rate of one": (
        mx.ArgumentError,
        lambda: mx.random.dropout(KEY, counting(batch), 1.0),
        """
        a dropout rate is at least 0 and less than 1, not 1.0.
          fix: for example 0.1.
        """,
    ),
    "a negative rate": (
        mx.ArgumentError,
        lambda: mx.random.dropout(KEY, counting(batch), -0.1),
        """
        a dropout rate is at least 0 and less than 1, not -0.1.
          fix: for example 0.1.
        """,
    ),
    "logits that are an array": (
        mx.ShapeError,
        lambda: mx.random.categorical(KEY, np.zeros(6, np.float32), "batch"),
        """
        mx.random.categorical takes tensors, not an array.
          values: float32[6]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "logits that are integers": (
        mx.DtypeError,
        lambda: mx.random.categorical(KEY, mx.arange(batch), over=batch),
        f"""
        logits are floating numbers, not int32.
          values: [{batch}]
          fix: cast them with .astype.
        """,
    ),
    "dropout of an array": (
        mx.ShapeError,
        lambda: mx.random.dropout(KEY, np.zeros(6, np.float32), 0.5),
        """
        mx.random.dropout takes tensors, not an array.
          values: float32[6]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "a permutation of two dims": (
        mx.ShapeError,
        lambda: mx.random.permutation(KEY, mx.dims("first:2 second:2")),
        """
        mx.random.permutation takes one dim, not 2.
          values: [first:2, second:2]
          fix: pass one dim.
        """,
    ),
    "a permutation of a name": (
        mx.ShapeError,
        lambda: mx.random.permutation(KEY, "batch"),
        """
        mx.random.permutation does not know the size of 'batch'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
    "a name without a size": (
        mx.ShapeError,
        lambda: mx.random.bernoulli(KEY, "batch"),
        """
        mx.random.bernoulli does not know the size of 'batch'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
}

test_messages = pinned(MISTAKES)


def test_message_where_random_numbers_would_depend_on_the_layout():
    with jax.threefry_partitionable(False), pytest.raises(mx.DtypeError) as raised:
        mx.random.normal(KEY, batch)

    assert str(raised.value) == (
        "random numbers would depend on the layout.\n"
        "  rule: only partitionable threefry keys give each processor the numbers of its own slice.\n"
        '  fix: jax.config.update("jax_threefry_partitionable", True).'
    )
