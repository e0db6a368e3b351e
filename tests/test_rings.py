"""Gradients of stored parameters in rings: the same values and bytes, permutes in the place of reduce-scatters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoder
import meshax as mx
from example_tensors import numbers
from extent import WHOLE, some
from meshax import testing, transfer
from meshax.tensors import is_tensor
from messages import pinned

batch, d_model, d_ff = mx.dims(batch=24, d_model=10, d_ff=7)


def arguments(dtype=jnp.float32):
    params = [mx.param(numbers(*dims)) for dims in ((d_model, d_ff), (d_ff, d_model))]
    return [x.astype(dtype) for x in (numbers(batch, d_model), *params)]


def block(x, into, out):
    return x + mx.einsum(mx.sin(mx.einsum(x, into, over="d_model")), out, over="d_ff")


def differentiated(x, *weights):
    loss = lambda *args: mx.mean(mx.sin(block(*args).astype("float32")))  # noqa: E731
    return mx.value_and_grad(loss, argnums=(0, 1, 2))(x, *weights)


def flat(tree):
    return jax.tree.leaves(tree, is_leaf=is_tensor)


def kinds(report, dims=2):
    """How often each kind of collective has an operand with so many dims."""
    found = {}
    for c in report.collectives:
        if len(c.shape) >= dims:
            found[c.kind] = found.get(c.kind, 0) + c.count
    return found


def programs(fn, mesh, rules, params, rings):
    return [mx.spmd(fn, mx.Mesh(mesh), mx.Layout(rules, params=params, rings=axes)) for axes in ("", rings)]


@pytest.mark.parametrize(
    ("mesh", "params", "rings", "hops"),
    [
        ("data:8", "d_model:data", "data", 7),
        ("data:3", "d_ff:data", "data", 2),
        ("data:2 model:4", "d_model:model", "model", 3),
        ("data:2 model:4", "d_model:data+model", "data+model", 7),
        ("data:2 model:4", "d_model:model+data", "data+model", 7),
        ("data:2 model:4", "d_model:data+model", "model", 3),  # and one gather over data
        ("data:4 model:2", "d_model:model+data", "data", 3),
    ],
)
def test_values_gradients_and_bytes_are_those_of_gathers(mesh, params, rings, hops):
    """Each of two matrices is gathered forward and backward, and its gradient goes around once."""
    rules = f"batch:{mesh.split(':')[0]}" if "model" not in mesh else "batch:data+model"
    args = arguments()
    plain, ringed = programs(differentiated, mesh, rules, params, rings)
    for wanted, one, other in zip(flat(differentiated(*args)), flat(plain(*args)), flat(ringed(*args)), strict=True):
        np.testing.assert_allclose(one.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-5, atol=1e-6)
    before, after = plain.explain(*args), ringed.explain(*args)
    is_all = set(rings.split("+")) == set(params.split(":")[1].split("+"))
    summed = {"all-reduce": kinds(before).pop("all-reduce", 0)}  # over axes that store nothing in parts
    assert kinds(before) == {kind: n for kind, n in ({"all-gather": 2 * 2, "reduce-scatter": 2} | summed).items() if n}
    several = {} if is_all else {"all-gather": 2 * 2 * 2, "reduce-scatter": 2}  # over each axis
    wanted = summed | {"all-gather": 2 * 2, "permute": 2 * hops} | several
    assert kinds(after) == {kind: n for kind, n in wanted.items() if n}
    assert after.wire_bytes == before.wire_bytes and after.unused_rules == []


@pytest.mark.parametrize("policy", ["collectives", jax.checkpoint_policies.everything_saveable, None])
def test_what_is_gathered_is_not_kept_for_the_backward_pass(policy):
    """Whatever a policy keeps: it would hold all parameters of a model on each processor."""

    def kept(x, *weights):
        loss = lambda *weights: mx.mean(mx.sin(mx.remat(block, policy)(x, *weights)))  # noqa: E731
        return mx.grad(loss, argnums=(0, 1))(*weights)

    args = arguments()
    plain, ringed = programs(kept, "data:4", "batch:data", "d_model:data", "data")
    for one, other in zip(flat(plain(*args)), flat(ringed(*args)), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-5, atol=1e-6)
    before, after = plain.explain(*args), ringed.explain(*args)
    assert after.wire_bytes == before.wire_bytes
    assert kinds(after) == {"all-gather": kinds(before)["all-gather"], "permute": 3 * kinds(before)["reduce-scatter"]}


@pytest.mark.parametrize("learned", [(0,), (1,), (2,)])
def test_what_is_not_learned_is_not_kept_either(learned):
    everything = jax.checkpoint_policies.everything_saveable

    def tuned(*args):
        loss = lambda *args: mx.mean(mx.sin(mx.remat(block, everything)(*args)))  # noqa: E731
        return mx.grad(loss, argnums=learned)(*args)

    args = arguments()
    plain, ringed = programs(tuned, "data:4", "batch:data", "d_model:data", "data")
    for one, other in zip(flat(plain(*args)), flat(ringed(*args)), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-5, atol=1e-6)
    assert ringed.explain(*args).wire_bytes == plain.explain(*args).wire_bytes


@pytest.mark.parametrize("mesh", ["data:2", "data:3", "data:4"])
def test_what_policies_keep_of_other_permutes(mesh):
    """That of a flip is kept, also in the derivative of a derivative, where it goes the other way."""

    def twice(x):
        inner = lambda x: mx.sum(mx.sin(mx.flip(mx.sin(x), "batch")))  # noqa: E731
        body = mx.remat(lambda x: mx.sin(mx.grad(inner)(x)), "collectives")
        return mx.grad(lambda x: mx.sum(mx.sin(body(x))))(x)

    x, *_ = arguments()
    report = mx.spmd(twice, mx.Mesh(mesh), "batch:data").explain(x)
    assert {c.phase for c in report.collectives} <= {"forward", "backward"}


def test_a_ring_of_two_is_a_gather():
    args = arguments()
    plain, ringed = programs(differentiated, "data:2", "batch:data", "d_model:data", "data")
    assert kinds(ringed.explain(*args)) == kinds(plain.explain(*args))


def test_what_all_processors_compute_and_hold_is_seen():
    """A product of two parameters is every processor's own."""
    wide, inner = mx.dims(wide=256, inner=64)
    factors = mx.param(numbers(wide, inner)), mx.param(numbers(inner, mx.Dim("high", 256)))
    x = numbers(batch, wide)

    def merged(x, *factors):
        loss = lambda *factors: mx.mean(mx.sin(mx.einsum(x, mx.einsum(*factors, over=inner), over=wide)))  # noqa: E731
        return mx.value_and_grad(loss, argnums=(0, 1))(*factors)

    before, after = (p.explain(x, *factors) for p in programs(merged, "data:4", "batch:data", "inner:data", "data"))
    assert after.flops == before.flops and after.duplicated_flops == before.duplicated_flops > 0
    held = [{(r.dims, r.bytes, r.axes) for r in report.replicated} for report in (before, after)]
    assert held[0] == held[1] != set()


