"""A training step of a decoder, written with meshax: what `decoder_by_hand.py` is compared with."""

import jax

import meshax as mx

LAYOUT = "batch:data heads:model d_ff:model vocab:model"

batch, length, vocab, d_model, d_ff, heads, d_kv, layers = mx.dims(
    batch=512, length=256, vocab=32768, d_model=1024, d_ff=4096, heads=64, d_kv=128, layers=4
)

WEIGHTS = {
    "embedding": (vocab, d_model),
    "layers": {
        "norm1": (layers, d_model),
        "q": (layers, d_model, heads, d_kv),
        "k": (layers, d_model, heads, d_kv),
        "v": (layers, d_model, heads, d_kv),
        "o": (layers, heads, d_kv, d_model),
        "norm2": (layers, d_model),
        "wi": (layers, d_model, d_ff),
        "wo": (layers, d_ff, d_model),
    },
    "norm": (d_model,),
    "logits": (d_model, vocab),
}


def norm(x, scale):
    return x * mx.rsqrt(mx.mean(x * x, d_model) + 1e-6) * scale


def layer(x, w):
    h = norm(x, w["norm1"])
    q = mx.einsum(h, w["q"], over=d_model)
    k = mx.einsum(h, w["k"], over=d_model).rename(length="memory")
    v = mx.einsum(h, w["v"], over=d_model).rename(length="memory")
    scores = mx.einsum(q, k, over=d_kv) * d_kv.size**-0.5
    visible = mx.arange(length) >= mx.arange(k.dim("memory"))
    attention = mx.softmax(mx.where(visible, scores, -1e9), over="memory")
    x = x + mx.einsum(mx.einsum(attention, v, over="memory"), w["o"], over=(heads, d_kv))
    h = mx.relu(mx.einsum(norm(x, w["norm2"]), w["wi"], over=d_model))
    return x + mx.einsum(h, w["wo"], over=d_ff)


def loss(w, inputs, targets):
    hot = (inputs == mx.arange(vocab)).astype(w["embedding"].dtype)
    x = mx.einsum(hot, w["embedding"], over=vocab)
    x, _ = mx.scan(lambda x, w: (layer(x, w), None), x, w["layers"], over=layers)
    logits = mx.einsum(norm(x, w["norm"]), w["logits"], over=d_model)
    return mx.mean(mx.softmax_cross_entropy(logits, targets, over=vocab))


def step(w, inputs, targets):
    value, grads = mx.value_and_grad(loss)(w, inputs, targets)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value


def arguments():
    """Returns weights and tokens without values."""

    def struct(dims, dtype):
        return mx.tensor(jax.ShapeDtypeStruct([dim.size for dim in dims], dtype), dims)

    weights = jax.tree.map(
        lambda dims: mx.param(struct(dims, "float32")), WEIGHTS, is_leaf=lambda leaf: isinstance(leaf, tuple)
    )
    tokens = struct((batch, length), "int32")
    return weights, tokens, tokens


def trace(mesh, arguments):
    return mx.spmd(step, mesh, LAYOUT).trace(*arguments).jaxpr
