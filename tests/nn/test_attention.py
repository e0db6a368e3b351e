"""Attention in all its forms equals plain JAX, under every layout, ring included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from extent import WHOLE, some
from meshax import nn
from meshax.nn import attention_kernels
from meshax.testing import layout_invariance

batch, positions, memory, d_model, heads, d_kv = mx.dims(batch=4, positions=16, memory=12, d_model=8, heads=4, d_kv=6)
KEY = jax.random.key(0)
LAYOUTS = 6 if WHOLE else 1  # of each mesh


def inputs(*dims):
    n = int(np.prod([d.size for d in dims]))
    return mx.tensor(np.sin(1.3 * np.arange(n)).reshape([d.size for d in dims]).astype(np.float32), dims)


def segments():
    return mx.tensor(np.repeat(np.arange(1, 5), 4)[None] + np.array([[0], [0], [1], [1]]), (batch, positions)).astype(
        jnp.int32
    )


def reference(layer, x, source, mask):
    """Multi-head attention by JAX alone, from the layer's parameters."""
    grouped = "kv_heads" in [d.name for d in layer.q.weight.dims]

    def mapped(linear, x):
        out = np.einsum("bld,d...->bl...", x, linear.weight.numpy())
        return out if linear.bias is None else out + linear.bias.numpy()

    def normal(norm, x):
        if norm is None:
            return x
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + norm.epsilon) * norm.scale.numpy()

    q, k = normal(layer.q_norm, mapped(layer.q, x)), normal(layer.k_norm, mapped(layer.k, source))
    v = mapped(layer.v, source)
    if grouped:
        q = q.reshape(*q.shape[:2], -1, q.shape[-1])
    if k.ndim == 3:
        k, v = k[:, :, None], v[:, :, None]
    k, v = (np.repeat(a, q.shape[2] // a.shape[2], axis=2) for a in (k, v))
    scores = np.einsum("blhd,bmhd->bhlm", q, k) * q.shape[-1] ** -0.5
    scores = np.where(mask, scores, -1e9)
    w = jax.nn.softmax(jnp.asarray(scores), axis=-1)
    mixed = np.einsum("bhlm,bmhd->blhd", w, v)
    out = layer.out.weight.numpy().reshape(-1, d_model.size)
    mixed = mixed.reshape(*mixed.shape[:2], -1) @ out
    return mixed if layer.out.bias is None else mixed + layer.out.bias.numpy()


def uneven(layer):
    """The layer with biases and norms that differ by place."""
    return jax.tree.map(lambda x: x + 0.2 * np.sin(np.arange(x.size, dtype=np.float32)).reshape(x.shape), layer)


def causal(n):
    return np.tril(np.ones((n, n), bool))


FORMS = {
    "multi-head": dict(),
    "multi-query": dict(kv_heads=1),
    "grouped": dict(kv_heads=2),
    "bidirectional": dict(causal=False),
    "window": dict(window=5),
    "biases of three": dict(biases=("q", "k", "v")),
    "biases and norms": dict(biases=("q", "k", "v", "out"), norm_epsilon=0.1, kv_heads=2),
}


@pytest.mark.parametrize("form", FORMS)
def test_equals_plain_jax(form):
    layer = uneven(nn.Attention.init(KEY, d_model, heads, d_kv, **FORMS[form]))
    x = inputs(batch, positions, d_model)
    n = positions.size
    mask = np.ones((n, n), bool) if form == "bidirectional" else causal(n)
    if form == "window":
        mask &= ~np.tril(mask, -5)
    np.testing.assert_allclose(layer(x).numpy(), reference(layer, x.numpy(), x.numpy(), mask), atol=2e-5)


def test_cross_attention():
    layer = nn.Attention.init(KEY, d_model, heads, d_kv, causal=False)
    x, source = inputs(batch, positions, d_model), inputs(batch, memory, d_model)
    wanted = reference(layer, x.numpy(), source.numpy(), np.ones((16, 12), bool))
    np.testing.assert_allclose(layer(x, source).numpy(), wanted, atol=2e-5)


def test_packed_segments_do_not_see_each_other():
    layer = nn.Attention.init(KEY, d_model, heads, d_kv)
    x = inputs(batch, positions, d_model)
    s = segments().numpy()
    mask = (s[:, :, None] == s[:, None, :])[:, None] & causal(16)
    wanted = reference(layer, x.numpy(), x.numpy(), mask)
    np.testing.assert_allclose(layer(x, segments=segments()).numpy(), wanted, atol=2e-5)


@pytest.mark.parametrize("form", some([*FORMS, "rotary", "relative", "segments"], "segments"))
def test_every_layout_gives_the_same(form):
    options = FORMS.get(form, {form: True} if form != "segments" else {})
    layer = uneven(nn.Attention.init(KEY, d_model, heads, d_kv, **options))

    def fn(layer, x, s):
        return layer(x, segments=s if form == "segments" else None)

    assert layout_invariance(
        fn, layer, inputs(batch, positions, d_model), segments(), layouts=LAYOUTS, tolerance=5e-5, seed=1
    )


@pytest.mark.parametrize("form", some([*FORMS, "rotary", "segments"], "grouped", "window", "rotary", "segments"))
@pytest.mark.parametrize("mesh", some(["x:4", "x:2 y:4"], "x:2 y:4"))
def test_split_positions_are_a_ring(form, mesh):
    options = FORMS.get(form, {form: True} if form != "segments" else {})
    layer = nn.Attention.init(KEY, d_model, heads, d_kv, **options)
    x = inputs(batch, positions, d_model)

    def fn(layer, x, s):
        def loss(layer, x, s):
            out = layer(x, segments=s if form == "segments" else None)
            return mx.sum(out * mx.sin(out)), out

        (_, out), grads = mx.value_and_grad(loss, has_aux=True)(layer, x, s)
        return out, grads

    axis = "x" if mesh == "x:4" else "y"
    program = mx.spmd(fn, mx.Mesh(mesh), f"positions:{axis}" + (" batch:x" if axis == "y" else ""))
    for got, wanted in zip(
        *(jax.tree.leaves(f(layer, x, segments()), is_leaf=lambda t: isinstance(t, mx.Tensor)) for f in (program, fn))
    ):
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), atol=5e-5)
    kinds = {c.kind for c in program.explain(layer, x, segments()).collectives if c.elements > 20}
    assert "permute" in kinds and "all-gather" not in kinds


