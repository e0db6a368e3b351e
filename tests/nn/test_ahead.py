"""Parameters fetched a layer ahead: the same values and gradients, the same bytes, and no wait in a turn."""

from collections import Counter
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
import packed_pairs
from example_tensors import numbers
from extent import some
from meshax.models.decoder import DecoderConfig
from meshax.models.encoder_decoder import EncoderDecoderConfig
from meshax.models.recomputation import KEEP
from meshax.nn.ahead import go_ahead
from meshax.plan.search.named_layouts import find_layout
from meshax.tensors import is_tensor

batch, d_model, d_ff = mx.dims(batch=12, d_model=10, d_ff=7)
WEIGHTS = {"into": (d_model, d_ff), "gate": (d_ff,), "out": (d_ff, d_model)}
FSDP = mx.Layout("batch:data", params="d_model:data")


def stack(layers):
    return {name: mx.param(numbers(mx.Dim("layers", layers), *dims) * 0.3) for name, dims in WEIGHTS.items()}


def flat(tree):
    return jax.tree.leaves(tree, is_leaf=is_tensor)


def same(one, other, **tolerances):
    for got, wanted in zip(flat(one), flat(other), strict=True):
        assert (got.dims, got.role) == (wanted.dims, wanted.role)
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), **{"rtol": 1e-5, "atol": 1e-6} | tolerances)


def sent(report):
    counts = Counter()
    for c in report.collectives:
        counts[c.kind, c.axes, c.shape, c.dtype, c.phase] += c.count
    return counts


def loss(policy, begins, x, layers, source):
    """Layers that refer to a tensor of the program's, to whole numbers and to a key, beside their own parameters."""
    dim, key = flat(layers)[0].dim("layers"), jax.random.key(3)
    places, added = mx.arange(x.dim("batch")) % 5, mx.sum(source, over="memory") * 1.0

    def body(x, numbered):
        w, number = numbered
        inner = mx.sin(mx.einsum(x, w["into"], over=d_model)) * w["gate"] + added
        inner = mx.random.dropout(jax.random.fold_in(key, number), inner, 0.2) * (places > 1)
        return x + mx.einsum(inner, w["out"], over="d_ff"), None

    apply = body if policy == "no checkpoint" else mx.remat(body, policy)
    ends = go_ahead(apply, x, layers, [layers[name] for name in begins], dim) if begins else None
    if ends is None:
        assert not begins
        ends = mx.scan(apply, x, (layers, jnp.arange(dim.size, dtype=jnp.int32)), over=dim)[0]
    return mx.mean(mx.square(ends))


def arguments(layers=3):
    return numbers(batch, d_model), stack(layers), numbers(batch, mx.Dim("memory", 4), d_ff) * 0.1


def both(fn, layout, policy=None, begins=("into",), mesh="data:4"):
    """The same program with nothing fetched ahead, then with what layers begin with."""
    for names in ((), begins):
        yield mx.spmd(lambda *args, names=names: fn(lambda *a: loss(policy, names, *a))(*args), mx.Mesh(mesh), layout)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("begins", [("into",), ("into", "out")])
@pytest.mark.parametrize("policy", ["no checkpoint", None, "collectives", jax.checkpoint_policies.dots_saveable])
def test_values_gradients_and_bytes_are_those_of_a_loop(layers, begins, policy):
    """d_model is uneven; what the body refers to has a gradient, too."""
    args = arguments(layers)
    plain, ahead = both(lambda f: mx.value_and_grad(f, argnums=(0, 1, 2)), FSDP, policy, begins)
    same(ahead(*args), plain(*args))
    assert sent(ahead.explain(*args)) == sent(plain.explain(*args))


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        ("data:2 model:4", mx.Layout("batch:data d_ff:model", params="d_model:data")),
        ("data:2 model:4", mx.Layout("batch:data+model", params="d_model:model+data")),
        ("data:2 model:4", mx.Layout("batch:data memory:model", params="d_model:data")),
        ("data:8", mx.Layout("batch:data", params="d_model:data", rings="data")),
        ("data:2 model:4", mx.Layout("batch:data+model", params="d_model:model", rings="model")),
        ("data:2 model:3", mx.Layout("batch:data layers:model", params="d_model:data")),
    ],
    ids=str,
)
def test_every_layout(mesh, layout):
    args = arguments()
    plain, ahead = both(lambda f: mx.value_and_grad(f, argnums=(0, 1, 2)), layout, mesh=mesh)
    same(ahead(*args), plain(*args))
    assert sent(ahead.explain(*args)) == sent(plain.explain(*args))


