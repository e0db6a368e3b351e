"""Functions of local arrays, and printing from inside a program."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct
from jax.experimental import pallas
from jax.experimental.pallas import tpu

import meshax as mx
from example_tensors import counting
from extent import some
from messages import pinned

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)
mesh = mx.Mesh("rows:2 cols:4")

x, wave = counting(batch, length), mx.sin(counting(batch, hidden))


def under(layout, fn, *args):
    return fn(*args) if layout is None else mx.spmd(fn, mesh, layout)(*args)


sign = mx.Dim("sign", 2)


def both_signs(a):
    return jnp.stack([a, -a])


def gated(a, b, out=None):
    """A Pallas kernel as its author writes it, who knows nothing of meshes."""

    def kernel(a_ref, b_ref, out_ref):
        out_ref[...] = jnp.tanh(a_ref[...]) * b_ref[...]

    return pallas.pallas_call(
        kernel, out_shape=out or ShapeDtypeStruct(a.shape, a.dtype), interpret=tpu.InterpretParams()
    )(a, b)


@pytest.mark.parametrize("layout", [None, "", "batch:rows", "batch:cols hidden:rows", "hidden:rows+cols"])
def test_a_pallas_kernel(layout):
    def call(a, b):
        return mx.local(gated, a, b, out="batch hidden", splittable="batch hidden")

    made = under(layout, call, wave, counting(batch, hidden))

    assert made.dims == (batch, hidden)
    np.testing.assert_allclose(made.numpy(), np.tanh(wave.numpy()) * counting(batch, hidden).numpy(), rtol=1e-6)


def test_a_pallas_kernel_whose_result_was_described_before():
    out = ShapeDtypeStruct((3, 10), jnp.float32)

    def call(a):
        return mx.local(lambda a: gated(a, a, out), a, out=a.dims, splittable=batch)

    np.testing.assert_allclose(under("batch:rows", call, wave).numpy(), np.tanh(wave.numpy()) * wave.numpy(), rtol=1e-6)
    assert out.manual_axis_type is None


@pytest.mark.parametrize("layout", [None, "batch:rows", "hidden:rows+cols"])
def test_a_backward_pass_of_its_own_says_the_type(layout):
    """It is traced after mx.local has returned, which cannot say it."""
    own = jax.custom_vjp(lambda a: gated(a, a))
    typed = lambda a: ShapeDtypeStruct(a.shape, a.dtype, manual_axis_type=jax.typeof(a).mat)  # noqa: E731
    own.defvjp(lambda a: (gated(a, a), a), lambda a, ct: (gated(ct, a, typed(ct)),))

    loss = lambda x: mx.sum(mx.local(own, x, out=x.dims, splittable=x.dims) * 0.5)  # noqa: E731

    np.testing.assert_allclose(under(layout, mx.grad(loss), wave).numpy(), np.tanh(0.5) * wave.numpy(), rtol=1e-6)


def test_a_kernel_leaves_the_types_of_others_alone():
    plain = dict(vars(ShapeDtypeStruct))
    mx.spmd(lambda x: mx.local(jnp.tanh, x, out=x.dims, splittable=batch), mesh, "batch:rows")(x)
    assert dict(vars(ShapeDtypeStruct)) == plain

    with pytest.raises(ZeroDivisionError):
        mx.spmd(lambda x: mx.local(lambda a: 1 / 0, x, out=x.dims), mesh, "")(x)
    assert dict(vars(ShapeDtypeStruct)) == plain


def spectrum(x):
    return mx.local(lambda a: jnp.abs(jnp.fft.fft(a, axis=1)), x, out="batch hidden", splittable=batch)


FFT_LAYOUTS = ["", "batch:rows", "batch:cols", "batch:cols+rows length:rows"]


@pytest.mark.parametrize("layout", [None, *some(FFT_LAYOUTS, "batch:cols+rows length:rows")])
def test_an_fft_along_a_whole_dim(layout):
    made = under(layout, spectrum, wave)

    np.testing.assert_allclose(made.numpy(), np.abs(np.fft.fft(wave.numpy(), axis=1)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", [None, *some(FFT_LAYOUTS, "batch:cols+rows length:rows")])
def test_the_gradient_of_an_fft(layout):
    weights = counting(hidden, batch)
    wanted = jax.grad(lambda a: jnp.sum(jnp.abs(jnp.fft.fft(a, axis=1)) * weights.numpy().T))(wave.numpy())

    gradient = under(layout, mx.grad(lambda x: mx.sum(spectrum(x) * weights)), wave)

    np.testing.assert_allclose(gradient.numpy(), wanted, rtol=2e-5, atol=2e-4)


def test_an_fft_along_a_split_dim_by_another_name():
    def gathered(x):
        whole = x.rename(hidden="whole_hidden")
        made = mx.local(lambda a: jnp.fft.fft(a, axis=1).real, whole, out=whole.dims, splittable=batch)
        return made.rename(whole_hidden="hidden")

    made = under("hidden:cols batch:rows", gathered, wave)

    assert made.dims == (batch, hidden)
    np.testing.assert_allclose(made.numpy(), np.fft.fft(wave.numpy(), axis=1).real, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("layout", "block", "padded"), [("batch:cols", 2, 2), ("batch:rows+cols", 1, 2)])
def test_padding_repeats_the_first_element_and_is_not_in_the_result(layout, block, padded):
    sums = []

    def fn(a):
        assert a.shape == (block,)
        jax.debug.callback(lambda a: sums.append(float(np.sum(a))), a)
        return jnp.cos(a)

    def total(x):
        return mx.sum(mx.local(fn, mx.exp(x), out=batch, splittable=batch))

    given = counting(batch) / 4
    made = float(under(layout, total, given))
    jax.effects_barrier()

    np.testing.assert_allclose(made, np.cos(np.exp(given.numpy())).sum(), rtol=1e-5)
    seen = sum(sums) / (8 // (4 if layout == "batch:cols" else 8))  # each block is on one or two processors
    np.testing.assert_allclose(seen, np.exp(given.numpy()).sum() + padded * np.exp(given.numpy()[0]), rtol=1e-5)


UNEVEN = ["", "batch:rows", "batch:cols", "batch:rows+cols", "batch:cols+rows"]


@pytest.mark.parametrize("layout", some(UNEVEN, "batch:cols", "batch:cols+rows"))
def test_nothing_flows_back_through_padding_whatever_the_function_does_there(layout):
    """A row of zeros divided by its norm is NaN: a gradient that sums over rows must not see it."""

    def loss(scale, x, factor):
        unit = lambda a, c: a / jnp.linalg.norm(a, axis=1, keepdims=True) * c * factor  # noqa: E731
        return mx.sum(mx.square(mx.local(unit, x, scale, out=x.dims, splittable=batch)) * x)

    scale = counting(length) + 1.0
    gradients = mx.grad(loss, argnums=(0, 1, 2))
    twice = mx.grad(lambda s, x, f: mx.sum(mx.square(gradients(s, x, f)[1])), argnums=(0, 2))

    for fn in (gradients, twice):
        wanted, made = (call(scale, x + 1.0, jnp.float32(3)) for call in (fn, mx.spmd(fn, mesh, layout)))
        for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(wanted), strict=True):
            cut = np.asarray(one)[tuple(slice(n) for n in other.shape)]
            np.testing.assert_allclose(cut, other, rtol=2e-4)


def test_a_pending_sum_is_reduced_first():
    def fn(x):
        return mx.local(jnp.square, mx.sum(x, batch), out=length)

    np.testing.assert_array_equal(under("batch:rows", fn, x).numpy(), x.numpy().sum(0) ** 2)


def test_new_dims_and_another_order_of_dims():
    made = mx.local(lambda a: jnp.stack([a.T, -a.T], 1), x, out=("length", mx.Dim("sign", 2), batch))

    assert made.dims == (length, mx.Dim("sign", 2), batch)
    np.testing.assert_array_equal(made.numpy(), np.stack([x.numpy().T, -x.numpy().T], 1))


def shown(x):
    mx.debug_print("x {x} and {total} of {name}", x=x, total=mx.sum(x), name=3)
    return x * 2


VALUES = "x [0. 1. 2. 3. 4. 5. 6. 7. 8. 9.] and 45.0 of 3\n"


@pytest.mark.parametrize("layout", some(["", "hidden:rows", "hidden:cols", "hidden:rows+cols"], "hidden:cols"))
def test_whole_values_are_printed_once(layout, capfd):
    program = mx.spmd(shown, mesh, layout)
    for _ in range(2):
        program(counting(hidden)).array.block_until_ready()
        jax.effects_barrier()

    assert capfd.readouterr().out == 2 * VALUES


def test_values_outside_a_program_are_printed_without_padding(capfd):
    shown(counting(hidden))
    shown(mx.put(counting(hidden), mesh, "hidden:cols"))
    jax.effects_barrier()

    assert capfd.readouterr().out == 2 * VALUES


@pytest.mark.parametrize("layout", [None, "", "hidden:cols"])
def test_texts_and_trees_are_printed_too(layout, capfd):
    def fn(x):
        mx.debug_print("{what} {where:.1f} {tree}", what="sum", where=0.25, tree={"a": mx.sum(x), "b": ["c", x]})
        return x

    jax.block_until_ready(under(layout, fn, counting(hidden)).array)
    jax.effects_barrier()

    printed = capfd.readouterr().out
    assert printed.startswith("sum 0.2 {'a': ") and "'c'" in printed and "7., 8., 9.]" in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("layout", ["", "batch:cols"])
def test_a_loop_prints_in_each_iteration(layout, capfd):
    def total(x):
        def body(carry, part):
            mx.debug_print("carry {carry}", carry=carry)
            return carry + mx.sum(part), None

        return mx.scan(body, mx.zeros(()), x, over=length)[0]

    mx.spmd(total, mesh, layout)(x).array.block_until_ready()
    jax.effects_barrier()

    assert capfd.readouterr().out.split("\n") == ["carry 0.0", "carry 60.0", "carry 126.0", "carry 198.0", ""]


@pytest.mark.parametrize("layout", ["", "hidden:cols"])
def test_a_gradient_prints_once_and_is_the_same(layout, capfd):
    gradient = mx.spmd(mx.grad(lambda x: mx.sum(shown(x) * x)), mesh, layout)(counting(hidden))
    jax.effects_barrier()

    assert capfd.readouterr().out == VALUES
    np.testing.assert_array_equal(gradient.numpy(), 4 * np.arange(10))


MISTAKES = {
    "a dim that must not be split": (
        mx.LayoutError,
        lambda: under("hidden:cols", spectrum, wave),
        """
        the function of mx.local does not work on slices of 'hidden'.
          values: [batch:6, hidden:10] to [batch:6, hidden:10] under Layout("hidden:cols")
          rule: a dim that is split must be among splittable=.
          fix: rename it before, to a name without a rule: x.rename(hidden="whole_hidden").
        """,
    ),
    "two dims that must not be split": (
        mx.LayoutError,
        lambda: under("batch:rows length:cols", lambda x: mx.local(jnp.tanh, x, out=x.dims), x),
        """
        the function of mx.local does not work on slices of 'batch', 'length'.
          values: [batch:6, length:4] to [batch:6, length:4] under Layout("batch:rows length:cols")
          rule: a dim that is split must be among splittable=.
          fix: rename it before, to a name without a rule: x.rename(batch="whole_batch").
        """,
    ),
    "a new dim that is split": (
        mx.LayoutError,
        lambda: under("sign:rows", lambda x: mx.local(both_signs, x, out=(sign, *x.dims)), x),
        """
        the function of mx.local does not work on slices of 'sign'.
          values: [batch:6, length:4] to [sign:2, batch:6, length:4] under Layout("sign:rows")
          rule: a dim that is split must be among splittable=.
          fix: give the new dim a name without a rule, and rename the result: y.rename(whole_sign="sign").
        """,
    ),
    "a dim to split that is not there": (
        mx.ShapeError,
        lambda: mx.local(jnp.tanh, x, out=x.dims, splittable="bacth"),
        """
        there is no dim 'bacth' here.
          values: [batch:6, length:4]
          fix: did you mean "batch"?
        """,
    ),
    "an array of another shape": (
        mx.ShapeError,
        lambda: mx.local(lambda a: a[1:], x, out="batch length"),
        """
        the function of mx.local returned an array of another shape.
          values: (5, 4) for [batch:6, length:4], on one processor (6, 4)
          fix: correct out=, or what the function returns.
        """,
    ),
    "an array of another shape inside a program": (
        mx.ShapeError,
        lambda: under("batch:cols", lambda x: mx.local(jnp.transpose, x, out=x.dims, splittable=batch), x),
        """
        the function of mx.local returned an array of another shape.
          values: (4, 2) for [batch:6, length:4], on one processor (2, 4)
          fix: correct out=, or what the function returns.
        """,
    ),
    "several arrays": (
        mx.ShapeError,
        lambda: mx.local(lambda a: (a, a), x, out=x.dims),
        """
        the function of mx.local returned an array of another shape.
          values: tuple for [batch:6, length:4], on one processor (6, 4)
          fix: correct out=, or what the function returns.
        """,
    ),
    "a new dim without a size": (
        mx.ShapeError,
        lambda: mx.local(jnp.tanh, x, out="batch lengths"),
        """
        mx.local does not know the size of 'lengths'.
          rule: a new tensor is made of dims, which have sizes.
          fix: pass dims, for example mx.dims("batch:32 hidden:64").
        """,
    ),
    "no tensors": (
        mx.ShapeError,
        lambda: mx.local(lambda: jnp.ones(6), out=batch),
        """
        mx.local needs at least one tensor.
          fix: pass the tensors whose slices the function takes.
        """,
    ),
    "an array": (
        mx.ShapeError,
        lambda: mx.local(jnp.tanh, x.numpy(), out="batch length"),
        """
        mx.local takes tensors, not an array.
          values: float32[6, 4]
          rule: an array takes part in an operation through the names of its dims.
          fix: name them: mx.tensor(array, "batch hidden").
        """,
    ),
    "two sizes of one name": (
        mx.ShapeError,
        lambda: mx.local(jnp.add, x, counting(mx.Dim("length", 5)), out=x.dims),
        """
        dim 'length' has size 4 in one operand and 5 in another.
          values: [batch:6, length:4] and [length:5]
          rule: operands meet by name, and dims of one name have one size.
          fix: rename the dim of one operand if another dim is meant, or slice it to the same size.
        """,
    ),
}

test_messages = pinned(MISTAKES)


@pytest.mark.parametrize("layout", [None, "batch:rows"])
def test_what_is_recomputed_is_not_printed_again(layout, capfd):
    def loss(x):
        @mx.remat
        def outer(x):
            @mx.remat
            def inner(x):
                mx.debug_print("inner {total}", total=mx.sum(x))
                return mx.sin(x)

            mx.debug_print("outer {total}", total=mx.sum(x))
            return mx.sum(inner(x) * x)

        return outer(x)

    under(layout, mx.grad(loss), x)
    jax.effects_barrier()

    assert sorted(capfd.readouterr().out.split()) == ["276.0", "276.0", "inner", "outer"]


def test_threads_that_call_kernels_leave_jax_as_it_was():
    def work():
        mx.spmd(lambda x: mx.local(jnp.sin, x, out=x.dims, splittable=batch), mesh, "batch:rows")(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert jax.eval_shape(lambda a: a + 1, ShapeDtypeStruct((3,), jnp.float32)).shape == (3,)
