"""The table of operations for the layout harness, in groups of one signature."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import meshax as mx
from layouts import reference

# Distinct sizes; over 2, 4 and 8 processors some divide and some do not, one is smaller than the mesh.
a, b, c, d = mx.dims(a=8, b=5, c=6, d=3)
e, f, ab, layers = mx.dims(e=5, f=6, ab=40, layers=3)


@dataclass
class Case:
    name: str
    fn: Any
    ref: Any
    wanted: Any = None


@dataclass
class Group:
    name: str
    dims: tuple  # the dims of each input
    names: tuple  # the dims that layouts split
    cases: list
    integer: tuple = ()  # inputs that are integers
    dtype: Any = np.float32
    offset: float = 0.0
    table: list = field(default_factory=list)

    @cached_property
    def inputs(self):
        made = []
        for i, dims in enumerate(self.dims):
            shape = [dim.size for dim in dims]
            n = int(np.prod(shape))
            if i in self.integer:
                made.append(mx.tensor(((7 * np.arange(n) + i) % 5).reshape(shape).astype(np.int32), dims))
            else:
                values = np.sin(1.3 * np.arange(n) + i) * (1 + i) + self.offset
                made.append(mx.tensor(values.reshape(shape).astype(self.dtype), dims))
        return made

    def prepare(self):
        """Computes what whole arrays give, once."""
        is_float = [jnp.issubdtype(x.dtype, jnp.inexact) for x in self.inputs]
        for case in self.cases:
            if case.wanted is None:
                case.wanted = reference(case.ref, [x.numpy() for x in self.inputs], is_float)
        return self


def _unary(*names):
    return [
        Case(n, getattr(mx, n), getattr(jax.lax if n in ("rsqrt", "erf") else jnp, n, None) or getattr(jax.nn, n))
        for n in names
    ]


ELEMENTWISE = Group(
    "elementwise",
    ((a, b),),
    ("a", "b"),
    _unary("exp", "tanh", "sin", "cos", "square", "sigmoid", "softplus", "relu", "gelu", "silu", "erf", "expm1")
    + _unary("abs", "sign", "floor", "ceil", "round", "isnan", "isfinite", "negative")
    + [
        Case("neg", lambda x: -x, lambda x: -x),
        Case("power", lambda x: x**2, lambda x: x**2),
        Case("pow3", lambda x: x**3, lambda x: x**3),
        Case("astype", lambda x: (x * 3).astype(jnp.bfloat16), lambda x: (x * 3).astype(jnp.bfloat16)),
        Case("scalars", lambda x: 2 - (3 * x + 1) / 4, lambda x: 2 - (3 * x + 1) / 4),
        Case("clip", lambda x: mx.clip(x, -0.5, 0.5), lambda x: jnp.clip(x, -0.5, 0.5)),
        Case("compare", lambda x: (x > 0, x <= 0.5, x == 0, x != 0), lambda x: (x > 0, x <= 0.5, x == 0, x != 0)),
        Case("logic", lambda x: ((x > 0) & (x < 0.5)) | ~(x > -1), lambda x: ((x > 0) & (x < 0.5)) | ~(x > -1)),
        Case("stop_gradient", lambda x: mx.stop_gradient(x) * x, lambda x: jax.lax.stop_gradient(x) * x),
        Case("lift", mx.lift(jnp.arctan), jnp.arctan),
        Case("remainder", lambda x: (x % 0.7, x // 0.7), lambda x: (x % 0.7, x // 0.7)),
    ],
)
POSITIVE = Group("positive", ((a, b),), ("a", "b"), _unary("log", "log1p", "sqrt", "rsqrt"), offset=2.0)
BINARY = Group(
    "binary",
    ((a, b), (b, c)),
    ("a", "b", "c"),
    [
        Case("add", lambda x, y: x + y, lambda x, y: x[:, :, None] + y[None]),
        Case("sub", lambda x, y: y - x, lambda x, y: y[:, :, None] - jnp.transpose(x)[:, None]),
        Case("mul", lambda x, y: x * y, lambda x, y: x[:, :, None] * y[None]),
        Case("div", lambda x, y: x / (y * y + 1), lambda x, y: x[:, :, None] / (y * y + 1)[None]),
        Case("maximum", mx.maximum, lambda x, y: jnp.maximum(x[:, :, None], y[None])),
        Case("minimum", mx.minimum, lambda x, y: jnp.minimum(x[:, :, None], y[None])),
        Case("where", lambda x, y: mx.where(x > 0, x, y), lambda x, y: jnp.where(x[:, :, None] > 0, x[:, :, None], y)),
        Case("broadcast", lambda x, y: mx.broadcast(x, (c, b, a)), lambda x, y: jnp.broadcast_to(x.T, (6, 5, 8))),
        Case("scalar", lambda x, y: x * mx.sum(y), lambda x, y: x * jnp.sum(y)),
    ],
)
EINSUM = Group(
    "einsum",
    ((a, b, d), (b, c)),
    ("a", "b", "c", "d"),
    [
        Case("matmul", lambda x, y: mx.einsum(x, y, out=(a, c)), lambda x, y: jnp.einsum("abd,bc->ac", x, y)),
        Case("batched", lambda x, y: mx.einsum(x, y, out="b c a"), lambda x, y: jnp.einsum("abd,bc->bca", x, y)),
        Case("outer", lambda x, y: mx.einsum(x, y, over=d), lambda x, y: jnp.einsum("abd,bc->abc", x, y)),
        Case("all", lambda x, y: mx.einsum(x, y, out=()), lambda x, y: jnp.einsum("abd,bc->", x, y)),
        Case("one", lambda x, y: mx.einsum(x, over=a), lambda x, y: jnp.einsum("abd->bd", x)),
        Case("three", lambda x, y: mx.einsum(x, y, x, out="a c"), lambda x, y: jnp.einsum("abd,bc,abd->ac", x, y, x)),
        Case(
            "two sums",
            lambda x, y: mx.einsum(x, y, out=(a, c)) + 2 * mx.einsum(x * x, y, out=(a, c)),
            lambda x, y: jnp.einsum("abd,bc->ac", x, y) + 2 * jnp.einsum("abd,bc->ac", x * x, y),
        ),
        Case(
            "log of a sum",
            lambda x, y: mx.log(mx.einsum(x * x, y * y, out=(a, c)) + 1),
            lambda x, y: jnp.log(jnp.einsum("abd,bc->ac", x * x, y * y) + 1),
        ),
    ],
)


def _reductions(mxf, ref):
    return [
        Case(f"{mxf.__name__} one", lambda x: mxf(x, over="b"), lambda x: ref(x, axis=1)),
        Case(f"{mxf.__name__} two", lambda x: mxf(x, over=(c, a)), lambda x: ref(x, axis=(0, 2))),
        Case(f"{mxf.__name__} all", lambda x: mxf(x), lambda x: ref(x)),
    ]


REDUCTION = Group(
    "reduction",
    ((a, b, c),),
    ("a", "b", "c"),
    sum(
        [
            _reductions(getattr(mx, n), r)
            for n, r in dict(
                sum=jnp.sum, mean=jnp.mean, max=jnp.max, min=jnp.min, var=jnp.var, logsumexp=jax.nn.logsumexp
            ).items()
        ],
        [],
    ),
)
INDEX = Group(
    "index",
    ((a, b, c),),
    ("a", "b", "c"),
    [
        Case("prod", lambda x: mx.prod(x, over="b"), lambda x: jnp.prod(x, axis=1)),
        Case("all", lambda x: mx.all(x > -2.9, over=(a, b)), lambda x: jnp.all(x > -2.9, axis=(0, 1))),
        Case("any", lambda x: mx.any(x > 0.99, over=c), lambda x: jnp.any(x > 0.99, axis=2)),
        Case(
            "argmax",
            lambda x: mx.argmax(mx.round(x), over=b),
            lambda x: jnp.argmax(jnp.round(x), axis=1).astype(np.int32),
        ),
        Case(
            "argmin",
            lambda x: mx.argmin(mx.round(x), over=a),
            lambda x: jnp.argmin(jnp.round(x), axis=0).astype(np.int32),
        ),
        Case(
            "ties",
            lambda x: mx.max(mx.round(x) + 0 * x, over="a c"),
            lambda x: jnp.max(jnp.round(x) + 0 * x, axis=(0, 2)),
        ),
        Case("softmax", lambda x: mx.softmax(x, over=b), lambda x: jax.nn.softmax(x, axis=1)),
        Case("log_softmax", lambda x: mx.log_softmax(x, over=a), lambda x: jax.nn.log_softmax(x, axis=0)),
        Case("transpose", lambda x: mx.transpose(x, (c, a, b)), lambda x: jnp.transpose(x, (2, 0, 1))),
        Case("sum of sum", lambda x: mx.sum(mx.sum(x, a), c), lambda x: jnp.sum(x, (0, 2))),
    ],
)


def _cross_entropy(logits, labels, z=0.0, smoothing=0.0):
    lse = jax.nn.logsumexp(logits, axis=1)
    chosen = jnp.take_along_axis(logits, jnp.clip(labels, 0, 4)[:, None], axis=1)[:, 0]
    loss = lse - chosen + smoothing * (chosen - jnp.mean(logits, axis=1)) + z * lse**2
    return loss


LOSS = Group(
    "loss",
    ((a, b), (a,)),
    ("a", "b"),
    [
        Case("cross entropy", lambda x, y: mx.softmax_cross_entropy(x, y, over=b), _cross_entropy),
        Case(
            "z and smoothing",
            lambda x, y: mx.mean(mx.softmax_cross_entropy(x, y, over=b, z_loss=0.1, label_smoothing=0.2)),
            lambda x, y: jnp.mean(_cross_entropy(x, y, 0.1, 0.2)),
        ),
    ],
    integer=(1,),
)
RENAME = Group(
    "rename",
    ((a, b, c),),
    ("a", "b", "c", "e", "f"),
    [
        Case("one", lambda x: x.rename(b="e"), lambda x: x),
        Case("two", lambda x: x.rename(b="e", c="f") * 2, lambda x: x * 2),
        Case("consumed", lambda x: mx.einsum(x, x.rename(b="e"), out="b e"), lambda x: jnp.einsum("abc,aec->be", x, x)),
        Case("pending", lambda x: mx.sum(x, a).rename(c="f"), lambda x: jnp.sum(x, 0)),
        Case("there and back", lambda x: x.rename(b="e").rename(e="b") + x, lambda x: 2 * x),
        Case("squared", lambda x: mx.square(mx.sum(x, c).rename(b="e")), lambda x: jnp.square(jnp.sum(x, 2))),
    ],
)
RESHAPE = Group(
    "reshape",
    ((a, b, c),),
    ("a", "b", "c", "ab", "d"),
    [
        Case("merge", lambda x: mx.reshape(x, (ab, c)), lambda x: x.reshape(40, 6)),
        Case("split", lambda x: mx.reshape(x, (a, b, d, mx.Dim("two", 2))), lambda x: x.reshape(8, 5, 3, 2)),
        Case("back", lambda x: mx.reshape(mx.reshape(x, (ab, c)), (a, b, c)) * x, lambda x: x * x),
        Case("pending", lambda x: mx.reshape(mx.sum(x, c), (ab,)), lambda x: jnp.sum(x, 2).reshape(40)),
    ],
)
CREATE = Group(
    "creation",
    ((a, b),),
    ("a", "b"),
    [
        Case("arange", lambda x: mx.arange(b) * x, lambda x: (jnp.arange(5) * x).T),
        Case("zeros", lambda x: mx.zeros((b, a)) + x, lambda x: x.T),
        Case("ones", lambda x: mx.ones((a,), jnp.int32) + mx.arange(a), lambda x: jnp.arange(8) + 1),
        Case("full", lambda x: mx.full((b,), 3.0) * x, lambda x: 3 * x.T),
    ],
)


def _scan(x):
    def body(carry, part):
        carry = mx.tanh(carry + mx.sum(part, b))
        return carry, carry * part

    carry, ys = mx.scan(body, mx.zeros((a,)), x, over=d)
    return carry, ys


def _scan_ref(x):
    def body(carry, part):
        carry = jnp.tanh(carry + jnp.sum(part, 1))
        return carry, carry[:, None] * part

    return jax.lax.scan(body, jnp.zeros(8), jnp.moveaxis(x, 2, 0))


def _while(x):
    return mx.while_loop(lambda v: mx.sum(mx.abs(v)) > 1e-2, lambda v: v * 0.5, mx.stop_gradient(x))


def _while_ref(x):
    return jax.lax.while_loop(lambda v: jnp.sum(jnp.abs(v)) > 1e-2, lambda v: v * 0.5, jax.lax.stop_gradient(x))


CONTROL = Group(
    "control",
    ((a, b, d),),
    ("a", "b", "d"),
    [
        Case("scan", _scan, _scan_ref),
        Case("while_loop", _while, _while_ref),
        Case(
            "cond",
            lambda x: mx.cond(mx.sum(x) > 0, lambda x: mx.sum(x * x, a), lambda x: mx.sum(x, a), x),
            lambda x: jnp.where(jnp.sum(x) > 0, jnp.sum(x * x, 0), jnp.sum(x, 0)),
        ),
        Case(
            "remat",
            lambda x: mx.remat(lambda x: mx.tanh(mx.sum(mx.exp(x), b)))(x),
            lambda x: jnp.tanh(jnp.sum(jnp.exp(x), 1)),
        ),
        Case(
            "remat collectives",
            lambda x: mx.remat(lambda x: mx.tanh(mx.sum(mx.exp(x), b)), policy="collectives")(x),
            lambda x: jnp.tanh(jnp.sum(jnp.exp(x), 1)),
        ),
        Case(
            "inner jit",
            lambda x: jax.jit(lambda x: mx.softmax(x, over=b))(x),
            lambda x: jax.nn.softmax(x, axis=1),
        ),
    ],
)
INTEGER = Group(
    "integer",
    ((a, b), (b, c)),
    ("a", "b", "c"),
    [
        Case("sum", lambda x, y: mx.sum(x, b), lambda x, y: jnp.sum(x, 1)),
        Case("max", lambda x, y: mx.max(x, (a, b)), lambda x, y: jnp.max(x)),
        Case("min", lambda x, y: mx.min(y, b), lambda x, y: jnp.min(y, 0)),
        Case("einsum", lambda x, y: mx.einsum(x, y, out=(a, c)), lambda x, y: x @ y),
        Case("mod", lambda x, y: (x % 3, x // 2, x & 1), lambda x, y: (x % 3, x // 2, x & 1)),
        Case("mean", lambda x, y: mx.mean(x, a), lambda x, y: jnp.mean(x, 0)),
    ],
    integer=(0, 1),
)
BFLOAT = Group(
    "bfloat16",
    ((a, b), (b, c)),
    ("a", "b", "c"),
    [
        Case("einsum", lambda x, y: mx.einsum(x, y, out=(a, c)), lambda x, y: x @ y),
        Case("softmax", lambda x, y: mx.softmax(y, over=b), lambda x, y: jax.nn.softmax(y, axis=0)),
        Case("max", lambda x, y: mx.max(x, b), lambda x, y: jnp.max(x, 1)),
        Case("rename", lambda x, y: x.rename(b="e") * 2, lambda x, y: x * 2),
    ],
    dtype=jnp.bfloat16,
)


def _windows(x, size, before, after, stride):
    x = jnp.pad(x, ((0, 0), (before, after), (0, 0)))
    count = (x.shape[1] - size) // stride + 1
    return jnp.moveaxis(jnp.stack([x[:, w : w + (count - 1) * stride + 1 : stride] for w in range(size)]), 0, -1)


window = mx.Dim("window", 3)
b9, b3 = mx.Dim("b", 9), mx.Dim("b", 3)
SHAPING = Group(
    "shaping",
    ((a, b, c),),
    ("a", "b", "c", "window"),
    [
        Case("slice", lambda x: mx.slice(x, b, 1, 3), lambda x: x[:, 1:4]),
        Case("slice strided", lambda x: mx.slice(x, a, 1, 3, stride=2), lambda x: x[1:6:2]),
        Case("slice half", lambda x: mx.slice(x, a, 0, 4), lambda x: x[:4]),
        Case("an element", lambda x: x[{"b": -2}], lambda x: x[:, -2]),
        Case("elements", lambda x: x[{"a": 5, c: 0}], lambda x: x[5, :, 0]),
        Case("a range", lambda x: x[{b: slice(1, 4), "a": slice(None, None, 3)}], lambda x: x[::3, 1:4]),
        Case("a range backwards", lambda x: x[{"a": slice(None, 1, -2), "b": 3}], lambda x: x[:1:-2, 3]),
        Case("pad", lambda x: mx.pad(x, b, 2, 4), lambda x: jnp.pad(x, ((0, 0), (2, 4), (0, 0)))),
        Case(
            "pad with",
            lambda x: mx.pad(x, c, 0, 1, 7.0),
            lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, 1)), constant_values=7),
        ),
        Case("flip", lambda x: mx.flip(x, b), lambda x: x[:, ::-1]),
        Case("flip even", lambda x: mx.flip(x, a), lambda x: x[::-1]),
        Case("shift", lambda x: mx.shift(x, b, 1), lambda x: jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :5]),
        Case("shift back", lambda x: mx.shift(x, a, -3), lambda x: jnp.pad(x, ((0, 3), (0, 0), (0, 0)))[3:]),
        Case("shift far", lambda x: mx.shift(x, b, 9), lambda x: x * 0),
        Case("wrap", lambda x: mx.shift(x, b, 2, wrap=True), lambda x: jnp.roll(x, 2, 1)),
        Case("wrap back", lambda x: mx.shift(x, c, -1, wrap=True), lambda x: jnp.roll(x, -1, 2)),
        Case("windows", lambda x: mx.windows(x, b, window, 1, 1), lambda x: _windows(x, 3, 1, 1, 1)),
        Case("windows strided", lambda x: mx.windows(x, b, window, 2, 0, 2), lambda x: _windows(x, 3, 2, 0, 2)),
        Case(
            "concat",
            lambda x: mx.concat([x, x * 2, mx.flip(x, b)], b),
            lambda x: jnp.concatenate([x, x * 2, x[:, ::-1]], 1),
        ),
        Case(
            "concat parts", lambda x: mx.concat([mx.slice(x, a, 0, 3), x], "a"), lambda x: jnp.concatenate([x[:3], x])
        ),
        Case("stack", lambda x: mx.stack([x, x * 2, -x], "window"), lambda x: jnp.stack([x, x * 2, -x])),
        Case("unstack", lambda x: tuple(mx.unstack(x, b))[3], lambda x: x[:, 3]),
    ],
)
kb, kc = mx.dims(kb=3, kc=2)


def _conv(x, y, strides=(1, 1), padding="SAME", dilation=(1, 1)):
    """The convolution of [a, b, c] along b and c with [kb, kc, d], and a result [a, b, c, d]."""
    out = jax.lax.conv_general_dilated(
        x[..., None], y[:, :, None], strides, padding, rhs_dilation=dilation, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return out


def _conv_of_groups(x, y):
    """[a, b, c] along a, summed over nothing, b as groups, with [kb, b, d]: [a, b, c, d]."""
    return jnp.einsum("abck,kbd->abcd", _windows(jnp.swapaxes(x, 0, 1), 3, 1, 1, 1).swapaxes(0, 1), y)


def _conv_transposed(x, y):
    like = jax.ShapeDtypeStruct((8, 10, 6, 1), x.dtype)
    forward = lambda z: jax.lax.conv_general_dilated(  # noqa: E731
        z, y[:, :, None], (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    (out,) = jax.linear_transpose(forward, like)(jnp.repeat(x[..., None], 3, 3))
    return out[..., 0]


def _pool(x, start, combine, strides):
    return jax.lax.reduce_window(x, start, combine, (1, 3, 2), (1, *strides), "SAME")


both = {"b": "kb", "c": "kc"}
CONVOLUTION = Group(
    "convolution",
    ((a, b, c), (kb, kc, d), (kb, b, d)),
    ("a", "b", "c", "d", "kb"),
    [
        Case("conv", lambda x, y, z: mx.conv(x, y, both), lambda x, y, z: _conv(x, y)),
        Case(
            "conv strided",
            lambda x, y, z: mx.conv(
                x, y, both, stride={"b": 2, c: 3}, dilation={"c": 2}, padding={"b": (2, 1), c: (0, 4)}
            ),
            lambda x, y, z: _conv(x, y, (2, 3), [(2, 1), (0, 4)], (1, 2)),
        ),
        Case(
            "conv summed",
            lambda x, y, z: mx.conv(x, z, {"a": "kb"}, over=b, padding="valid"),
            lambda x, y, z: jnp.einsum("abck,kbd->acd", jnp.stack([x[i : i + 6] for i in range(3)], -1), z),
        ),
        Case("conv of groups", lambda x, y, z: mx.conv(x, z, {"a": "kb"}), lambda x, y, z: _conv_of_groups(x, z)),
        Case(
            "conv_transpose",
            lambda x, y, z: mx.conv_transpose(x, y, both, over=d, stride={"b": 2}),
            lambda x, y, z: _conv_transposed(x, y),
        ),
        Case(
            "max_pool",
            lambda x, y, z: mx.max_pool(x, {"b": 3, "c": 2}, {"b": 2, "c": 1}, "same"),
            lambda x, y, z: _pool(x, -np.inf, jax.lax.max, (2, 1)),
        ),
        Case(
            "mean_pool",
            lambda x, y, z: mx.mean_pool(x, {"b": 3, "c": 2}, 1, "same"),
            lambda x, y, z: _pool(x, 0.0, jax.lax.add, (1, 1)) / _pool(jnp.ones_like(x), 0.0, jax.lax.add, (1, 1)),
        ),
        Case(
            "resize",
            lambda x, y, z: mx.resize(x, {"a": 5, "b": 15}),
            lambda x, y, z: jax.image.resize(x, (5, 15, 6), "nearest"),
        ),
        Case(
            "resize linear",
            lambda x, y, z: mx.resize(x, {"a": 5, "b": 9}, "linear"),
            lambda x, y, z: jax.image.resize(x, (5, 9, 6), "linear"),
        ),
        Case(
            "pad reflect",
            lambda x, y, z: mx.pad(x, b, 3, 2, mode="reflect"),
            lambda x, y, z: jnp.pad(x, ((0, 0), (3, 2), (0, 0)), mode="reflect"),
        ),
        Case(
            "pad edge",
            lambda x, y, z: mx.pad(x, "a", 1, 9, mode="edge"),
            lambda x, y, z: jnp.pad(x, ((1, 9), (0, 0), (0, 0)), mode="edge"),
        ),
    ],
)
length = mx.Dim("length", 7)
INDEXING = Group(
    "indexing",
    ((a, b, c), (length,)),
    ("a", "b", "c", "length"),
    [
        Case("gather", lambda x, i: mx.gather(x, i * 2 - 1, a), lambda x, i: _take(x, i * 2 - 1)),
        Case("gather last", lambda x, i: mx.gather(x, i, "c"), lambda x, i: x[:, :, i]),
        Case("places in brackets", lambda x, i: x[{"c": i, "a": 2}], lambda x, i: x[2][:, i]),
        Case(
            "gather many",
            lambda x, i: mx.gather(x, i + mx.arange(d), b),
            lambda x, i: _take_b(x, i[:, None] + np.arange(3)),
        ),
        Case("one_hot", lambda x, i: mx.one_hot(i - 1, b) * 2, lambda x, i: jax.nn.one_hot(i - 1, 5) * 2),
        Case(
            "scatter_add",
            lambda x, i: mx.scatter_add(x, i * 2 - 1, mx.gather(x, i, a), a),
            lambda x, i: x.at[jnp.where(i * 2 - 1 < 0, 99, i * 2 - 1)].add(x[i], mode="drop"),
        ),
        Case(
            "scatter_add broadcast",
            lambda x, i: mx.scatter_add(x, i, mx.arange(length).astype(jnp.float32), b),
            lambda x, i: x.at[:, i].add(np.arange(7, dtype=np.float32)[None, :, None]),
        ),
    ],
    integer=(1,),
)


def _take(x, i):
    return jnp.where(((i >= 0) & (i < x.shape[0]))[:, None, None], x[jnp.clip(i, 0, x.shape[0] - 1)], x.dtype.type(0))


def _take_b(x, i):
    return jnp.where(((i >= 0) & (i < 5))[None, :, :, None], x[:, jnp.clip(i, 0, 4)], x.dtype.type(0))


BATCHED = Group(
    "batched indexing",
    ((a, b, c), (a, length)),
    ("a", "b", "c", "length"),
    [
        Case("gather", lambda x, i: mx.gather(x, i, b), lambda x, i: jnp.take_along_axis(x, i[:, :, None], axis=1)),
        Case(
            "scatter_add",
            lambda x, i: mx.scatter_add(x, i, mx.gather(x, i, b) * 2, b),
            lambda x, i: x.at[np.arange(8)[:, None], i].add(2 * jnp.take_along_axis(x, i[:, :, None], axis=1)),
        ),
    ],
    integer=(1,),
)
k = mx.Dim("k", 3)


def _top(x, axis):
    values, found = jax.lax.top_k(jnp.moveaxis(x, axis, -1), 3)
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(found, -1, axis)


ORDERING = Group(
    "ordering",
    ((a, b, c),),
    ("a", "b", "c", "k"),
    [
        Case("top_k", lambda x: mx.top_k(x, over=b, k=k), lambda x: _top(x, 1)),
        Case("top_k ties", lambda x: mx.top_k(mx.round(x), over=a, k=k), lambda x: _top(jnp.round(x), 0)),
        Case("sort", lambda x: mx.sort(x, b), lambda x: jnp.sort(x, 1)),
        Case(
            "argsort",
            lambda x: mx.argsort(mx.round(x), a),
            lambda x: jnp.argsort(jnp.round(x), 0, stable=True).astype(np.int32),
        ),
        Case("cumsum", lambda x: mx.cumsum(x, b), lambda x: jnp.cumsum(x, 1)),
        Case("cumsum reverse", lambda x: mx.cumsum(x, a, reverse=True), lambda x: jnp.cumsum(x[::-1], 0)[::-1]),
        Case(
            "cumsum exclusive",
            lambda x: mx.cumsum(x, b, exclusive=True),
            lambda x: jnp.pad(jnp.cumsum(x, 1), ((0, 0), (1, 0), (0, 0)))[:, :-1],
        ),
        Case(
            "cumsum both",
            lambda x: mx.cumsum(x, c, exclusive=True, reverse=True),
            lambda x: jnp.pad(jnp.cumsum(x[:, :, ::-1], 2)[:, :, ::-1], ((0, 0), (0, 0), (0, 1)))[:, :, 1:],
        ),
        Case(
            "local",
            lambda x: mx.local(
                lambda x: jnp.fft.ifft(jnp.fft.fft(x, axis=2) ** 2, axis=2).real,
                x.rename(c="f"),
                out="a b f",
                splittable="a b",
            ),
            lambda x: jnp.fft.ifft(jnp.fft.fft(x, axis=2) ** 2, axis=2).real,
        ),
    ],
)
INTEGER_2 = Group(
    "integer shaping",
    ((a, b), (b,)),
    ("a", "b", "k"),
    [
        Case("shift", lambda x, i: mx.shift(x, b, 2), lambda x, i: jnp.pad(x, ((0, 0), (2, 0)))[:, :5]),
        Case("concat", lambda x, i: mx.concat([x > 2, x > 1], a), lambda x, i: jnp.concatenate([x > 2, x > 1])),
        Case("cumsum", lambda x, i: mx.cumsum(x, b), lambda x, i: jnp.cumsum(x, 1)),
        Case("sort", lambda x, i: mx.sort(x, a), lambda x, i: jnp.sort(x, 0)),
        Case("top_k", lambda x, i: mx.top_k(x, over=b, k=k), lambda x, i: _top(x, 1)),
        Case("gather", lambda x, i: mx.gather(x.rename(b="e"), i, "a"), lambda x, i: x[i]),
    ],
    integer=(0, 1),
)
BFLOAT_2 = Group(
    "bfloat16 shaping",
    ((a, b),),
    ("a", "b"),
    [
        Case("concat", lambda x: mx.concat([x, x], a), lambda x: jnp.concatenate([x, x])),
        Case("cumsum", lambda x: mx.cumsum(x, b), lambda x: jnp.cumsum(x, 1)),
        Case("shift", lambda x: mx.shift(x, b, -1), lambda x: jnp.pad(x, ((0, 0), (0, 1)))[:, 1:]),
        Case("sort", lambda x: mx.sort(x, b), lambda x: jnp.sort(x, 1)),
    ],
    dtype=jnp.bfloat16,
)
GROUPS = [
    ELEMENTWISE, POSITIVE, BINARY, EINSUM, REDUCTION, INDEX, LOSS, RENAME, RESHAPE, CREATE, CONTROL, INTEGER, BFLOAT,
    SHAPING, CONVOLUTION, INDEXING, BATCHED, ORDERING, INTEGER_2, BFLOAT_2,
]  # fmt: skip