@pytest.mark.parametrize(
    ("layers", "layout"),
    [(1, FSDP), (3, mx.Layout("batch:data")), (3, mx.Layout("batch:model", params="d_model:data"))],
    ids=["one layer", "stored whole", "a stream that all have"],
)
def test_where_nothing_is_fetched_it_is_a_loop(layers, layout):
    x, w, _ = arguments(layers)
    found = []

    def fn(x, w):
        dim = flat(w)[0].dim("layers")
        found.append(go_ahead(lambda x, numbered: (x, None), x, w, w, dim))
        return x

    mx.spmd(fn, mx.Mesh("data:2 model:2"), layout)(x, w)
    assert found == [None]


def carried(jaxpr, turns):
    """How many of the values that a loop of so many turns carries were gathered in the turn, for each such loop."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan" and eqn.params["length"] == turns:
            body, made = eqn.params["jaxpr"].jaxpr, set()
            for inner in body.eqns:
                is_view = inner.primitive.name in ("reshape", "slice") and id(inner.invars[0]) in made
                if inner.primitive.name == "all_gather" or is_view:
                    made |= set(map(id, inner.outvars))
            yield sum(id(v) in made for v in body.outvars)
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from carried(inner, turns)


def test_a_turn_gathers_what_the_next_one_needs():
    """Forward and backward; the first layer's is there before the loop, and backward so is the last one's."""
    args = arguments(4)
    plain, ahead = both(lambda f: mx.value_and_grad(f, argnums=1), FSDP)
    assert list(carried(ahead.trace(*args).jaxpr.jaxpr, 3)) == [1, 1]
    assert list(carried(plain.trace(*args).jaxpr.jaxpr, 4)) == [0, 0]


def test_nothing_is_kept_whole():
    """What was fetched is fetched again for the backward pass: a loop that kept it would hold every layer."""
    deep, wide = 16, mx.Dim("d_ff", 4096)
    weights = {"into": (d_model, wide), "gate": (wide,), "out": (wide, d_model)}

    def struct(*dims):
        return mx.tensor(jax.ShapeDtypeStruct([d.size for d in dims], np.float32), dims)

    shapes = {name: mx.param(struct(mx.Dim("layers", deep), *dims)) for name, dims in weights.items()}
    x, source = struct(batch, d_model), struct(batch, mx.Dim("memory", 4), wide)
    plain, ahead = (
        program.explain(x, shapes, source).memory["peak"]
        for program in both(lambda f: mx.value_and_grad(f, argnums=1), FSDP)
    )
    one = 10 * 4096 * 4
    assert ahead < plain + 4 * one < plain + deep * one / 2


@pytest.mark.parametrize("layout", [FSDP, mx.Layout("batch:data", params="d_model:data", rings="data")], ids=str)
def test_a_gradient_of_a_gradient(layout):
    def twice(f):
        slope = lambda w, x, s: sum(mx.sum(mx.sin(g)) for g in flat(mx.grad(lambda w: f(x, w, s))(w)))  # noqa: E731
        return lambda x, w, s: mx.grad(slope)(w, x, s)

    args = arguments()
    plain, ahead = both(twice, layout)
    same(ahead(*args), plain(*args), rtol=1e-4)


def test_in_microbatches_inside_of_a_checkpoint_and_without_a_gradient():
    args = arguments()

    def several(f):
        return lambda x, w, s: mx.value_and_grad(
            lambda x, w: f(x, w, mx.broadcast(s, s.dims)), argnums=1, microbatches=2, over="batch"
        )(x, w)

    for fn in (lambda f: f, lambda f: mx.value_and_grad(mx.remat(f), argnums=(0, 1, 2))):
        plain, ahead = both(fn, FSDP)
        same(ahead(*args), plain(*args))
        assert sent(ahead.explain(*args)) == sent(plain.explain(*args))


LOOP = DecoderConfig(
    d_model=16, heads=4, d_kv=4, d_ff=24, layers=4, vocab=20, dtype="float32", dropout=0.2, layers_as="loop"
)
CASES = [(layout, keep) for layout in ("none", "data+model", "fsdp", "sequence") for keep in KEEP]


def step(config, layout, rings=""):
    mesh = mx.Mesh("data:2 model:4")

    def loss(model, batch):
        total, count = model.loss(batch, jax.random.key(0))
        return total / count

    laid_out = find_layout(layout, mesh, known=config.glossary, sizes=config.sizes(), rings=rings)
    return mx.spmd(mx.value_and_grad(loss), mesh, laid_out)


def written(config):
    """A model whose parameters all differ, without a program that draws them."""
    sine = lambda x: np.float32(np.sin(np.arange(x.size)) * 0.2).reshape(list(x.shape.values()))  # noqa: E731
    shapes = jax.eval_shape(lambda: config.make(jax.random.key(0)))
    return jax.tree.map(lambda x: mx.Tensor(sine(x), x.dims, x.role), shapes, is_leaf=is_tensor)


def texts():
    tokens = np.int32(np.arange(32).reshape(4, 8) * 7 % 20)
    arrays = dict(tokens=tokens, targets=(tokens + 7) % 20, weights=np.ones((4, 8), np.float32))
    return {name: mx.tensor(array, "batch length") for name, array in arrays.items()}


def check_model(config, layout, data, rings=""):
    model = written(config)
    program = step(config, layout, rings)
    ahead = replace(model, config=replace(config, fetch_ahead=True))
    same(program(ahead, data), program(model, data))
    reports = [program.explain(m, data) for m in (ahead, model)]
    assert sent(reports[0]) == sent(reports[1])
    return reports[0]


@pytest.mark.parametrize("case", some(CASES, ("fsdp", "nothing"), ("fsdp", "everything")))
@pytest.mark.parametrize("rings", some(["", "data", "data+model"], "", "data+model"))
def test_a_language_model(case, rings):
    layout, keep = case
    report = check_model(replace(LOOP, keep=keep), layout, texts(), rings)
    assert ("go_ahead" in {c.op for c in report.collectives}) == (layout == "fsdp")


def test_a_model_that_translates():
    """The decoder's layers refer to what the encoder made of the source; its gradient is summed once."""
    config = EncoderDecoderConfig(
        d_model=12, heads=4, d_kv=3, d_ff=20, layers=3, vocab=22, dtype="float32", dropout=0.2, keep="collectives"
    )
    config = replace(config, layers_as="loop", positions="relative", kv_heads=2, biases="all", encoder_layers=2)
    check_model(config, "fsdp", packed_pairs.examples())


@pytest.mark.parametrize("frozen", ["feed_forward", "q"])
def test_frozen_whole_numbers_in_the_stack(frozen):
    """They have no gradient, and are not fetched."""
    config = replace(LOOP, layers=3)
    mesh = mx.Mesh("data:4")
    model, layout = written(config), find_layout("fsdp", mesh, known=config.glossary, sizes=config.sizes())
    where = (lambda m: m.layers.feed_forward) if frozen == "feed_forward" else (lambda m: m.layers.attention.q)
    narrow = jax.tree.map(lambda x: mx.param((x * 40).astype("int8")), where(model), is_leaf=is_tensor)
    model = eqx.tree_at(where, model, narrow)

    def slope(model, batch):
        def loss(embedding):
            total, count = replace(model, embedding=embedding).loss(batch, None)
            return total / count

        return mx.value_and_grad(loss)(model.embedding)

    program = mx.spmd(slope, mesh, layout)
    ahead = replace(model, config=replace(config, fetch_ahead=True))
    same(program(ahead, texts()), program(model, texts()))
    assert sent(program.explain(ahead, texts())) == sent(program.explain(model, texts()))