def test_in_a_loop_over_layers():
    layers = mx.Dim("layers", 3)

    def deep(x, *stacks):
        def loss(*stacks):
            y, _ = mx.scan(lambda y, weights: (block(y, *weights), None), x, stacks, over=layers)
            return mx.mean(mx.sin(y))

        return mx.value_and_grad(loss, argnums=(0, 1))(*stacks)

    x, *_ = arguments()
    stacks = [mx.param(numbers(layers, *dims)) for dims in ((d_model, d_ff), (d_ff, d_model))]
    plain, ringed = programs(deep, "data:4", "batch:data", "d_model:data", "data")
    for one, other in zip(flat(plain(x, *stacks)), flat(ringed(x, *stacks)), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-5, atol=1e-6)
    before, after = plain.explain(x, *stacks), ringed.explain(x, *stacks)
    assert after.wire_bytes == before.wire_bytes and kinds(after) == {"all-gather": 3 * 2 * 2, "permute": 3 * 2 * 3}


def test_microbatches_send_gradients_as_often_as_without():
    x, *weights = arguments()

    def many(x, *weights):
        loss = lambda x, *weights: mx.mean(mx.sin(block(x, *weights)))  # noqa: E731
        over = {"microbatches": 3, "over": "batch"}
        return mx.value_and_grad(loss, argnums=(1, 2), **over)(x, *weights)

    plain, ringed = programs(many, "data:4", "batch:data", "d_model:data", "data")
    for one, other in zip(flat(plain(x, *weights)), flat(ringed(x, *weights)), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-5, atol=1e-6)
    assert ringed.explain(x, *weights).wire_bytes == plain.explain(x, *weights).wire_bytes


