"""Linear maps in rings: the same values and gradients, the same bytes, and no gather that they wait for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from example_tensors import numbers
from extent import WHOLE, some
from meshax import nn, testing
from meshax.nn import rings
from meshax.tensors import is_tensor
from messages import pinned

batch, d_model, heads = mx.dims(batch=4, d_model=6, heads=7)
LAYOUT = "batch:data length:model heads:model"


def block(x, into, gate, out):
    """What the stream of a Transformer goes through: two maps of all positions, and one back to those stored here."""
    every = x.rename(length="positions")
    first, second = (nn.Linear(w, ("d_model",), ("heads",)) for w in (into, gate))
    inner = mx.sin(first(every)) * second(every)
    return x + nn.Linear(out, ("heads",), ("d_model",))(inner, {"positions": "length"})


def arguments(length, dtype=jnp.float32):
    into, gate, out = (mx.param(numbers(*dims)) for dims in ((d_model, heads), (d_model, heads), (heads, d_model)))
    return [x.astype(dtype) for x in (numbers(batch, mx.Dim("length", length)), into, gate, out)]


def differentiated(x, *weights):
    loss = lambda *args: mx.sum(mx.sin(block(*args).astype("float32")))  # noqa: E731
    return mx.value_and_grad(loss, argnums=(0, 1, 2, 3))(x, *weights)


def flat(tree):
    return jax.tree.leaves(tree, is_leaf=is_tensor)


def kinds(report):
    found = {}
    for c in report.collectives:
        found[c.kind] = found.get(c.kind, 0) + c.count
    return found


@pytest.mark.parametrize("length", some([8, 13, 24], 13))
@pytest.mark.parametrize(
    "laid_out",
    some(
        [
            ("data:2 model:4", LAYOUT, "model"),
            ("data:2 model:2", LAYOUT, "model"),
            ("model:3", "length:model heads:model", "model"),
            ("model:8", "length:model heads:model", "model"),
            ("a:2 model:4", "length:model+a heads:model+a", "a+model"),
            ("a:4 model:2", "length:a+model heads:a+model", "a+model"),
        ],
        ("data:2 model:4", LAYOUT, "model"),
        ("a:2 model:4", "length:model+a heads:model+a", "a+model"),
    ),
)
def test_values_gradients_and_bytes_are_those_without_rings(laid_out, length):
    mesh, layout, around = laid_out
    args, params = arguments(length), "d_model:data" if "data" in mesh else ""
    plain, ringed = (
        mx.spmd(differentiated, mx.Mesh(mesh), mx.Layout(layout, params=params, rings=axes)) for axes in ("", around)
    )
    for one, other in zip(flat(plain(*args)), flat(ringed(*args)), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-4, atol=1e-5)
    before, after = plain.explain(*args), ringed.explain(*args)
    assert after.wire_bytes == before.wire_bytes
    count = ringed.mesh.count(tuple(around.split("+")))
    hops = {"permute": 4 * (count - 1)}  # forward and backward, of what is gathered and of what is scattered
    gone = {"all-gather": -2, "reduce-scatter": -2}
    changed = {kind: kinds(after).get(kind, 0) - kinds(before).get(kind, 0) for kind in kinds(after) | kinds(before)}
    assert {kind: n for kind, n in changed.items() if n} == hops | gone
    assert after.flops == before.flops if length % count == 0 else after.flops < 2 * before.flops  # padding goes around


def test_every_layout_gives_the_same_with_nan_in_all_padding(monkeypatch):
    every, used = testing.layouts_of, []

    def with_rings(mesh, names, seed=0):
        for layout in every(mesh, names, seed):
            yield mx.Layout(dict(layout.rules), rings=tuple(mesh.axes))

    def counted(fn):
        return lambda *args: used.append(fn.__name__) or fn(*args)

    monkeypatch.setattr(testing, "layouts_of", with_rings)
    monkeypatch.setattr(rings, "_of_blocks", counted(rings._of_blocks))
    monkeypatch.setattr(rings, "_to_blocks", counted(rings._to_blocks))
    count = testing.layout_invariance(block, *arguments(11), layouts=200 if WHOLE else 30)
    assert count >= 15 and {"_of_blocks", "_to_blocks"} <= set(used)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_other_dtypes(dtype):
    """Those whose parts may overflow where the whole does not are reduced as ever."""
    args = arguments(12, dtype)
    mesh = mx.Mesh("data:2 model:4")
    plain, ringed = (mx.spmd(block, mesh, mx.Layout(LAYOUT, rings=axes)) for axes in ("", "model"))
    np.testing.assert_allclose(
        *(program(*args).numpy().astype("float32") for program in (ringed, plain)), rtol=0.05, atol=0.05
    )
    assert ("permute" in kinds(ringed.explain(*args))) == (dtype == "bfloat16")


def test_a_gradient_of_a_gradient():
    def twice(x, *weights):
        slope = lambda x: mx.sum(mx.sin(mx.grad(lambda x: mx.sum(mx.sin(block(x, *weights))))(x)))  # noqa: E731
        return mx.grad(slope)(x)

    args = arguments(9)
    wanted = twice(*args).numpy()
    got = mx.spmd(twice, mx.Mesh("data:2 model:4"), mx.Layout(LAYOUT, rings="model"))(*args)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-3, atol=1e-4)


def grouped(length):
    """Attention whose queries share keys, which a layout may split or not, and what it is given."""
    dims = d_model, mx.Dim("heads", 12), mx.Dim("d_kv", 2)
    return nn.Attention.init(jax.random.key(0), *dims, kv_heads=3), numbers(batch, mx.Dim("length", length), d_model)


def attended(attention, x):
    y = attention(x.rename(length="positions"), names={"positions": "length"})
    return mx.sum(mx.sin(y))


GRADIENTS = {
    "parameters": mx.value_and_grad(attended),  # which are copies: maps that are not split gather copies too
    "all": mx.value_and_grad(attended, argnums=(0, 1)),  # then they gather what all have alike, as they do without
    "none": attended,
}


@pytest.mark.parametrize("length", some([8, 13], 13))
@pytest.mark.parametrize("by", GRADIENTS)
@pytest.mark.parametrize("rules", ["heads:model", "kv_heads:model"])
def test_grouped_keys_are_sent_no_further_than_without_rings(rules, by, length):
    args, mesh = grouped(length), mx.Mesh("data:2 model:4")
    layout = f"batch:data length:model {rules}"
    wanted = flat(GRADIENTS[by](*args))
    plain, ringed = (mx.spmd(GRADIENTS[by], mesh, mx.Layout(layout, rings=axes)) for axes in ("", "model"))
    for one, other in zip(wanted, flat(ringed(*args)), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-4, atol=1e-5)
    before, after = plain.explain(*args), ringed.explain(*args)
    assert after.wire_bytes == before.wire_bytes
    is_alike = rules == "heads:model" and by != "parameters"  # the keys of all heads, on all processors
    assert kinds(after).get("all-gather", 0) == is_alike and kinds(after).get("reduce-scatter", 0) == 0
    assert after.unused_rules == []


@pytest.mark.parametrize("rules", ["", "heads:model"])
def test_what_all_processors_compute_is_seen_in_rings_too(rules):
    layouts = (mx.Layout(f"batch:data length:model {rules}", rings=axes) for axes in ("", "model"))
    args, mesh = grouped(8), mx.Mesh("data:2 model:4")
    before, after = (mx.spmd(GRADIENTS["parameters"], mesh, layout).explain(*args) for layout in layouts)
    assert after.flops == before.flops and "permute" in kinds(after)
    assert after.duplicated_flops == before.duplicated_flops > 0
    assert {d.axes for d in after.duplicates} == {("model",)}


def test_a_gradient_of_a_gradient_of_grouped_keys():
    def twice(attention, x):
        def slope(attention):
            inner = mx.grad(attended)(attention, x)
            return sum(mx.sum(mx.sin(leaf)) for leaf in flat(inner))

        return mx.grad(slope)(attention)

    args = grouped(9)
    layout = mx.Layout("batch:data length:model heads:model", rings="model")
    got = mx.spmd(twice, mx.Mesh("data:2 model:4"), layout)(*args)
    for one, other in zip(flat(twice(*args)), flat(got), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("params", ["", "other:model"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_maps_that_share_what_goes_around_in_any_order(order, params):
    """The result of one is split over the ring, that of the other is not."""
    weights = [mx.param(numbers(d_model, dim)) for dim in (heads, mx.Dim("other", 4))]
    maps = [nn.Linear(w, ("d_model",), (w.dims[-1].name,)) for w in weights]

    def loss(params, x):
        scale, maps = params
        x = mx.sin(x * scale).rename(length="positions")
        return sum(mx.sum(mx.sin(maps[i](x))) for i in order)

    args = (mx.param(numbers(d_model)), maps), numbers(batch, mx.Dim("length", 13), d_model)
    program = lambda axes: mx.spmd(  # noqa: E731
        mx.grad(loss), mx.Mesh("data:2 model:4"), mx.Layout(LAYOUT, params=params, rings=axes)
    )
    plain, ringed = program(""), program("model")
    for one, other in zip(flat(mx.grad(loss)(*args)), flat(ringed(*args)), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-4, atol=1e-5)
    before, after = plain.explain(*args), ringed.explain(*args)
    assert after.wire_bytes == before.wire_bytes
    stored = 3 if params else 0  # the gradient of the parameter goes around, too
    assert kinds(after)["permute"] == 6 + stored and "permute" not in kinds(before)  # forward and backward


def test_too_short_to_go_around_is_gathered():
    args = arguments(3)
    program = mx.spmd(block, mx.Mesh("data:2 model:4"), mx.Layout(LAYOUT, rings="model"))
    report = program.explain(*args)
    assert kinds(report) == {"all-gather": 1, "reduce-scatter": 1}
    assert report.unused_rules == ["rings model"]


def test_an_axis_along_which_nothing_goes_around_is_said():
    args = arguments(8)
    report = mx.spmd(block, mx.Mesh("data:2 model:4"), mx.Layout(LAYOUT, rings="data+model")).explain(*args)
    assert report.unused_rules == ["rings data"]
    assert str(report).endswith("\nrules not used by this program: rings data\n")
    assert {c.scope for c in report.collectives} == {""}  # scopes are those of the user alone


def test_the_ring_of_attention_is_no_ring_of_linear_maps():
    attention, x = grouped(8)
    x = x.rename(length="positions")
    layout = mx.Layout("batch:data positions:model", rings="model")
    report = mx.spmd(lambda attention, x: attention(x), mx.Mesh("data:2 model:4"), layout).explain(attention, x)
    assert "permute" in kinds(report) and report.unused_rules == ["rings model"]


test_mistakes = pinned(
    {
        "an axis that does not exist": (
            mx.LayoutError,
            lambda: mx.spmd(block, mx.Mesh("data:2 model:4"), mx.Layout(LAYOUT, rings="modle")),
            """
            the layout does not fit the mesh or the program.
                rings: no mesh axis 'modle'; did you mean "model"?
              values: Layout("batch:data length:model heads:model", rings="modle") on Mesh(data:2 model:4)
              rule: a rule names a dim that exists and axes of the mesh.
              fix: correct or remove these rules.
            """,
        ),
        "no axis": (
            mx.LayoutError,
            lambda: mx.Layout(LAYOUT, rings="data model"),
            """
            'data model' does not name mesh axes for rings.
              fix: write rings="model", or "rows+cols".
            """,
        ),
        "no text": (
            mx.LayoutError,
            lambda: mx.Layout(LAYOUT, rings=3),
            """
            3 does not name mesh axes for rings.
              fix: write rings="model", or "rows+cols".
            """,
        ),
    }
)
