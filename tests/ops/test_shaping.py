"""Slice, pad, concat, stack, flip, shift and windows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from extent import some
from messages import pinned

batch, length, hidden, window = mx.dims(batch=6, length=4, hidden=10, window=3)
mesh = mx.Mesh("rows:2 cols:4")
LAYOUTS = ["", "hidden:cols", "hidden:rows+cols", "batch:cols hidden:rows"]
ROTATED = ["hidden:x", "hidden:y", "hidden:one", "hidden:x+y", "hidden:y+one+x"]
STACKED = ["", "batch:rows", "length:rows batch:cols", "copies:rows batch:cols"]

x, whole = counting(batch, length), counting(batch, hidden)


def under(layout, fn, *args):
    return mx.spmd(fn, mesh, layout)(*args)


# What each makes of [batch:6, hidden:10]: the dim keeps its name and its place, and has the new size.
RESIZED = {
    "slice": (lambda x: mx.slice(x, hidden, 2, 5), lambda a: a[:, 2:7]),
    "slice of one": (lambda x: mx.slice(x, "hidden", 9, 1), lambda a: a[:, 9:]),
    "slice of all": (lambda x: mx.slice(x, hidden, 0, 10), lambda a: a),
    "slice strided": (lambda x: mx.slice(x, hidden, 1, 4, stride=2), lambda a: a[:, 1:8:2]),
    "pad": (lambda x: mx.pad(x, hidden, 3, 1), lambda a: np.pad(a, [(0, 0), (3, 1)])),
    "pad with a value": (
        lambda x: mx.pad(x, hidden, 0, 7, -np.inf),
        lambda a: np.pad(a, [(0, 0), (0, 7)], constant_values=-np.inf),
    ),
    "pad by nothing": (lambda x: mx.pad(x, hidden, 0, 0), lambda a: a),
    "concat": (lambda x: mx.concat([x, mx.slice(x, hidden, 4, 3)], hidden), lambda a: np.hstack([a, a[:, 4:7]])),
    "concat of one": (lambda x: mx.concat([x], "hidden"), lambda a: a),
    "flip": (lambda x: mx.flip(x, hidden), lambda a: a[:, ::-1]),
    "shift": (lambda x: mx.shift(x, hidden, 3), lambda a: np.pad(a, [(0, 0), (3, 0)])[:, :10]),
    "shift back": (lambda x: mx.shift(x, hidden, -3), lambda a: np.pad(a, [(0, 0), (0, 3)])[:, 3:]),
    "shift by nothing": (lambda x: mx.shift(x, hidden, 0), lambda a: a),
    "shift out": (lambda x: mx.shift(x, hidden, -10), lambda a: a * 0),
    "wrap": (lambda x: mx.shift(x, hidden, 3, wrap=True), lambda a: np.roll(a, 3, 1)),
    "wrap twice around": (lambda x: mx.shift(x, hidden, -23, wrap=True), lambda a: np.roll(a, -23, 1)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("name", RESIZED)
def test_a_dim_keeps_its_name_and_gets_the_new_size(name, dtype):
    op, wanted = RESIZED[name]
    if name == "pad with a value" and dtype == np.int32:
        op, wanted = lambda x: mx.pad(x, hidden, 0, 7, -5), lambda a: np.pad(a, [(0, 0), (0, 7)], constant_values=-5)
    given = whole.astype(dtype)

    for fn in (op, lambda x: mx.transpose(op(mx.transpose(x, "hidden batch")), "batch hidden")):
        made = fn(given)
        expected = wanted(given.numpy()).astype(dtype)
        assert made.dims == (batch, mx.Dim("hidden", expected.shape[1]))
        np.testing.assert_array_equal(made.numpy(), expected, strict=True)


@pytest.mark.parametrize("layout", some(LAYOUTS, "batch:cols hidden:rows"))
def test_resized_dims_under_a_layout(layout):
    made = under(layout, lambda x: {name: op(x) for name, (op, _) in RESIZED.items()}, whole)

    for name, (op, wanted) in RESIZED.items():
        assert made[name].dims == op(whole).dims
        np.testing.assert_array_equal(made[name].numpy(), wanted(whole.numpy()), strict=True, err_msg=name)


@pytest.mark.parametrize(("size", "offset"), [(8, 1), (8, -1), (8, 2), (8, -2), (8, 9), (7, 1), (7, -1)])
def test_what_wraps_around_travels_with_the_rest(size, offset):
    ring = counting(batch, mx.Dim("ring", size))
    program = mx.spmd(lambda x: mx.shift(x, "ring", offset, wrap=True), mesh, "ring:cols")  # blocks of 2

    (sent,) = program.explain(ring).collectives
    assert (sent.kind, sent.axes, sent.shape) == ("permute", ("cols",), (6, abs(offset) % size))
    np.testing.assert_array_equal(program(ring).numpy(), np.roll(ring.numpy(), offset, 1))


@pytest.mark.parametrize(
    "layout", some(["hidden:x", "hidden:y", "hidden:one", "hidden:x+y", "hidden:y+one+x"], "hidden:y+one+x")
)
def test_every_rotation_and_its_gradient(layout):
    weights = counting(hidden, batch) + 1

    def all_of_them(x):
        turned = [mx.shift(x, hidden, offset, wrap=True) for offset in range(-11, 12)]
        return turned, mx.grad(lambda x: sum(mx.sum(mx.shift(x, hidden, n, wrap=True) * weights) for n in (1, 4)))(x)

    turned, gradient = mx.spmd(all_of_them, mx.Mesh("x:2 y:4 one:1"), layout)(whole)

    for offset, made in zip(range(-11, 12), turned):
        np.testing.assert_array_equal(made.numpy(), np.roll(whole.numpy(), offset, 1))
    wanted = sum(np.roll(weights.numpy().T, -n, 1) for n in (1, 4))
    np.testing.assert_array_equal(gradient.numpy(), wanted)


def test_a_result_is_no_parameter():
    assert {op(mx.param(whole)).role for name, (op, _) in RESIZED.items() if "nothing" not in name} == {None}


def test_concat_takes_the_order_of_the_first():
    turned = mx.transpose(mx.slice(x, length, 0, 1), "length batch")

    assert mx.concat([x, turned], length).dims == (batch, mx.Dim("length", 5))
    assert mx.concat([turned, x], length).dims == (mx.Dim("length", 5), batch)
    np.testing.assert_array_equal(
        mx.concat([turned, x], "length").numpy(), np.concatenate([x.numpy()[:, :1], x.numpy()], 1).T
    )


@pytest.mark.parametrize("layout", [None, *some(STACKED, "copies:rows batch:cols")])
@pytest.mark.parametrize("dim", ["copies", mx.Dim("copies", 3)], ids=["name", "dim"])
def test_a_stack_comes_first_and_unstack_takes_it_apart(layout, dim):
    def there_and_back(x):
        stacked = mx.stack([x, mx.transpose(x, "length batch") * 2, -x], dim)
        return stacked, mx.unstack(stacked, "copies")

    stacked, parts = there_and_back(x) if layout is None else under(layout, there_and_back, x)

    assert stacked.dims == (mx.Dim("copies", 3), batch, length)
    np.testing.assert_array_equal(stacked.numpy(), np.stack([x.numpy(), x.numpy() * 2, -x.numpy()]))
    assert [part.dims for part in parts] == [(batch, length)] * 3
    for part, factor in zip(parts, (1, 2, -1)):
        np.testing.assert_array_equal(part.numpy(), x.numpy() * factor)


@pytest.mark.parametrize("layout", [None, *some(LAYOUTS, "batch:cols hidden:rows")])
def test_unstack_along_a_dim_and_stack_back(layout):
    def there_and_back(x):
        return mx.stack(mx.unstack(x, "hidden"), hidden)

    made = there_and_back(whole) if layout is None else under(layout, there_and_back, whole)

    assert made.dims == (hidden, batch)
    np.testing.assert_array_equal(made.numpy(), whole.numpy().T)


@pytest.mark.parametrize("dtype", some([jnp.bfloat16, jnp.int8, jnp.bool_], jnp.int8))
@pytest.mark.parametrize("layout", [None, "hidden:cols"])
def test_dtypes_are_kept(layout, dtype):
    def all_of_them(x):
        x = x.astype(dtype)
        made = {name: op(x) for name, (op, _) in RESIZED.items() if name != "pad with a value"}
        return made | {"stack": mx.stack([x, x], "copies"), "windows": mx.windows(x, hidden, window, 1, 1)}

    made = all_of_them(whole) if layout is None else under(layout, all_of_them, whole)

    assert {name: x.dtype for name, x in made.items()} == dict.fromkeys(made, jnp.dtype(dtype))


def sliced(start, size, stride=1):
    return lambda: mx.slice(x, length, start, size, stride)


def no_slice(start, size, stride=1):
    return f"""
        dim length:4 has no such slice.
          values: start {start}, size {size}, stride {stride}
          rule: all elements lie in the dim, and there is at least one.
          fix: the last element is at start + (size - 1) * stride, and must be less than 4.
        """


def no_integer(op, wrong, also=""):
    return f"""
        mx.{op} takes integers, not {wrong}.
          rule: such a number is part of the program: it is known before the program runs.
          fix: pass a Python int{also}.
        """


NOT_A_DIM = """
    not a dim, nor the name of one: 0.
      rule: dims are named, not numbered.
      fix: name them, or pass dims made by mx.dims("batch:128 hidden:1024").
    """
COMPUTED = "; mx.gather takes places that are computed"


MOVED = {
    **{name: fn for name, (fn, _) in RESIZED.items() if "value" not in name},
    "exchanged": lambda x: x.rename(hidden="whole", batch="rows_of_it"),
    "gathered": lambda x: x.rename(hidden="whole"),
    "stacked": lambda x: mx.stack([x, x], "pair"),
    "windows": lambda x: mx.windows(x, hidden, window, before=1),
}
mx.Dim.declare({"whole": "hidden", "rows_of_it": "batch", "pair": "two of the same"})
MOVED_UNDER = [*LAYOUTS, "hidden:cols rows_of_it:cols", "pair:rows hidden:cols"]
DTYPES = ["bool", "int8", "uint32", "complex64", "float8_e4m3fn", "float8_e5m2fnuz"]


@pytest.mark.parametrize("layout", some(MOVED_UNDER, "hidden:cols rows_of_it:cols"))
@pytest.mark.parametrize("dtype", some(DTYPES, "bool", "float8_e5m2fnuz"))
def test_every_dtype_moves_as_it_is(dtype, layout):
    given = mx.tensor(
        jnp.asarray(np.arange(60).reshape(6, 10) * 7 % 5 - (dtype != "uint32") * 1, dtype), (batch, hidden)
    )

    def move(x):
        return {name: fn(x) for name, fn in MOVED.items()}

    found, wanted = under(layout, move, given), move(given)

    for name, x in found.items():
        assert x.dtype == given.dtype, name
        np.testing.assert_array_equal(x.numpy(), wanted[name].numpy(), err_msg=name)


HUGE = mx.Mesh("data:64 model:64", abstract=True)
long = mx.Dim("long", 2**33 + 7)
mx.Dim.declare({"longer": "long, renamed"})
RESHAPED = {
    "slice": lambda x: mx.slice(x, long, 5, 2**33),
    "pad": lambda x: mx.pad(x, long, 5, 2**33),
    "flip": lambda x: mx.flip(x, long),
    "shift": lambda x: mx.shift(x, long, 1),
    "concat": lambda x: mx.concat([x, x, x], long),
    "rename": lambda x: x.rename(long="longer"),
    "sort": lambda x: mx.sort(x, long),
    "cumsum": lambda x: mx.cumsum(x, long),
    "softmax": lambda x: mx.softmax(x, long),
    "product": lambda x: mx.einsum(x, x, over=long),
}


@pytest.mark.parametrize(
    "layout", some(["", "long:data", "long:data+model", "longer:data+model"], "", "longer:data+model")
)
def test_along_a_dim_beyond_32_bits(layout):
    given = mx.tensor(jax.ShapeDtypeStruct([long.size], np.float32), long)
    made = mx.spmd(lambda x: {name: fn(x) for name, fn in RESHAPED.items()}, HUGE, layout).trace(given).results

    assert {name: made[name].size for name in ("slice", "pad", "concat")} == {
        "slice": 2**33, "pad": 2**34 + 12, "concat": 3 * 2**33 + 21
    }  # fmt: skip


MISTAKES = {
    "a slice of fractions": (mx.ArgumentError, sliced(1.0, 2, True), no_integer("slice", "start=1.0, stride=True")),
    "a slice from a tensor": (
        mx.ArgumentError,
        sliced(mx.sum(mx.arange(batch)), 2),
        no_integer("slice", "start=Tensor[] int32 15", COMPUTED),
    ),
    "a slice from a traced number": (
        mx.ArgumentError,
        lambda: jax.jit(lambda start: mx.slice(x, length, start, 2))(1),
        no_integer("slice", "start=a traced value", COMPUTED),
    ),
    "a shift by a truth value": (
        mx.ArgumentError,
        lambda: mx.shift(x, length, True, wrap=True),
        no_integer("shift", "offset=True"),
    ),
    "a slice that ends too late": (mx.ArgumentError, sliced(1, 4), no_slice(1, 4)),
    "a slice that strides too far": (mx.ArgumentError, sliced(0, 3, 2), no_slice(0, 3, 2)),
    "a slice from the end": (mx.ArgumentError, sliced(-1, 1), no_slice(-1, 1)),
    "a slice of nothing": (mx.ArgumentError, sliced(2, 0), no_slice(2, 0)),
    "a slice backwards": (mx.ArgumentError, sliced(3, 2, -1), no_slice(3, 2, -1)),
    "a concat of one tensor": (
        mx.ShapeError,
        lambda: mx.concat(x, length),
        """
        mx.concat takes a list of tensors, not one tensor.
          fix: write mx.concat([x, y], dim).
        """,
    ),
    "a stack of a number": (
        mx.ShapeError,
        lambda: mx.stack(3, "copies"),
        """
        mx.stack takes a list of tensors, not int.
          fix: write mx.stack([x, y], dim).
        """,
    ),
    "a concat along a number": (mx.DimError, lambda: mx.concat([x, x], 0), NOT_A_DIM),
    "a stack along a number": (mx.DimError, lambda: mx.stack([x, x], 0), NOT_A_DIM),
    "a concat of nothing": (
        mx.ShapeError,
        lambda: mx.concat([], length),
        """
        mx.concat needs at least one tensor.
          fix: pass a list of tensors.
        """,
    ),
    "a concat of two dtypes": (
        mx.DtypeError,
        lambda: mx.concat([x, x.astype(jnp.int32)], length),
        """
        mx.concat joins tensors of one dtype.
          values: [batch:6, length:4] float32 and [batch:6, length:4] int32
          fix: cast some of them: x.astype(y.dtype).
        """,
    ),
    "a concat of other dims": (
        mx.ShapeError,
        lambda: mx.concat([x, counting(length), counting(hidden, length)], "length"),
        """
        mx.concat joins tensors whose other dims are the same.
          values: [batch:6, length:4] and [length:4] and [hidden:10, length:4]
          fix: rename or broadcast them.
        """,
    ),
    "a concat along a dim that one has not": (
        mx.ShapeError,
        lambda: mx.concat([x, counting(batch)], length),
        """
        there is no dim 'length' here.
          values: [batch:6]
          fix: known names: batch.
        """,
    ),
    "a concat of arrays": (
        mx.ShapeError,
        lambda: mx.concat([x, x.numpy()], length),
        """
        mx.concat takes tensors, not an array.
          values: float32[6, 4]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "a stack of nothing": (
        mx.ShapeError,
        lambda: mx.stack([], "copies"),
        """
        mx.stack needs at least one tensor.
          fix: pass a list of tensors.
        """,
    ),
    "a stack of two dtypes": (
        mx.DtypeError,
        lambda: mx.stack([counting(length), counting(length) > 1], "copies"),
        """
        mx.stack joins tensors of one dtype.
          values: [length:4] float32 and [length:4] bool
          fix: cast some of them: x.astype(y.dtype).
        """,
    ),
    "a stack of other dims": (
        mx.ShapeError,
        lambda: mx.stack([x, counting(length)], "copies"),
        """
        mx.stack joins tensors of the same dims.
          values: [batch:6, length:4] and [length:4]
          fix: rename or broadcast them.
        """,
    ),
    "a stack along a dim that is there": (
        mx.DimError,
        lambda: mx.stack([x, x], "batch"),
        """
        one shape has two dims of the name 'batch'.
          values: [batch:2, batch:6, length:4]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
    "a stack of another size": (
        mx.ShapeError,
        lambda: mx.stack([x, x], mx.Dim("copies", 3)),
        """
        2 tensors do not make a dim copies:3.
          fix: pass the name 'copies' alone.
        """,
    ),
}


@pytest.mark.parametrize("name", ["slice", "pad", "flip", "shift", "windows", "unstack"])
def test_each_takes_a_tensor_and_one_of_its_dims(name):
    args = {"slice": (0, 1), "pad": (1, 1), "shift": (1,), "windows": (window,)}.get(name, ())
    op = getattr(mx, name)

    with pytest.raises(mx.ShapeError, match=f"mx.{name} takes tensors, not an array."):
        op(x.numpy(), length, *args)
    with pytest.raises(mx.ShapeError, match=r"there is no dim 'lenght' here.(.|\n)*did you mean \"length\"\?"):
        op(x, "lenght", *args)


test_messages = pinned(MISTAKES)
