"""A Transformer language model's training step, written with meshax's operations alone.

The language models of Table 2 of the Mesh-TensorFlow paper: decoder only, 6 layers, trained with Adafactor, bfloat16
products on float32 parameters. `lm_0_14b` to `lm_4_90b` give the step and the shapes of its arguments, to be explained,
planned and laid out without a machine:

    meshax explain examples/transformer.py:lm_1_28b --mesh "data:32 model:16" --layout data+model
    meshax plan examples/transformer.py:lm_4_90b --topology "tpu v2:16x16" --mesh "data:32 model:16" --layout data+model

Run as a program, it trains the tiny one on 8 virtual processors: python examples/transformer.py
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

import meshax as mx

mx.Dim.declare({"memory": "the tokens attended to: those of length, under a name of their own"})


@dataclass(frozen=True)
class Sizes:
    heads: int
    batch: int = 512
    length: int = 256
    vocab: int = 32768
    d_model: int = 1024
    d_k: int = 256
    layers: int = 6
    dtype: str = "bfloat16"  # of products and activations; parameters are float32

    @property
    def d_ff(self):
        return 1024 * self.heads if self.d_model == 1024 else 4 * self.d_model


def shapes(s):
    """The dims of every parameter."""
    batch, length, vocab, d_model, heads, d_k, d_ff, layers = mx.dims(
        batch=s.batch, length=s.length, vocab=s.vocab, d_model=s.d_model, heads=s.heads, d_k=s.d_k, d_ff=s.d_ff,
        layers=s.layers,
    )  # fmt: skip
    layer = {
        "attention_norm": (layers, d_model),
        "q": (layers, d_model, heads, d_k),
        "k": (layers, d_model, heads, d_k),
        "v": (layers, d_model, heads, d_k),
        "o": (layers, heads, d_k, d_model),
        "feed_forward_norm": (layers, d_model),
        "wi": (layers, d_model, d_ff),
        "wo": (layers, d_ff, d_model),
    }
    return {"embedding": (vocab, d_model), "layers": layer, "norm": (d_model,), "logits": (d_model, vocab)}


def is_dims(x):
    return isinstance(x, tuple)


def norm(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * mx.rsqrt(mx.mean(wide * wide, "d_model") + 1e-6) * scale).astype(x.dtype)


def attention(x, w):
    q, k, v = (mx.einsum(x, w[name].astype(x.dtype), over="d_model") for name in "qkv")
    k, v = k.rename(length="memory"), v.rename(length="memory")
    scores = mx.einsum(q, k, out="batch heads length memory").astype(jnp.float32) * q.dim("d_k").size ** -0.5
    scores = mx.where(mx.arange(q.dim("length")) >= mx.arange(k.dim("memory")), scores, -1e9)
    weights = mx.softmax(scores, over="memory").astype(x.dtype)
    mixed = mx.einsum(weights, v, out="batch length heads d_k")
    return mx.einsum(mixed, w["o"].astype(x.dtype), out=x.dims)


def feed_forward(x, w):
    h = mx.relu(mx.einsum(x, w["wi"].astype(x.dtype), over="d_model"))
    return mx.einsum(h, w["wo"].astype(x.dtype), over="d_ff")


def layer(x, w):
    x = x + attention(norm(x, w["attention_norm"]), w)
    return x + feed_forward(norm(x, w["feed_forward_norm"]), w), None


def loss(w, tokens, targets, dtype):
    x = mx.gather(w["embedding"].astype(dtype), tokens, "vocab")
    x, _ = mx.scan(mx.remat(layer), x, w["layers"], over="layers")
    logits = mx.einsum(norm(x, w["norm"]), w["logits"].astype(dtype), over="d_model").astype(jnp.float32)
    return mx.mean(mx.softmax_cross_entropy(logits, targets, over="vocab"))


def factors(dims):
    """The two largest dims of a parameter, whose second moments Adafactor keeps as two vectors."""
    own = [d for d in dims if d.name != "layers"]
    return sorted(own, key=lambda d: d.size)[-2:] if len(own) > 1 else []


def moments(dims):
    """The dims of a parameter's second moments."""
    pair = factors(dims)
    return [tuple(d for d in dims if d != left_out) for left_out in pair] if pair else [dims]


def adafactor(p, g, state, rate=0.01, decay=0.99):
    squares, pair = g * g + 1e-30, factors(p.dims)
    seen = [mx.mean(squares, d) for d in pair] if pair else [squares]
    state = [decay * old + (1 - decay) * new for old, new in zip(state, seen, strict=True)]
    second = state[0] / mx.mean(state[0], pair[1]) * state[1] if pair else state[0]
    update = g * mx.rsqrt(second + 1e-30)
    size = mx.rsqrt(mx.mean(update * update))
    return p - rate * mx.minimum(size, 1.0) * update, state


def step(w, state, tokens, targets, dtype="bfloat16"):
    value, grads = mx.value_and_grad(partial(loss, dtype=dtype))(w, tokens, targets)
    leaves, treedef = jax.tree.flatten(w, is_leaf=lambda x: isinstance(x, mx.Tensor))
    moved = [adafactor(*one) for one in zip(leaves, treedef.flatten_up_to(grads), state, strict=True)]
    return jax.tree.unflatten(treedef, [p for p, _ in moved]), [s for _, s in moved], value


def training_step(sizes):
    """The step, the shapes of its arguments, and which of them may be overwritten."""

    def described(dims, dtype=jnp.float32):
        return mx.Tensor(jax.ShapeDtypeStruct(tuple(d.size for d in dims), dtype), tuple(dims))

    dims = shapes(sizes)
    w = jax.tree.map(lambda d: mx.param(described(d)), dims, is_leaf=is_dims)
    state = [[described(m) for m in moments(d)] for d in jax.tree.leaves(dims, is_leaf=is_dims)]
    words = described(mx.dims(batch=sizes.batch, length=sizes.length), jnp.int32)
    return partial(step, dtype=sizes.dtype), (w, state, words, words), (0, 1)


lm_0_14b, lm_0_22b, lm_0_37b, lm_0_67b, lm_1_28b, lm_2_48b, lm_4_90b = (
    partial(training_step, Sizes(heads)) for heads in (4, 8, 16, 32, 64, 128, 256)
)
tiny = partial(training_step, Sizes(heads=8, batch=16, length=64, vocab=512, d_model=64, d_k=16, dtype="float32"))


def main():
    jax.config.update("jax_num_cpu_devices", 8)
    step, (w, state, words, _), donate = tiny()
    keys = iter(jax.random.split(jax.random.key(0), 64))
    w = jax.tree.map(
        lambda x: mx.param(mx.ones(x.dims) if len(x.dims) < 3 and "vocab" not in str(x.dims)
                           else mx.random.normal(next(keys), x.dims) * 0.1),
        w, is_leaf=lambda x: isinstance(x, mx.Tensor),
    )  # fmt: skip
    state = jax.tree.map(lambda x: mx.zeros(x.dims), state, is_leaf=lambda x: isinstance(x, mx.Tensor))
    tokens = mx.random.randint(next(keys), words.dims, 0, 64) * 7  # few of the words, so there is something to learn
    layout = mx.Layout("batch:data heads:model d_ff:model vocab:model")
    train = mx.spmd(step, mx.Mesh("data:2 model:4"), layout, donate)
    for number in range(10):
        w, state, value = train(w, state, tokens, tokens)
        print(f"step {number}  loss {float(value):.3f}")
    report = train.explain(w, state, tokens, tokens)
    print(f"{report.wire_bytes:,} bytes sent by each processor in a step")


if __name__ == "__main__":
    main()
