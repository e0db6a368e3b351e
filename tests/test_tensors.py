"""The named array: what it holds, how it prints, and that it is a pytree."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import counting
from messages import pinned

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)
mesh = mx.Mesh("rows:2 cols:4")


def split(layout, fn, *args):
    return mx.spmd(fn, mesh, layout)(*args)


@pytest.mark.parametrize("dims", ["batch length", "batch, length", ("batch", length), [batch, length]])
def test_dims_or_names_name_an_array(dims):
    x = mx.tensor(np.zeros((6, 4), np.int32), dims)

    assert x.dims == (batch, length)
    assert (x.dtype, x.size, x.role) == (np.int32, 24, None)
    assert x.dim("length") == x.dim(length) == length


def test_a_tensor_says_its_sizes_and_shows_its_number():
    x = counting(batch, length)
    assert x.shape == {"batch": 6, "length": 4} and list(x.shape) == ["batch", "length"] and mx.sum(x).shape == {}
    assert f"{mx.mean(x):.3f}" == "11.500" and f"{x.dtype} {mx.sum(x)}" == "float32 Tensor[] float32 276."
    assert f"{mx.sum(x).astype(jnp.bfloat16):6.1f}|" == " 276.0|"
    with pytest.raises(TypeError, match="not iterable"):
        list(x)


@pytest.mark.parametrize(
    ("array_like", "dims", "size"), [([[1, 2, 3]], "rows cols", 3), (2.5, "", 1), (jnp.ones(4), "length", 4)]
)
def test_anything_like_an_array_can_be_named(array_like, dims, size):
    x = mx.tensor(array_like, dims)

    assert x.size == size
    np.testing.assert_array_equal(x.numpy(), array_like)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(np.float64, np.float32), (np.int64, np.int32), (np.complex128, np.complex64), (np.float16, np.float16)],
)
def test_an_array_from_the_host_has_the_dtype_that_jax_gives_it(given, kept):
    x = mx.tensor(np.ones(6, given), batch)

    assert x.dtype == kept == jnp.asarray(x.array).dtype
    assert mx.einsum(x, mx.ones(batch, kept), over=batch).numpy() == 6


@pytest.mark.parametrize("number", [np.float64(3), np.float32(3), np.array(3.0), 3.0])
def test_a_number_has_the_dtype_that_jax_gives_it(number):
    assert mx.tensor(number, "").dtype == np.float32


def test_vmap_over_arrays_that_become_tensors():
    """What the message about `jax.vmap` says."""
    x = counting(batch, length)
    totals = jax.vmap(lambda array: mx.sum(mx.tensor(array, "length") * 2).array)(x.array)
    np.testing.assert_array_equal(totals, mx.sum(2 * x, over="length").numpy())


def test_a_parameter_is_the_same_tensor_in_a_role():
    x = counting(batch)

    w = mx.param(x)

    assert (w.role, w.dims) == ("param", (batch,))
    assert w.array is x.array and x.role is None


def test_a_pytree_keeps_dims_and_role():
    tree = {"w": mx.param(counting(batch, hidden)), "x": counting(length)}

    doubled = jax.tree.map(lambda array: array * 2, tree)

    assert (doubled["w"].dims, doubled["w"].role) == ((batch, hidden), "param")
    assert (doubled["x"].dims, doubled["x"].role) == ((length,), None)
    np.testing.assert_array_equal(doubled["w"].numpy(), 2 * tree["w"].numpy())
    assert jax.tree.structure(doubled) == jax.tree.structure(tree)


def test_the_role_is_part_of_the_structure():
    x = counting(batch)

    assert jax.tree.structure(x) != jax.tree.structure(mx.param(x))
    assert jax.tree.structure(x) != jax.tree.structure(x.rename(batch="length"))


def test_a_pytree_path_names_the_array():
    (path, array), *_ = jax.tree_util.tree_flatten_with_path({"w": counting(batch)})[0]

    assert jax.tree_util.keystr(path) == "['w'].array"
    assert array.shape == (6,)


def test_jax_transformations_see_through_tensors():
    x = counting(batch)

    np.testing.assert_array_equal(jax.jit(lambda x: x * 2)(x).numpy(), 2 * x.numpy())
    np.testing.assert_array_equal(jax.grad(lambda x: mx.sum(x * x).array)(x).numpy(), 2 * x.numpy())


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (counting(batch), "Tensor[batch:6] float32 [0. 1. 2. 3. 4. 5.]"),
        (mx.param(counting(length, dtype=np.int32)), "Tensor[length:4] int32 param [0 1 2 3]"),
        (mx.tensor(2.5, ""), "Tensor[] float32 2.5"),
        (counting(mx.Dim("long", 100)), "Tensor[long:100] float32 [ 0.  1. ... 98. 99.]"),
        (mx.tensor(jax.ShapeDtypeStruct((6,), jnp.bfloat16), batch), "Tensor[batch:6] bfloat16"),
    ],
)
def test_repr_outside_a_program_shows_values(x, text):
    assert repr(x) == text


def test_repr_inside_a_program_shows_the_split():
    seen = {}

    def show(x, w):
        seen.update(x=repr(x), w=repr(w), summed=repr(mx.sum(x, batch)))
        seen.update(renamed=repr(x.rename(batch="items")), constant=repr(counting(batch)))
        return x

    mx.dims(items=6)
    split("batch:rows hidden:cols", show, counting(batch, hidden), mx.param(counting(length)))

    assert seen["x"] == "Tensor[batch:6/rows, hidden:10/cols] float32"
    assert seen["w"] == "Tensor[length:4] float32 param"
    assert seen["summed"] == "Tensor[hidden:10/cols] float32 pending over rows"
    assert seen["renamed"] == "Tensor[items:6/rows, hidden:10/cols] float32"  # gathered once its use is known
    assert seen["constant"] == "Tensor[batch:6] float32 [0. 1. 2. 3. 4. 5.]"


def test_numpy_crops_the_padding():
    x = counting(hidden, length)

    placed = mx.put(x, mesh, "hidden:cols")

    assert placed.array.shape == (12, 4)
    assert (placed.size, placed.dims) == (40, (hidden, length))
    np.testing.assert_array_equal(placed.numpy(), x.numpy())


def test_numpy_reads_the_value_without_padding():
    placed = mx.put(counting(hidden), mesh, "hidden:cols")

    np.testing.assert_array_equal(np.asarray(placed), np.arange(10, dtype=np.float32), strict=True)
    np.testing.assert_array_equal(np.asarray(placed, np.int32), np.arange(10, dtype=np.int32), strict=True)


@pytest.mark.parametrize("layout", [None, "", "hidden:cols"])
def test_a_numpy_array_of_a_tensor_is_a_copy(layout):
    x = counting(hidden) if layout is None else mx.put(counting(hidden), mesh, layout)

    copy = np.array(x)
    copy[:] = -1

    np.testing.assert_array_equal(x.numpy(), np.arange(10))


def test_operations_outside_a_program_crop_the_padding():
    placed = mx.put(counting(hidden), mesh, "hidden:cols")

    assert float(mx.sum(placed)) == 45
    assert (placed + 1).array.shape == (10,)


ARRAY, OTHER = np.arange(1.0, 7.0, dtype=np.float32), np.float32([3, 1, 4, 1, 5, 9])
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


@pytest.mark.parametrize("op", ARITHMETIC + COMPARISONS, ids=lambda op: op.__name__)
def test_operators(op):
    x, y = mx.tensor(ARRAY, batch), mx.tensor(OTHER, batch)

    np.testing.assert_allclose(op(x, y).numpy(), op(ARRAY, OTHER), rtol=1e-6)
    for number in (3, 3.0, np.float32(3), np.int32(3), np.array(3.0, np.float32), jnp.float32(3)):
        np.testing.assert_allclose(op(x, number).numpy(), op(ARRAY, np.float32(3)), rtol=1e-6)
        np.testing.assert_allclose(op(number, x).numpy(), op(np.float32(3), ARRAY), rtol=1e-6)


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor], ids=lambda op: op.__name__)
def test_logical_operators(op):
    x, y = mx.tensor(ARRAY > 2, batch), mx.tensor(OTHER > 3, batch)

    np.testing.assert_array_equal(op(x, y).numpy(), op(ARRAY > 2, OTHER > 3))
    np.testing.assert_array_equal(op(True, x).numpy(), op(True, ARRAY > 2))


@pytest.mark.parametrize("op", [operator.neg, operator.abs], ids=lambda op: op.__name__)
def test_unary_operators(op):
    np.testing.assert_array_equal(op(mx.tensor(ARRAY - 3, batch)).numpy(), op(ARRAY - 3))


def test_invert():
    np.testing.assert_array_equal((~mx.tensor(ARRAY > 2, batch)).numpy(), ~(ARRAY > 2))


def test_operands_meet_by_name_in_the_left_ones_order():
    x, y = counting(batch, length), counting(hidden, batch)

    total = x + y

    assert total.dims == (batch, length, hidden)
    np.testing.assert_array_equal(total.numpy(), x.numpy()[:, :, None] + y.numpy().T[:, None, :])


def test_a_tensor_of_one_element_is_a_number():
    assert float(mx.tensor(2.5, "")) == 2.5
    assert int(mx.tensor(7, "")) == 7
    assert bool(mx.tensor(True, "")) is True and bool(mx.tensor(0.0, "")) is False
    assert mx.tensor([2.5], "batch").item() == 2.5


def test_a_tensor_is_not_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        hash(counting(batch))


MISTAKES = {
    "a tensor of a tensor": (
        mx.ShapeError,
        lambda: mx.tensor(counting(length), "length"),
        """
        this is a tensor already.
          values: Tensor[length:4] float32 [0. 1. 2. 3.]
          fix: use mx.rename to rename its dims.
        """,
    ),
    "fewer dims than the array": (
        mx.ShapeError,
        lambda: mx.tensor(np.zeros((6, 4)), "batch"),
        """
        1 dims do not name an array of 2 dimensions.
          values: batch for shape (6, 4)
          fix: give one name for each dimension of the array, in its order.
        """,
    ),
    "no dims for an array": (
        mx.ShapeError,
        lambda: mx.tensor(np.zeros((6, 4)), ()),
        """
        0 dims do not name an array of 2 dimensions.
          values: no dims for shape (6, 4)
          fix: give one name for each dimension of the array, in its order.
        """,
    ),
    "sizes in another order": (
        mx.ShapeError,
        lambda: mx.tensor(np.zeros((6, 4)), (length, batch)),
        """
        the sizes of the dims are not those of the array.
          values: [length:4, batch:6] for shape (6, 4)
          fix: correct the order or the sizes, or give names only: the sizes are then the array's.
        """,
    ),
    "a size that is not the array's": (
        mx.ShapeError,
        lambda: mx.tensor(np.zeros(6), mx.Dim("batch", 7)),
        """
        the sizes of the dims are not those of the array.
          values: [batch:7] for shape (6,)
          fix: correct the order or the sizes, or give names only: the sizes are then the array's.
        """,
    ),
    "a name twice": (
        mx.DimError,
        lambda: mx.tensor(np.zeros((6, 6)), "batch batch"),
        """
        one shape has two dims of the name 'batch'.
          values: [batch:6, batch:6]
          rule: the dims of a tensor have different names.
          fix: name it once; if another dim is meant, rename that first: x.rename(length="memory_length").
        """,
    ),
    "a dim that it has not": (
        mx.ShapeError,
        lambda: counting(batch, length).dim("lenght"),
        """
        there is no dim 'lenght' here.
          values: [batch:6, length:4]
          fix: did you mean "length"?
        """,
    ),
    "a dim of another size": (
        mx.ShapeError,
        lambda: counting(batch, length).dim(mx.Dim("batch", 3)),
        """
        dim 'batch' has size 6 here, not 3.
          values: [batch:6, length:4]
          rule: dims of one name have one size.
          fix: use the dim's name, or x.dim('batch'), where the size may vary.
        """,
    ),
    "a parameter that is an array": (
        mx.ShapeError,
        lambda: mx.param(np.zeros(6)),
        """
        mx.param takes tensors, not an array.
          values: float64[6]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "a slice named as a whole": (
        mx.LayoutError,
        lambda: split("batch:rows", lambda x: mx.tensor(x.array, "batch"), counting(batch)),
        """
        an array without names differs between processors.
          values: float32[3] over rows
          rule: inside a program, only a tensor can be split: its dims say how the slices fit together.
          fix: use the tensor itself, not its .array.
        """,
    ),
    "a slice under another name": (
        mx.LayoutError,
        lambda: split("batch:rows hidden:cols", lambda x: mx.tensor(x.array, "a b"), counting(batch, hidden)),
        """
        an array without names differs between processors.
          values: float32[3, 3] over cols+rows
          rule: inside a program, only a tensor can be split: its dims say how the slices fit together.
          fix: use the tensor itself, not its .array.
        """,
    ),
    "a number of several elements": (
        mx.ShapeError,
        lambda: float(counting(batch, length)),
        """
        only a tensor of one element is a number.
          values: [batch:6, length:4]
          fix: reduce it first, or use .numpy().
        """,
    ),
    "a truth value of several elements": (
        mx.ShapeError,
        lambda: counting(batch) if counting(batch) > 2 else None,
        """
        only a tensor of one element is a number.
          values: [batch:6]
          fix: reduce it first, or use .numpy().
        """,
    ),
    "a truth value of several elements inside a program": (
        mx.MeshaxError,
        lambda: split("batch:rows", lambda x: x if x > 2 else -x, counting(batch)),
        """
        a tensor inside a program is not true or false yet.
          values: Tensor[batch:6/rows] bool
          fix: choose elements with mx.where, what to compute with mx.cond, and how often with mx.while_loop.
        """,
    ),
    "the value as an array inside a program": (
        mx.MeshaxError,
        lambda: split("batch:rows", lambda x: x * np.asarray(x)[0], counting(batch)),
        """
        a tensor inside a program has no value yet.
          values: Tensor[batch:6/rows] float32
          fix: return it from the program, and look at the result; or print it there with mx.debug_print.
        """,
    ),
    "a number shown inside a program": (
        mx.MeshaxError,
        lambda: split("batch:rows", lambda x: f"{x.sum():.3f}", counting(batch)),
        """
        a tensor inside a program has no value yet.
          values: Tensor[] float32 pending over rows
          fix: return it from the program, and look at the result; or print it there with mx.debug_print.
        """,
    ),
    "jax.vmap over tensors": (
        mx.ShapeError,
        lambda: jax.vmap(lambda x: 2 * x)(counting(batch, length)),
        """
        the array of a tensor has 1 dimensions, the tensor 2.
          values: [batch:6, length:4] with an array of shape (4,)
          rule: a function of trees (jax.tree.map, jax.vmap, optax) may change elements of a tensor, not its shape.
          fix: use operations of meshax: they keep dims that they do not know, without jax.vmap. Or give jax.vmap a function of arrays, which makes the tensor: lambda array: f(mx.tensor(array, dims)).array.
        """,  # noqa: E501
    ),
    "the value inside a program": (
        mx.MeshaxError,
        lambda: split("batch:rows", lambda x: x.numpy(), counting(batch)),
        """
        a tensor inside a program has no value yet.
          values: Tensor[batch:6/rows] float32
          fix: return it from the program, and look at the result; or print it there with mx.debug_print.
        """,
    ),
    "the value of a pending sum": (
        mx.MeshaxError,
        lambda: split("batch:rows", lambda x: x if mx.sum(x) > 0 else -x, counting(batch)),
        """
        a tensor inside a program is not true or false yet.
          values: Tensor[] bool
          fix: choose elements with mx.where, what to compute with mx.cond, and how often with mx.while_loop.
        """,
    ),
}

test_messages = pinned(MISTAKES)