def test_a_gradient_of_a_gradient():
    def twice(x, *weights):
        slope = lambda w: mx.sum(mx.sin(mx.grad(lambda w: mx.sum(mx.sin(block(x, w, weights[1]))))(w)))  # noqa: E731
        return mx.grad(slope)(weights[0])

    args = arguments()
    for mesh in ("data:2", "data:3", "data:4"):
        got = mx.spmd(twice, mx.Mesh(mesh), mx.Layout("batch:data", params="d_model:data", rings="data"))(*args)
        np.testing.assert_allclose(got.numpy(), twice(*args).numpy(), rtol=1e-3, atol=1e-4)


def test_every_layout_gives_the_same_with_nan_in_all_padding(monkeypatch):
    every, used = testing.layouts_of, []

    def with_rings(mesh, names, seed=0):
        for layout in every(mesh, names, seed):
            free = [axis for axis in mesh.axes if axis not in dict(layout.rules).get("d_model", ())]
            params = {"d_model": free} if free else {}
            yield mx.Layout(dict(layout.rules), params=params, rings=tuple(mesh.axes))

    gathered = transfer.gathered
    monkeypatch.setattr(testing, "layouts_of", with_rings)
    monkeypatch.setattr(transfer, "gathered", lambda x, ring: used.append(ring.axes) or gathered(x, ring))
    count = testing.layout_invariance(differentiated, *arguments(), layouts=200 if WHOLE else 30, gradients=False)
    assert count >= 10 and len(set(used)) > 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_dtypes(dtype):
    """Sums of float16 are made in float32, by one operation: its parameters are gathered as ever."""
    args = arguments(dtype)
    plain, ringed = programs(differentiated, "data:4", "batch:data", "d_model:data", "data")
    for one, other in zip(flat(plain(*args)), flat(ringed(*args)), strict=True):
        np.testing.assert_allclose(*(x.numpy().astype("float32") for x in (other, one)), rtol=0.02, atol=1e-3)
    assert ("permute" in kinds(ringed.explain(*args))) == (dtype == "bfloat16")


def test_without_gradients_nothing_goes_around():
    args = arguments()
    plain, ringed = programs(block, "data:4", "batch:data", "d_model:data", "data")
    np.testing.assert_allclose(ringed(*args).numpy(), block(*args).numpy(), rtol=1e-5, atol=1e-6)
    report = ringed.explain(*args)
    assert kinds(report) == kinds(plain.explain(*args)) and report.unused_rules == ["rings data"]


@pytest.mark.parametrize("params", some(["d_model:data", "d_model:data d_ff:model"], "d_model:data"))
def test_a_decoder_trains_alike(params):
    w, tokens = decoder.init(), decoder.tokens()
    rules, mesh = "batch:data" + ("" if "model" in params else " heads:model vocab:model"), "data:4 model:2"
    plain, ringed = programs(decoder.sgd, mesh, rules, params, "data")
    one, other = w, w
    for _ in range(3):
        (one, first), (other, second) = plain(one, *tokens), ringed(other, *tokens)
        np.testing.assert_allclose(float(second), float(first), rtol=1e-6)
    before, after = plain.explain(w, *tokens), ringed.explain(w, *tokens)
    assert after.wire_bytes == before.wire_bytes
    assert kinds(after)["permute"] > 0 and "permute" not in kinds(before)


def test_an_axis_that_stores_nothing_in_parts_is_said():
    args = arguments()
    report = mx.spmd(differentiated, mx.Mesh("data:4"), mx.Layout("batch:data", rings="data")).explain(*args)
    assert report.unused_rules == ["rings data"] and "permute" not in kinds(report)


def large(rings):
    x = mx.Tensor(jax.ShapeDtypeStruct((512, 10), np.float32), (mx.Dim("batch", 512), d_model))
    mesh = mx.Mesh("hosts:32 chips:16", abstract=True)
    layout = mx.Layout("batch:hosts+chips", params="d_model:hosts+chips", rings=rings)
    return mx.spmd(differentiated, mesh, layout).explain(x, *arguments()[1:])


def test_a_long_dim_goes_around_a_short_axis_and_is_gathered_over_the_other():
    assert kinds(large("chips")) == {"all-gather": 4 + 4, "reduce-scatter": 2, "permute": 2 * 15}


test_mistakes = pinned(
    {
        "a ring that is too long": (
            mx.LayoutError,
            lambda: large("hosts+chips"),
            """
            gradients of stored parameters would go around a ring of 512 processors, over hosts+chips.
              rule: such a ring is a permute for each processor, wherever a parameter is used: at most 64.
              fix: split them over two axes, as in "d_model:hosts+chips", and name the shorter one for rings.
            """,
        )
    }
)
