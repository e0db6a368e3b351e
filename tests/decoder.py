"""A pre-norm decoder written with the public ops, as a user would: what the communication tests look at."""

import jax
import numpy as np

import meshax as mx

BATCH, LENGTH, VOCAB, D_MODEL, D_FF, HEADS, D_KV, LAYERS = 8, 16, 40, 24, 64, 8, 12, 4
batch, length, vocab, d_model, d_ff, heads, d_kv, layers = mx.dims(
    batch=BATCH, length=LENGTH, vocab=VOCAB, d_model=D_MODEL, d_ff=D_FF, heads=HEADS, d_kv=D_KV, layers=LAYERS
)
mx.Dim.declare({"positions": "length, as attention and feed-forward see it", "memory": "the tokens attended to"})


def init(seed=0):
    """Returns position-dependent parameters, stacked over layers."""
    r = np.random.RandomState(seed)

    def weight(*dims, std):
        return mx.param(mx.tensor(r.normal(0, std, [d.size for d in dims]).astype(np.float32), dims))

    stacked = {
        "norm1": weight(layers, d_model, std=0.1) + 1.0,
        "q": weight(layers, d_model, heads, d_kv, std=0.1),
        "k": weight(layers, d_model, heads, d_kv, std=0.1),
        "v": weight(layers, d_model, heads, d_kv, std=0.1),
        "o": weight(layers, heads, d_kv, d_model, std=0.1),
        "norm2": weight(layers, d_model, std=0.1) + 1.0,
        "wi": weight(layers, d_model, d_ff, std=0.1),
        "wo": weight(layers, d_ff, d_model, std=0.1),
    }
    return {
        "embedding": weight(vocab, d_model, std=1.0),
        "layers": stacked,
        "norm": weight(d_model, std=0.1) + 1.0,
        "logits": weight(d_model, vocab, std=0.2),
    }


def tokens(seed=1):
    r = np.random.RandomState(seed)
    targets = r.randint(0, VOCAB, (BATCH, LENGTH)).astype(np.int32)
    inputs = np.concatenate([np.zeros((BATCH, 1), np.int32), targets[:, :-1]], 1)
    return mx.tensor(inputs, (batch, length)), mx.tensor(targets, (batch, length))


def norm(x, scale):
    return x * mx.rsqrt(mx.mean(x * x, "d_model") + 1e-6) * scale


def layer(x, w):
    """One layer; the stream holds `length` tokens, which attention and feed-forward see as `positions`."""
    h = norm(x, w["norm1"]).rename(length="positions")
    q = mx.einsum(h, w["q"], over=d_model)
    k = mx.einsum(h, w["k"], over=d_model).rename(positions="memory")
    v = mx.einsum(h, w["v"], over=d_model).rename(positions="memory")
    scores = mx.einsum(q, k, over=d_kv) * D_KV**-0.5
    visible = mx.arange(q.dim("positions")) >= mx.arange(k.dim("memory"))
    attention = mx.softmax(mx.where(visible, scores, -1e9), over="memory")
    out = mx.einsum(mx.einsum(attention, v, over="memory"), w["o"], out="batch positions d_model")
    x = x + out.rename(positions="length")
    h = mx.relu(mx.einsum(norm(x, w["norm2"]).rename(length="positions"), w["wi"], over=d_model))
    return x + mx.einsum(h, w["wo"], over=d_ff).rename(positions="length")


def loss(w, inputs, targets, *, layer=layer):
    hot = (inputs.rename(length="positions") == mx.arange(vocab)).astype(w["embedding"].dtype)
    x = mx.einsum(hot, w["embedding"], over=vocab).rename(positions="length")
    x, _ = mx.scan(lambda x, w: (layer(x, w), None), x, w["layers"], over=layers)
    x = norm(x, w["norm"]).rename(length="positions")
    logits = mx.einsum(x, w["logits"], over=d_model)
    return mx.mean(mx.softmax_cross_entropy(logits, targets.rename(length="positions"), over=vocab))


def sgd(w, inputs, targets, *, loss=loss, **options):
    value, grads = mx.value_and_grad(loss, **options)(w, inputs, targets)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value
