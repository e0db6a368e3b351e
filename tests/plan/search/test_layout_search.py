"""Choosing a layout: the priced trace is near the real ones, and the choice is at least as good as the usual ones."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import decoder
import meshax as mx
import transformer
from meshax.plan.cost.hardware import KNOWN, Link
from meshax.plan.cost.timing import Network
from meshax.plan.search.graph import Graph
from meshax.plan.search.layout_search import Candidate, _rank, search
from meshax.plan.search.named_layouts import NAMES, find_layout, sizes_of
from meshax.plan.search.prices import Prices
from meshax.train.preset_steps import preset_target
from messages import pinned
from plan.search.test_reasons import check_reasons, check_that_equal_ones_are_merged

MESH = "data:2 model:4"
TENSOR = "heads:model d_ff:model vocab:model"
EVERYWHERE = "heads:data+model d_ff:data+model vocab:data+model"
USUAL = {
    "data": mx.Layout("batch:data+model"),
    "model": mx.Layout(EVERYWHERE),
    "data and model": mx.Layout(f"batch:data {TENSOR}"),
    "fully sharded": mx.Layout("batch:data+model", params="d_model:data+model"),
}
batch, pixels, hidden, classes = mx.dims(batch=128, pixels=784, hidden=1024, classes=10)


def described(*dims, dtype=np.float32):
    return mx.Tensor(jax.ShapeDtypeStruct(tuple(d.size for d in dims), dtype), dims)


def mlp(w, images, labels):
    def loss(w, images, labels):
        h = mx.relu(mx.einsum(images, w["in"], out=(batch, hidden)))
        logits = mx.einsum(h, w["out"], out=(batch, classes))
        return mx.mean(mx.softmax_cross_entropy(logits, labels, over=classes))

    value, grads = mx.value_and_grad(loss)(w, images, labels)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value


def mlp_args():
    w = {"in": mx.param(described(pixels, hidden)), "out": mx.param(described(hidden, classes))}
    return w, described(batch, pixels), described(batch, dtype=np.int32)


def transformer_args():
    return jax.tree.map(
        lambda x: mx.Tensor(jax.ShapeDtypeStruct(x.array.shape, x.dtype), x.dims, x.role),
        (decoder.init(), *decoder.tokens()),
        is_leaf=lambda x: isinstance(x, mx.Tensor),
    )


@pytest.fixture(scope="module")
def transformer_choice():
    return mx.auto_layout(decoder.sgd, mx.Mesh(MESH, abstract=True), *transformer_args(), hardware="cpu")


@pytest.mark.parametrize(
    "rules", ["", "batch:data+model", EVERYWHERE, f"batch:data {TENSOR}", f"length:model {TENSOR}", "d_kv:model"]
)
def test_the_prices_are_near_the_real_report(rules):
    args = transformer_args()
    layout = mx.Layout(rules)
    graph = Graph(decoder.sgd, args)
    axes = ["data", "model"]
    masks = {n: np.array([sum(1 << axes.index(a) for a in dict(layout.rules).get(n, ()))]) for n in graph.sizes}
    report = mx.spmd(decoder.sgd, mx.Mesh(MESH, abstract=True), layout).explain(*args)
    # a sum over processors, which an unsplit trace lacks, is written: what follows transposes it once, and not each
    plain = replace(KNOWN["cpu"], per_element={})
    for hardware, near in ((plain, 0.05), (KNOWN["cpu"], 0.06)):
        prices = Prices(graph, Network.of(hardware, mx.Mesh("data:2 model:4", abstract=True)), masks)
        np.testing.assert_allclose(prices.wire[0], report.wire_bytes, rtol=0.001)
        np.testing.assert_allclose(prices.seconds[0], report.seconds(hardware), rtol=near)
        np.testing.assert_allclose(prices.memory[0], report.memory["peak"], rtol=0.3)


@pytest.mark.exhaustive
def test_the_transformers_layout_is_at_least_as_good_as_the_usual_ones():
    """The one whose steps benchmarks/layouts.py times. It may send more: on CPUs it pays to split the update."""
    sizes = transformer.Sizes(8, batch=16, length=128, vocab=1024, d_model=128, d_k=32, dtype="float32")
    step, args, donate = transformer.training_step(sizes)
    best = search(step, args, [mx.Mesh(MESH, abstract=True)], hardware="cpu", donate=donate)[0]
    for name, layout in USUAL.items():
        usual = mx.spmd(step, mx.Mesh(MESH, abstract=True), layout, donate).explain(*args)
        assert best.seconds <= usual.seconds("cpu") * 1.001, name


def test_the_mlps_layout_is_at_least_as_good_as_the_usual_ones():
    mesh, args = mx.Mesh("rows:2 cols:4", abstract=True), mlp_args()
    best = mx.auto_layout(mlp, mesh, *args, hardware="cpu")[0]
    usual = ["batch:rows+cols", "hidden:rows+cols", "batch:rows hidden:cols"]
    layouts = [*map(mx.Layout, usual), mx.Layout("batch:rows+cols", params="hidden:rows+cols")]
    reports = [mx.spmd(mlp, mesh, layout).explain(*args) for layout in layouts]
    assert best.layout == mx.Layout("hidden:rows+cols")
    assert best.wire_bytes <= min(r.wire_bytes for r in reports)
    assert best.seconds <= min(r.seconds("cpu") for r in reports)


def test_a_decoders_layout_is_at_least_as_good_as_those_with_names(transformer_choice):
    mesh = mx.Mesh(MESH, abstract=True)
    for name in NAMES:
        layout = find_layout(name, mesh, sizes=sizes_of(transformer_args()))
        named = mx.spmd(decoder.sgd, mesh, layout).explain(*transformer_args())
        assert transformer_choice[0].seconds <= named.seconds("cpu") * 1.001, name


def test_candidates_are_ranked_with_reasons(transformer_choice):
    seconds = [c.seconds for c in transformer_choice]
    assert 1 < len(transformer_choice) <= 10
    assert seconds == sorted(seconds) or max(np.diff(seconds)) > -0.01 * max(seconds)
    assert len({c.layout for c in transformer_choice}) == len(transformer_choice)
    best = transformer_choice[0]
    assert [part.split(" ")[0] for part in best.why.split("; ")] == [
        f"{name}:{'+'.join(axes)}" for name, axes in best.layout.rules
    ]
    report = mx.spmd(decoder.sgd, mx.Mesh(MESH, abstract=True), best.layout).explain(*transformer_args())
    assert (best.seconds, best.memory, best.wire_bytes) == (
        report.seconds("cpu"), report.memory["peak"], report.wire_bytes
    )  # fmt: skip


def test_reasons_are_what_explain_gives_with_and_without(transformer_choice):
    check_that_equal_ones_are_merged(transformer_choice)
    for candidate in transformer_choice[:3]:
        check_reasons(candidate, decoder.sgd, transformer_args(), (), "cpu")


def test_layouts_that_are_the_same_are_listed_once():
    """On 8 processors in four meshes: one axis of 8 and two of 2 and 4 together, axes of size 1, nothing split."""
    found = mx.auto_layout(mlp, 8, *mlp_args(), hardware="cpu")
    costs = [(c.memory, c.wire_bytes, f"{c.seconds:.9g}") for c in found]
    assert len(set(costs)) == len(costs)
    assert not [c for c in found for _, axes in c.layout.all_rules() if any(c.mesh.axes[a] == 1 for a in axes)]


def test_a_program_that_is_too_small_for_the_mesh():
    mesh = mx.Mesh("data:8", abstract=True)
    best, *others = mx.auto_layout(mlp, mesh, *mlp_args(), hardware="h200")
    assert best.layout == mx.Layout() and others
    small = "the program is too small for these processors: no layout that splits over data is faster"
    assert best.why == f"nothing is split: nothing is sent; {small}"
    assert not [c for c in others if "too small" in c.why]


def test_an_axis_that_the_best_leaves_idle():
    mesh = mx.Mesh("rows:2 cols:4", abstract=True)
    best = mx.auto_layout(mlp, mesh, *mlp_args(), hardware="h200", pins="hidden:rows")[0]
    assert best.layout.rules == (("hidden", ("rows",)),)
    assert best.why.endswith("; no layout that splits over cols as well is faster")


def test_a_program_that_returns_nothing_needs_nothing():
    found = mx.auto_layout(lambda x: None, mx.Mesh(MESH, abstract=True), described(batch), hardware="h200")
    assert found[0].layout == mx.Layout()
    assert {(c.seconds, c.memory, c.wire_bytes) for c in found} == {(0, 0, 0)}


def test_mesh_tensorflows_example():
    """It minimises memory; so do we among layouts of one speed, and here nothing needs to be sent at all."""
    a, b, c = mx.dims(a=10, b=5, c=20)
    mesh = mx.Mesh("m1:4 m2:2", abstract=True)
    best = mx.auto_layout(lambda x, y: mx.einsum(x, y, over=b), mesh, described(a, b), described(b, c))[0]
    assert best.layout == mx.Layout("a:m2 c:m1")  # 10 over 2 and 20 over 4: no padding, no communication
    assert best.wire_bytes == 0
    assert "a:m2 saves" in best.why and "c:m1 saves" in best.why


def test_pins_and_exclusions_hold():
    mesh, args = mx.Mesh("rows:2 cols:4", abstract=True), mlp_args()
    for pins in ("batch:rows", {"batch": "rows", "hidden": ""}):
        for c in mx.auto_layout(mlp, mesh, *args, hardware="cpu", pins=pins):
            assert dict(c.layout.rules)["batch"] == ("rows",)
            assert isinstance(pins, str) or "hidden" not in dict(c.layout.rules)
    for c in search(mlp, args, [mesh], hardware="cpu", exclude=["hidden", "pixels"]):
        assert not {"hidden", "pixels"} & set(dict(c.layout.rules))


def test_a_memory_limit_chooses_another_layout():
    args, mesh = mlp_args(), mx.Mesh("rows:2 cols:4", abstract=True)
    free = mx.auto_layout(mlp, mesh, *args, hardware="h200")[0]
    tight = mx.auto_layout(mlp, mesh, *args, hardware="h200", memory=2e6)[0]
    assert free.memory > 2e6 >= tight.memory
    assert tight.seconds >= free.seconds


def test_a_number_of_processors_chooses_the_mesh_too():
    found = mx.auto_layout(mlp, 8, *mlp_args(), hardware="cpu")
    assert all(c.mesh.size == 8 for c in found)
    assert found[0].layout.rules


def test_parameters_are_stored_split_where_memory_asks_for_it():
    mesh, args = mx.Mesh("data:8", abstract=True), mlp_args()
    found = mx.auto_layout(mlp, mesh, *args, hardware="cpu", pins="batch:data")
    assert any(c.layout.params for c in found)
    stored = next(c for c in found if c.layout.params)
    assert "params" in stored.why


@pytest.mark.exhaustive
def test_layouts_that_fit_only_with_their_parameters_split_are_found():
    step, mesh = preset_target("lm-0.14b"), mx.Mesh("data:64", abstract=True)
    limit = 0.6 * mx.spmd(step.fn, mesh, "batch:data", step.donate).explain(*step.args).memory["peak"]
    options = {"hardware": "tpu-v3", "memory": limit, "pins": "batch:data", "donate": step.donate}
    found = search(step.fn, step.args, [mesh], **options)
    assert found and all(c.memory <= limit and c.layout.params for c in found)


@pytest.mark.exhaustive
def test_mirrored_layouts_are_listed_once():
    found = mx.auto_layout(mlp, mx.Mesh("rows:2 cols:2", abstract=True), *mlp_args(), hardware="cpu")
    shown = [str(c.layout) for c in found]
    swapped = [text.replace("rows", "?").replace("cols", "rows").replace("?", "cols") for text in shown]
    assert not {a for a, b in zip(shown, swapped, strict=True) if a != b} & set(swapped)
    pinned_one = mx.auto_layout(mlp, mx.Mesh("rows:2 cols:2", abstract=True), *mlp_args(), pins="hidden:cols")
    assert all(dict(c.layout.rules)["hidden"] == ("cols",) for c in pinned_one)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("axes", "hardware"), [("data:16 model:2", "tpu-v2"), ("data:4 model:8", "h100")])
def test_a_language_models_layout_is_at_least_as_good_as_those_with_names(axes, hardware):
    """Fully sharded, and sequence parallel, where `length` and `vocab` share an axis, are among them."""
    step, mesh = preset_target("lm-0.14b"), mx.Mesh(axes, abstract=True)
    best = search(step.fn, step.args, [mesh], hardware=hardware, donate=step.donate)[0]
    for name in NAMES:
        layout = find_layout(name, mesh, sizes=sizes_of(step.args))
        named = mx.spmd(step.fn, mesh, layout, step.donate).explain(*step.args)
        assert best.seconds <= named.seconds(hardware) * 1.001, name


def test_the_prices_know_the_arguments_and_the_sums_that_are_returned():
    """What a layout saves in arguments, and costs in a sum that is only returned, is in its reasons."""
    mesh = mx.Mesh("data:2", abstract=True)
    found = mx.auto_layout(lambda x: mx.sum(x * x), mesh, described(batch), hardware="cpu")
    whys = {str(c.layout): c.why for c in found}
    assert found[0].layout == mx.Layout()
    assert "batch:data saves 256 bytes and costs 55.9 us" in whys['Layout("batch:data")']
    graph = Graph(mlp, mlp_args())
    assert [graph.of(v) for v in graph.block.inputs][:2] == [("pixels", "hidden"), ("hidden", "classes")]


def test_a_pending_sum_that_is_summed_on_is_still_pending_for_others():
    rows, cols, inner = mx.dims(rows=16, cols=24, inner=32)

    def fn(x, y):
        z = mx.einsum(x, y, over=inner)
        return mx.tanh(z), mx.sum(z, rows)

    args = described(rows, inner), described(inner, cols)
    graph, mesh = Graph(fn, args), mx.Mesh("data:4", abstract=True)
    masks = {name: np.array([int(name == "inner")]) for name in graph.sizes}
    prices = Prices(graph, Network.of(KNOWN["cpu"], mesh), masks)
    report = mx.spmd(fn, mesh, "inner:data").explain(*args)
    assert prices.wire[0] == pytest.approx(report.wire_bytes, rel=0.1)


def test_the_prices_start_the_sums_of_gradients_once():
    graph = Graph(mlp, mlp_args())
    masks = {name: np.array([int(name == "batch")]) for name in graph.sizes}
    slow = replace(KNOWN["cpu"], inside=Link(0.0, 1e12, start=1.0))
    prices = Prices(graph, Network.of(slow, mx.Mesh("data:8", abstract=True)), masks)
    report = mx.spmd(mlp, mx.Mesh("data:8", abstract=True), "batch:data").explain(*mlp_args())
    assert round(report.time(slow).communication) == 2  # the loss, and both gradients
    assert round(prices.communication[0]) == 2


def test_layouts_that_are_equal_in_three_digits_are_ranked_by_their_rules():
    def candidate(rules, seconds, memory):
        return Candidate(mx.Layout(rules), mx.Mesh("data:2", abstract=True), seconds, memory, 0, None, str)

    longer = candidate("batch:data hidden:data", 1.0, 1_000_000)
    shorter = candidate("batch:data", 1.001, 1_000_500)
    smaller = candidate("classes:data pixels:data", 1.002, 900_000)
    assert sorted([longer, shorter, smaller], key=_rank) == [smaller, shorter, longer]


def test_what_has_no_dims_has_one_layout():
    assert {c.layout for c in mx.auto_layout(lambda x: x + 1, 2, 3.0)} == {mx.Layout()}


@pytest.mark.exhaustive
def test_memory_and_pins_in_other_words():
    mesh, args = mx.Mesh("rows:2 cols:4", abstract=True), mlp_args()
    one = mx.auto_layout(mlp, mesh, *args, hardware="h200", memory="3MB", pins=mx.Layout("batch:rows"))
    assert one == mx.auto_layout(mlp, mesh, *args, hardware="h200", memory=3e6, pins="batch:rows")
    assert all(c.mesh.size == 4 for c in mx.auto_layout(mlp, np.int64(4), *args))


@pytest.mark.exhaustive
def test_three_axes():
    best = mx.auto_layout(mlp, mx.Mesh("x:2 y:2 z:2", abstract=True), *mlp_args(), hardware="cpu")[0]
    assert best.wire_bytes <= 8960


MISTAKES = {
    "nothing fits": (
        mx.LayoutError,
        lambda: mx.auto_layout(lambda x: x * 2, mx.Mesh("rows:2", abstract=True), described(batch), memory=100),
        """
        no layout fits 100 bytes on each processor.
          values: the closest tried is Layout("batch:rows") on Mesh(rows:2, abstract): 512 bytes, 412 bytes too much
          rule: parameters, gradients, optimizer state, activations and temporaries of a step must fit at once.
          fix: use more processors, a smaller batch, mx.remat around the layers, or mx.param on what is stored.
        """,
    ),
    "no mesh": (
        mx.ArgumentError,
        lambda: mx.auto_layout(lambda x: x, "rows:2", described(batch)),
        """
        'rows:2' is neither a mesh nor a number of processors.
          fix: pass mx.Mesh("data:2 model:4"), or 8.
        """,
    ),
    "negative memory": (
        mx.ArgumentError,
        lambda: mx.auto_layout(lambda x: x, 2, described(batch), memory=-1),
        """
        -1 bytes is not a memory limit.
          fix: give a positive number of bytes.
        """,
    ),
    "pinned and excluded": (
        mx.LayoutError,
        lambda: search(lambda x: x, (described(batch),), processors=2, pins="batch:data", exclude=["batch"]),
        """
        the dim 'batch' is pinned and excluded.
          fix: choose one of the two.
        """,
    ),
    "pins that collide": (
        mx.LayoutError,
        lambda: mx.auto_layout(lambda x: x * 2, 2, described(batch, hidden), pins="batch:data hidden:data"),
        """
        the pins split 'batch' and 'hidden' over 'data', and they meet in an operation.
          rule: an axis splits at most one of the dims that meet in a tensor.
          fix: pin one of them to another axis.
        """,
    ),
    "no hardware": (
        mx.ArgumentError,
        lambda: mx.auto_layout(lambda x: x, 2, described(batch), hardware=5),
        """
        5 is not hardware.
          fix: give a name, such as "h200".
        """,
    ),
    "unknown pin": (
        mx.LayoutError,
        lambda: mx.auto_layout(lambda x: x, 2, described(batch), pins="batches:data"),
        """
        the program has no dim 'batches' to pin or exclude.
          fix: did you mean "batch"?
        """,
    ),
    "pin to no axis": (
        mx.LayoutError,
        lambda: mx.auto_layout(lambda x: x, 2, described(batch), pins="batch:rows"),
        """
        the pin "batch:rows" names no axis of the mesh.
          values: Mesh(data:1 model:2, abstract)
          fix: known names: data, model.
        """,
    ),
}
test_messages = pinned(MISTAKES)


def test_microbatches_are_never_split():
    """The dim that counts them is ours. What is found runs, and gives the same."""
    rows, inner, cols = mx.dims("rows:6 inner:5 cols:7")
    draw = np.random.RandomState(0).normal
    w, x = (
        mx.tensor(draw(size=(a.size, b.size)).astype(np.float32), (a, b)) for a, b in ((inner, cols), (rows, inner))
    )
    loss = lambda w, x: mx.mean(mx.tanh(mx.einsum(x, w, out="rows cols")))  # noqa: E731
    wanted = mx.value_and_grad(loss)(mx.param(w), x)
    step = mx.value_and_grad(loss, microbatches=2, over=rows)
    for pins in (None, "rows:data"):
        found = mx.auto_layout(step, mx.Mesh(MESH), mx.param(w), x, pins=pins)
        assert {name for c in found for name, _ in c.layout.all_rules()} <= {"rows", "inner", "cols"} and len(found) > 4
        for c in found[:5]:
            for number, same in zip(mx.spmd(step, c.mesh, c.layout)(mx.param(w), x), wanted):
                np.testing.assert_allclose(number.numpy(), same.numpy(), rtol=1e-5, atol=1e-7)


REFUSED = {
    "ours, of slices": (lambda a: a / jax.numpy.linalg.norm(a), mx.SliceError),
    "JAX's, of shapes": (lambda a: a + jax.numpy.ones((128, 784)), TypeError),
    "the user's": (lambda a: a if a.shape == (128, 784) else 1 / 0, ZeroDivisionError),
}


@pytest.mark.parametrize("label", REFUSED)
def test_layouts_that_the_program_refuses_are_left_out(label):
    fn, error = REFUSED[label]
    program = lambda x: jax.tree.map(fn, x)  # noqa: E731
    for mesh in (mx.Mesh(MESH), 8):
        assert [c.layout for c in mx.auto_layout(program, mesh, described(batch, pixels))] == [mx.Layout("")]
    with pytest.raises(error):
        mx.auto_layout(program, mx.Mesh(MESH), described(batch, pixels), pins="batch:model")


def test_however_many_layouts_are_refused_the_pins_alone_are_tried():
    dims = mx.dims("a:32 b:32 c:32 d:32 e:32 f:32")
    program = lambda x: jax.tree.map(lambda a: a / jax.numpy.sum(a, (1, 2, 3, 4, 5), keepdims=True), x)  # noqa: E731
    mesh = mx.Mesh("x:2 y:3 z:4", abstract=True)
    found = mx.auto_layout(program, mesh, described(*dims), hardware="h200", pins="a:x")
    assert [c.layout for c in found] == [mx.Layout("a:x")]


def test_a_function_that_does_not_trace():
    with pytest.raises(mx.MeshaxError, match="cannot be traced"):
        mx.auto_layout(lambda x: x if bool(mx.sum(x).array > 0) else -x, 2, described(batch))