@pytest.mark.parametrize("form", some(["causal", "both ways", "memory", "segments"], "memory", "segments"))
def test_dropped_for_all_queries_alike_a_kernel_gets_values_that_are_dropped(form, monkeypatch):
    """The same as weights that are dropped, forward and backward."""
    options = {"causal": form != "both ways", "dropout": 0.4, "dropout_shared": ["positions"]}
    layer, x = nn.Attention.init(KEY, d_model, heads, d_kv, **options), inputs(batch, positions, d_model)
    how = {"key": jax.random.key(3), "segments": segments() if form == "segments" else None}
    how["memory"] = inputs(batch, memory, d_model) * 2.0 if form == "memory" else None
    dropped = []

    def kernel(q, k, v, d_kv, visible, scale):
        """Products, which know no dropout."""
        dropped.append(v)
        with monkeypatch.context() as without:
            without.setattr(attention_kernels, "_fused_kernel", lambda *_: None)
            rest = {"length": "memory", "visible": visible, "dropout": nn.Dropout(), "scale": scale}
            return attention_kernels.attend(q, k, v, d_kv=d_kv, **rest)

    def outcome():
        loss = lambda layer: mx.sum(layer(x, **how) * inputs(batch, positions, d_model)).array  # noqa: E731
        return jax.tree.leaves((layer(x, **how), jax.grad(loss)(layer)))

    wanted = outcome()
    monkeypatch.setattr(attention_kernels, "_fused_kernel", lambda *_: kernel)
    for got, expected in zip(outcome(), wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert len(dropped) == 2 and 0.5 < np.count_nonzero(dropped[0].numpy()) / dropped[0].size < 0.7


def test_heads_that_share_values_drop_weights(monkeypatch):
    monkeypatch.setattr(attention_kernels, "_fused_kernel", lambda *_: pytest.fail)
    layer = nn.Attention.init(KEY, d_model, heads, d_kv, kv_heads=2, dropout=0.4, dropout_shared=["positions"])
    assert np.isfinite(layer(inputs(batch, positions, d_model), key=KEY).numpy()).all()


def test_a_number_of_heads_that_does_not_divide():
    with pytest.raises(mx.ArgumentError, match="3 heads of keys and values do not serve 4 heads of queries"):
        nn.Attention.init(KEY, d_model, heads, d_kv, kv_heads=3)


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("keys", lambda layer, x, extra: layer(x, inputs(batch, extra, memory, d_model))),
        ("segments", lambda layer, x, extra: layer(x, segments=mx.zeros((batch, extra, positions), jnp.int32))),
    ],
)
def test_what_the_queries_lack_is_not_summed_away(what, call):
    layer, extra = nn.Attention.init(KEY, d_model, heads, d_kv), mx.Dim("documents", 3)
    with pytest.raises(mx.ShapeError) as error:
        call(layer, inputs(batch, positions, d_model), extra)
    first, values, rule, fix = str(error.value).split("\n")
    assert first == f"the {what} of attention have the dim 'documents', which the queries lack."
    assert values.startswith(f"  values: queries [batch:4, positions:16, heads:4, d_kv:6], {what} [batch:4, documents")
    assert rule == "  rule: the result has the dims of the queries."
    assert fix == "  fix: give the queries the dim (mx.broadcast), or join it to 'memory' (mx.reshape)."


@pytest.mark.parametrize(
    ("kv_heads", "layout", "products"),
    [
        (None, "heads:model batch:data", 1),
        (2, "kv_heads:data", 1),
        (2, "heads:data", 3),  # the queries' heads are split, which the keys' are not
        *(pytest.param(n, "batch:data", 1, marks=pytest.mark.exhaustive) for n in (None, 1, 2)),
        pytest.param(1, "heads:model", 3, marks=pytest.mark.exhaustive),
    ],
)
def test_joined_it_is_the_same(kv_heads, layout, products):
    options = {"kv_heads": kv_heads, "rotary": True, "biases": ("q", "k", "v"), "norm_epsilon": 1e-6}
    layer = uneven(nn.Attention.init(KEY, d_model, heads, d_kv, **options))
    x = inputs(batch, positions, d_model)
    program = mx.spmd(lambda layer, x: (layer.joined()(x), layer.joined()), mx.Mesh("data:2 model:4"), layout)
    out, joined = program(layer, x)
    assert sum(one is not None for one in (joined.q, joined.k, joined.v)) == products
    np.testing.assert_allclose(out.numpy(), layer(x).numpy(), rtol=1e-4, atol=1e-5)


def test_one_product_is_for_maps_that_are_alike():
    layer = nn.Attention.init(KEY, d_model, heads, d_kv, biases=("q",))
    assert layer.joined() is layer
