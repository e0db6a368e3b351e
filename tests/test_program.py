"""Programs: one trace, no copies between calls, and a layout that never leaks into another program."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import meshax as mx
from example_tensors import counting
from messages import pinned

batch, length, hidden = mx.dims(batch=6, length=4, hidden=10)
mesh = mx.Mesh("rows:2 cols:4")
nowhere = mx.Mesh("rows:2 cols:4", abstract=True)


def described(*dims, dtype=jnp.float32):
    """A tensor of which only the shape is known."""
    return mx.tensor(jax.ShapeDtypeStruct([dim.size for dim in dims], dtype), dims)


def pointers(x):
    return [shard.data.unsafe_buffer_pointer() for shard in x.array.addressable_shards]


def shapes(x):
    return {shard.data.shape for shard in x.array.addressable_shards}


class Traced:
    """A function that counts how often Python runs it."""

    def __init__(self, fn):
        self.fn = fn
        self.count = 0

    def __call__(self, *args):
        self.count += 1
        return self.fn(*args)


def test_a_program_computes_what_the_function_does():
    def fn(x, w):
        return mx.einsum(x, w, over=hidden), {"sum": mx.sum(x)}

    x, w = counting(batch, hidden), counting(hidden, length)
    product, aux = mx.spmd(fn, mesh, "batch:rows hidden:cols")(x, w)

    assert product.dims == (batch, length)
    np.testing.assert_array_equal(product.numpy(), x.numpy() @ w.numpy())
    assert float(aux["sum"]) == x.numpy().sum()


def test_one_trace_for_many_calls():
    fn = Traced(lambda w, x: w - 0.5 * x)
    program = mx.spmd(fn, mesh, mx.Layout("batch:rows", params="hidden:cols"))
    w, x = mx.param(counting(batch, hidden)), mx.param(counting(hidden))

    for _ in range(3):  # the first call takes w from the host, the others from the mesh
        w = program(w, x)

    assert fn.count == 1


def test_numbers_and_arrays_are_replicated_without_a_second_trace():
    fn = Traced(lambda x, state: (x * state["rate"], {"rate": state["rate"], "count": state["count"] + 1}))
    program = mx.spmd(fn, mesh, "batch:rows")
    x, state = counting(batch), {"rate": np.float32(0.5), "count": jnp.int32(0)}

    for _ in range(3):
        x, state = program(x, state)

    assert fn.count == 1
    assert int(state["count"]) == 3
    assert state["count"].sharding.is_fully_replicated
    np.testing.assert_array_equal(x.numpy(), np.arange(6) / 8)


def test_a_result_goes_into_the_next_call_without_a_copy():
    layout = mx.Layout("batch:rows hidden:cols")
    (x,) = mx.spmd(lambda x: (x + 1,), mesh, layout)(counting(batch, hidden))

    placed = mx.put(x, mesh, layout)

    assert placed is x
    donated = pointers(x)
    assert pointers(mx.spmd(lambda x: x * 2, mesh, layout, donate=0)(x)) == donated


@pytest.mark.parametrize("donate", [0, (0,), [0]])
def test_a_donated_argument_is_gone(donate):
    given, kept = (mx.put(counting(batch), mesh, "batch:rows") for _ in range(2))

    mx.spmd(lambda x, y: x + y, mesh, "batch:rows", donate=donate)(given, kept)

    assert given.array.is_deleted()
    assert not kept.array.is_deleted()


def test_an_argument_from_elsewhere_is_moved():
    x = mx.spmd(lambda x: x + 1, mx.Mesh("all:8"), "hidden:all")(counting(hidden))

    moved = mx.spmd(lambda x: x * 2, mx.Mesh("rows:2"), "hidden:rows")(x)

    np.testing.assert_array_equal(moved.numpy(), 2 * (np.arange(10) + 1))


@pytest.mark.parametrize(
    ("layout", "local", "stored"),
    [
        ("", (6, 10), (6, 10)),
        ("batch:rows", (3, 10), (6, 10)),
        ("hidden:cols", (6, 3), (6, 12)),
        ("batch:cols hidden:rows", (2, 5), (8, 10)),
        ("hidden:rows+cols", (6, 2), (6, 16)),
    ],
)
def test_results_are_stored_as_the_layout_says(layout, local, stored):
    x = counting(batch, hidden)

    result = mx.spmd(lambda x: x + 1, mesh, layout)(x)

    assert result.array.shape == stored
    assert shapes(result) == {local}
    np.testing.assert_array_equal(result.numpy(), x.numpy() + 1)


def test_a_role_decides_how_a_result_is_stored():
    layout = mx.Layout("batch:rows", params="hidden:cols")

    x, w = mx.spmd(lambda x: (x, mx.param(x)), mesh, layout)(counting(batch, hidden))

    assert (shapes(x), shapes(w)) == ({(3, 10)}, {(3, 3)})
    np.testing.assert_array_equal(w.numpy(), x.numpy())


def test_put_makes_only_local_slices(monkeypatch):
    made = []

    def recording(shape, sharding, callback, make=jax.make_array_from_callback):
        def slice_of(index):
            made.append(callback(index).shape)
            return callback(index)

        return make(shape, sharding, slice_of)

    monkeypatch.setattr(jax, "make_array_from_callback", recording)
    x = counting(batch, hidden)

    placed = mx.put({"x": x}, mesh, "batch:rows hidden:cols")["x"]

    assert set(made) == shapes(placed) == {(3, 3)}
    np.testing.assert_array_equal(placed.numpy(), x.numpy())


def test_put_places_arrays_and_numbers_on_every_device():
    placed = mx.put([np.arange(3), 2.5], mesh, "batch:rows")

    assert all(leaf.sharding.is_fully_replicated and len(leaf.devices()) == 8 for leaf in placed)


def test_layouts_do_not_share_a_trace():
    seen = []

    def fn(x):
        seen.append(x.array.shape)
        return x * 2

    x = counting(batch)
    for layout in ("batch:rows", "batch:cols", ""):
        np.testing.assert_array_equal(mx.spmd(fn, mesh, layout)(x).numpy(), 2 * x.numpy())

    assert seen == [(3,), (2,), (6,)]


def test_an_inner_jit_is_not_shared_between_layouts():
    # Under both layouts the slices have the same type: only the ambient layout tells them apart.
    weigh = jax.jit(lambda x: x * mx.arange(hidden))
    x = counting(hidden) + 1

    for layout in ("hidden:rows+cols", "hidden:cols+rows"):
        weighed = mx.spmd(lambda x: weigh(x), mesh, layout)(x)
        np.testing.assert_array_equal(weighed.numpy(), x.numpy() * np.arange(10))


@pytest.mark.parametrize("layout", ["", "batch:rows hidden:cols", "hidden:rows+cols"])
def test_a_tensor_closed_over_is_a_constant(layout):
    x, constant = counting(batch, hidden), counting(hidden, batch) + 1

    scaled, summed, same = mx.spmd(lambda x: (x * constant, mx.sum(constant), constant), mesh, layout)(x)

    np.testing.assert_array_equal(scaled.numpy(), x.numpy() * constant.numpy().T)
    assert float(summed) == constant.numpy().sum()
    np.testing.assert_array_equal(same.numpy(), constant.numpy())
    assert shapes(same) == shapes(mx.put(constant, mesh, layout))


@pytest.mark.parametrize("layout", ["", "hidden:rows", "hidden:cols", "hidden:rows+cols", "batch:rows hidden:cols"])
def test_a_placed_uneven_tensor_closed_over_is_a_constant(layout):
    x, constant = counting(batch, hidden), mx.put(counting(hidden), mesh, "hidden:cols")

    scaled, summed, same = mx.spmd(lambda x: (x * constant, mx.sum(constant), constant), mesh, layout)(x)

    np.testing.assert_array_equal(scaled.numpy(), x.numpy() * np.arange(10))
    assert float(summed) == 45
    np.testing.assert_array_equal(same.numpy(), np.arange(10))


def test_a_parameter_closed_over_is_stored_as_the_layout_says():
    w = mx.param(counting(hidden))

    product = mx.spmd(lambda x: x * w, mesh, mx.Layout("batch:rows", params="hidden:cols"))(counting(batch))

    np.testing.assert_array_equal(product.numpy(), np.arange(6)[:, None] * np.arange(10))


LAYOUTS = ["", "batch:rows hidden:cols", "hidden:rows+cols", mx.Layout("batch:rows", params="hidden:cols")]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_program_inside_a_jit(layout):
    program = mx.spmd(lambda x: x * 2, mesh, layout)
    x = mx.param(counting(batch, hidden))

    for given in (x, mx.put(x, mesh, layout), mx.put(x, mesh, "hidden:cols")):
        doubled = jax.jit(program)(given)
        assert (doubled.dims, doubled.role) == (x.dims, "param")
        np.testing.assert_array_equal(doubled.numpy(), 2 * x.numpy())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_program_inside_a_gradient(layout):
    def loss(w, x):
        return mx.mean(mx.square(mx.einsum(x, w, over=hidden)))

    program = mx.spmd(loss, mesh, layout)
    w, x = mx.param(counting(hidden, length) / 10), counting(batch, hidden) / 10
    wanted = jax.grad(lambda w: jnp.mean((x.numpy() @ w) ** 2))(w.numpy())

    for given in (w, mx.put(w, mesh, layout)):
        for gradient in (jax.grad(lambda w: program(w, x).array)(given), mx.grad(program)(given, x)):
            assert (gradient.dims, gradient.role) == (w.dims, "param")
            np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-5)


def test_programs_of_several_layouts_inside_one_jit():
    layouts = ("hidden:cols", "hidden:rows", "hidden:rows+cols", "")  # stored as 12, 10, 16 and 10 elements
    programs = [mx.spmd(lambda x, y: x * y + mx.arange(hidden), mesh, layout) for layout in layouts]

    @jax.jit
    def fn(x, y):
        for program in programs:
            x = program(x, y) - mx.sum(y)
        return x

    x, wanted = counting(hidden), np.arange(10.0)
    for _ in programs:
        wanted = 2 * wanted + np.arange(10) - 20
    np.testing.assert_array_equal(fn(x, mx.full(hidden, 2.0)).numpy(), wanted)


def test_jax_map_goes_through_a_program():
    program = mx.spmd(lambda x, n: x * n, mesh, "hidden:cols")

    scaled = jax.lax.map(lambda n: program(counting(hidden), n).array[:10], jnp.arange(3.0))

    np.testing.assert_array_equal(scaled, np.arange(3)[:, None] * np.arange(10))


@pytest.mark.parametrize("on", [mesh, nowhere], ids=["devices", "abstract"])
def test_a_trace_has_the_shapes_of_what_goes_in_and_comes_out(on):
    program = mx.spmd(lambda w, x: (w, mx.einsum(x, w, over=hidden)), on, "batch:rows hidden:cols", donate=0)
    trace = program.trace(described(hidden, length), described(batch, hidden))

    assert [x.dims for x in trace.arguments] == [(hidden, length), (batch, hidden)]
    assert [x.array.shape for x in trace.arguments] == [(12, 4), (6, 12)]  # as stored: 10 over 4 is 3 each
    assert [x.dims for x in trace.results] == [(hidden, length), (batch, length)]
    assert all(isinstance(x.array, jax.ShapeDtypeStruct) for x in (*trace.arguments, *trace.results))
    assert trace.donated == [True, False]
    assert trace.shapes[(batch, length), None] == (("rows",), ())
    assert "psum" in str(trace.jaxpr)


def test_a_trace_knows_no_shapes_of_another():
    program = mx.spmd(lambda x: x + 1.0, nowhere, "batch:rows")
    program.trace(described(batch, hidden))

    assert set(program.trace(described(batch)).shapes) == {((batch,), None)}


def test_a_lowered_program_is_that_of_the_call():
    program = mx.spmd(lambda x: mx.sum(x), mesh, "batch:rows")
    lowered = program.lower(described(batch))

    assert "stablehlo.all_reduce" in lowered.as_text()
    memory, of_compiled = (one.memory_analysis() for one in (lowered.compile(), program.compile(described(batch))))
    assert memory.output_size_in_bytes == of_compiled.output_size_in_bytes


def scaled(x, w, *, scale=2.0, shift=None):
    y = mx.einsum(x, w, over="batch") * scale
    return y if shift is None else y + shift


def test_arguments_by_name():
    x, w, shift = counting(batch, hidden), counting(batch), counting(hidden)
    program = mx.spmd(scaled, mesh, "batch:rows hidden:cols")
    by_position = program(x, w).numpy()
    for arguments in ({"w": w}, {"w": w, "scale": 2.0}):
        np.testing.assert_array_equal(program(x, **arguments).numpy(), by_position)
    np.testing.assert_array_equal(program(w=w, x=x).numpy(), by_position)
    np.testing.assert_array_equal(program(x, w, shift=shift).numpy(), by_position + shift.numpy())
    report = program.explain(x, w=w, shift=shift)
    assert [t.name for t in report.tensors if t.kind == "argument"] == ["x", "w", "shift"]
    program.compile(x, w=w, shift=shift)
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'weight'"):
        program(x, w, weight=w)


def test_a_donated_argument_may_have_a_name():
    x = mx.put(counting(batch), mesh, "batch:rows")
    mx.spmd(lambda w, x: x + w, mesh, "batch:rows", donate=1)(counting(batch), x=x)
    assert x.array.is_deleted()


def double(x):
    return 2 * x


def test_editors_see_what_a_program_offers():
    signature = inspect.signature(mx.Program.explain)

    assert mx.Program.explain.__module__ == "meshax.program"
    assert signature.return_annotation == "Report" and mx.Program.explain.__doc__
    assert mx.Program[[mx.Tensor], mx.Tensor]  # of the function's arguments and result


@pytest.mark.parametrize("on", [mesh, nowhere], ids=["devices", "abstract"])
def test_explain_needs_only_shapes(on):
    fn = Traced(lambda x, n: mx.sum(x) * n)

    report = mx.spmd(fn, on, "hidden:cols").explain(described(batch, hidden), 2.0)

    assert [(c.kind, c.axes, c.shape) for c in report.collectives] == [("all-reduce", ("cols",), ())]
    assert fn.count == 1


def test_explain_takes_wide_integers_without_a_warning():
    program = mx.spmd(lambda x, n: mx.sum(x * n), mesh, "batch:rows")

    report = program.explain(mx.tensor(np.arange(6, dtype=np.int64), batch), np.int64(3))

    assert [(c.kind, c.dtype) for c in report.collectives] == [("all-reduce", "int32")]


def test_compile_needs_only_shapes():
    program = mx.spmd(lambda x: mx.sum(x), mesh, "hidden:cols")

    compiled = program.compile(described(batch, hidden))

    assert "all-reduce" in compiled.as_text()
    assert compiled.memory_analysis().argument_size_in_bytes == 6 * 3 * 4  # one slice of [batch:6, hidden:10/cols]


def test_options_of_the_compiler_are_of_one_program():
    rows = mx.Dim("rows", 8)
    program = mx.spmd(mx.exp, mx.Mesh("x:8"), "rows:x", compiler_options={"xla_no_such_option": True})
    for compiles in (program, program.compile):
        with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'xla_no_such_option'"):
            compiles(mx.ones((rows,)))
    known = mx.spmd(mx.exp, mx.Mesh("x:8"), "rows:x", compiler_options={"xla_cpu_enable_fast_math": False})
    np.testing.assert_allclose(known(mx.ones((rows,))).numpy(), np.e, rtol=1e-6)


def test_shard_map_reads_out_specs_after_it_has_run_the_function():
    """JAX does not document this; `spmd` relies on it to trace once: results are known only then."""
    out_specs = []

    def fill(x):
        out_specs[:] = [PartitionSpec("rows")]
        return [x]

    (y,) = jax.shard_map(fill, mesh=mesh.jax_mesh, in_specs=PartitionSpec("rows"), out_specs=out_specs)(np.arange(4))

    assert y.sharding.spec == PartitionSpec("rows")


def test_random_keys_are_arguments():
    key = jax.random.key(3)

    drawn = mx.spmd(lambda key: mx.random.normal(key, hidden), mesh, "hidden:cols")(key)

    np.testing.assert_array_equal(drawn.numpy(), jax.random.normal(key, (10,)))


def test_repr():
    def step(x):
        return x

    program = mx.spmd(step, mesh, mx.Layout("batch:rows", params="hidden:cols"))

    assert repr(program) == 'Program(step, Mesh(rows:2 cols:4), Layout("batch:rows", params="hidden:cols"))'
    assert (program.mesh, program.layout) == (mesh, mx.Layout("batch:rows", params="hidden:cols"))


def identity(*args):
    return args


MISTAKES = {
    "donating what is not there": (
        mx.ArgumentError,
        lambda: mx.spmd(lambda x: x, mx.Mesh("rows:2", abstract=True), "", donate=7).explain(
            mx.ones(mx.Dim("batch", 4))
        ),
        """
        argument 7 is to be donated, and there is none.
          values: arguments 0 to 0
          fix: count the arguments from 0.
        """,
    ),
    "a mesh that is a string": (
        mx.MeshError,
        lambda: mx.spmd(identity, "rows:2", ""),
        """
        the mesh is a str.
          values: 'rows:2'
          fix: make one: mx.Mesh("rows:2 cols:4").
        """,
    ),
    "putting on a string": (
        mx.MeshError,
        lambda: mx.put(counting(batch), "rows:2 cols:4", "batch:rows"),
        """
        the mesh is a str.
          values: 'rows:2 cols:4'
          fix: make one: mx.Mesh("rows:2 cols:4").
        """,
    ),
    "an argument of which only the shape is known": (
        mx.ShapeError,
        lambda: mx.spmd(identity, mesh, "batch:rows")(described(batch, hidden)),
        """
        a shape is not a value.
          values: [batch:6, hidden:10] float32
          fix: pass arrays; only .explain and .compile take jax.ShapeDtypeStruct.
        """,
    ),
    "putting a shape": (
        mx.ShapeError,
        lambda: mx.put({"x": described(batch, dtype=jnp.int32)}, mesh, ""),
        """
        a shape is not a value.
          values: [batch:6] int32
          fix: pass arrays; only .explain and .compile take jax.ShapeDtypeStruct.
        """,
    ),
    "an argument that is no array": (
        mx.ShapeError,
        lambda: mx.spmd(identity, mesh, "")(counting(batch), "fast"),
        """
        a program takes pytrees of tensors, arrays and numbers, not str.
          values: 'fast'
          fix: close over it, or make it static data of the pytree.
        """,
    ),
    "no array to put": (
        mx.ShapeError,
        lambda: mx.put({"x": counting(batch), "y": object}, mesh, ""),
        """
        a program takes pytrees of tensors, arrays and numbers, not type.
          values: <class 'object'>
          fix: close over it, or make it static data of the pytree.
        """,
    ),
    "running on an abstract mesh": (
        mx.MeshError,
        lambda: mx.spmd(identity, nowhere, "")(counting(batch)),
        """
        this mesh has no devices to run on.
          values: Mesh(rows:2 cols:4, abstract)
          fix: use .explain, or make a mesh of devices.
        """,
    ),
    "compiling for an abstract mesh": (
        mx.MeshError,
        lambda: mx.spmd(identity, nowhere, "").compile(counting(batch)),
        """
        an abstract mesh has no compiler.
          values: Mesh(rows:2 cols:4, abstract)
          fix: make a mesh of devices, or of a topology: mx.Mesh(..., topology="tpu v2:16x16").
        """,
    ),
    "putting on an abstract mesh": (
        mx.MeshError,
        lambda: mx.put(counting(batch), nowhere, ""),
        """
        this mesh has no devices to put tensors on.
          values: Mesh(rows:2 cols:4, abstract)
          fix: make a mesh of devices.
        """,
    ),
    "putting inside a program": (
        mx.MeshError,
        lambda: mx.spmd(lambda x: mx.put(x, mesh, "batch:cols"), mesh, "batch:rows")(counting(batch)),
        """
        tensors are placed before a program runs, not inside it.
          values: Setting(mesh=Mesh(rows:2 cols:4), layout=Layout("batch:rows"))
          rule: there is one mesh and one layout at a time.
          fix: rename dims to change placements.
        """,
    ),
    "a program inside a program": (
        mx.MeshError,
        lambda: mx.spmd(lambda x: mx.spmd(identity, mesh, "batch:cols")(x), mesh, "batch:rows")(counting(batch)),
        """
        a program cannot be called inside a program.
          values: Setting(mesh=Mesh(rows:2 cols:4), layout=Layout("batch:rows"))
          rule: there is one mesh and one layout at a time.
          fix: call its function, identity, instead.
        """,
    ),
    "a program inside another of no rules": (
        mx.MeshError,
        lambda: mx.spmd(lambda x: mx.spmd(identity, mesh, "")(x), mesh, "").explain(counting(batch)),
        """
        a program cannot be called inside a program.
          values: Setting(mesh=Mesh(rows:2 cols:4), layout=Layout(""))
          rule: there is one mesh and one layout at a time.
          fix: call its function, identity, instead.
        """,
    ),
    "returning a string": (
        mx.ShapeError,
        lambda: mx.spmd(lambda x: (x, {"note": "done"}), mesh, "batch:rows")(counting(batch)),
        """
        a program returns pytrees of tensors, arrays and numbers, not str.
          values: 'done'
          fix: return it from a function outside.
        """,
    ),
    "returning a slice without names": (
        mx.LayoutError,
        lambda: mx.spmd(lambda x: x.array, mesh, "batch:rows")(counting(batch)),
        """
        an array without names differs between processors.
          values: float32[3] over rows
          rule: inside a program, only a tensor can be split: its dims say how the slices fit together.
          fix: use the tensor itself, not its .array.
        """,
    ),
}

test_messages = pinned(MISTAKES)


@pytest.mark.parametrize("rules", ["hidden:cols", "batch:cols hidden:rows", "hidden:rows+cols"])
def test_padding_of_results_is_zeros(rules):
    """JAX code outside, which knows no dims, may add up what is stored."""
    batch, hidden = mx.dims(batch=6, hidden=5)
    x = mx.tensor(np.arange(30, dtype=np.float32).reshape(6, 5), (batch, hidden))
    made = mx.spmd(lambda x: (mx.exp(-x), x == x, mx.sum(x, "batch") + 1), mesh, rules)(x)
    for one in made:
        assert one.array.size > one.numpy().size or rules == "batch:cols hidden:rows"
        assert np.asarray(one.array).sum() == pytest.approx(one.numpy().sum(), rel=1e-6)


def test_dims_may_have_any_name():
    x = mx.tensor(np.arange(6.0, dtype=np.float32).reshape(3, 2), "op self")
    assert x.rename(self="names").dims == mx.dims("op:3 names:2")
    np.testing.assert_array_equal(x[{"op": 1}].numpy(), [2, 3])


def test_dims_of_ours_have_no_rules():
    mx.grad(lambda w, x: mx.sum(x * w), microbatches=2, over="batch")(mx.ones(()), mx.ones(mx.dims("batch:4")))
    with pytest.raises(mx.LayoutError, match="no dim '_microbatches' was ever made"):
        mx.spmd(lambda x: x, mesh, "_microbatches:rows")


@pytest.mark.parametrize("layout", ["", "batch:rows"])
def test_microbatches_fold_each_of_several_keys(layout):
    batch, keys = mx.Dim("batch", 4), jax.random.split(jax.random.key(0), 2)

    def loss(w, x, keys):
        noise = [mx.random.normal(key, (mx.Dim("batch", 2),)) for key in keys]
        return mx.sum(w * x * noise[0] * noise[1])

    got = mx.spmd(mx.grad(loss, microbatches=2, over="batch"), mesh, layout)(mx.ones(()), mx.ones(batch), keys)
    parts = [[jax.random.normal(jax.random.fold_in(key, part), (2,)) for key in keys] for part in range(2)]
    assert got.item() == pytest.approx(np.mean([np.sum(a * b) for a, b in parts]), rel=1e-5)
