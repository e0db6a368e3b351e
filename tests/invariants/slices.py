"""Tables of JAX code that a slice may meet, for `test_slices.py`: functions of an array to one of its shape.

The array has two dimensions. The first may be split, the second never is. What is said of a function holds then:

- `COMBINING` combines elements along the first dimension, or knows their places in it: on a slice it would be wrong.
- `ELEMENTWISE` works on a slice as on the whole.
- `ALONG_THE_WHOLE` combines along the second dimension only, which a slice has whole.
- `HARMLESS` moves elements along the first, to no effect: a check may let it pass or refuse it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

KEY = jax.random.key(7)


def _reductions():
    """Functions of an array and an axis, to combine along the first dimension, or along all."""
    return {
        "sum": jnp.sum, "mean": jnp.mean, "prod": jnp.prod, "max": jnp.max, "min": jnp.min, "std": jnp.std,
        "var": jnp.var, "median": jnp.median, "ptp": jnp.ptp, "nanmean": jnp.nanmean, "nansum": jnp.nansum,
        "argmax": jnp.argmax, "argmin": jnp.argmin, "count_nonzero": jnp.count_nonzero,
        "logsumexp": jax.nn.logsumexp, "average": jnp.average,
        "norm": jnp.linalg.norm,
        "quantile": lambda a, axis=None: jnp.quantile(a, 0.3, axis=axis),
        "any": lambda a, axis=None: jnp.any(a > 1.5, axis=axis),
        "all": lambda a, axis=None: jnp.all(a > -1.5, axis=axis),
    }  # fmt: skip


def _shift_right(a):
    return jnp.concatenate([jnp.zeros_like(a[:1]), a[:-1]])


def _windows_sum(a):
    return lax.reduce_window(a, 0.0, lax.add, (3, 1), (1, 1), "SAME")


def _smoothed(a):
    image = a.T[:, None]  # each column is an example of one channel
    return lax.conv_general_dilated(image, jnp.ones((1, 1, 3)), (1,), "SAME")[:, 0].T


COMBINING = {
    **{f"{name} of all": lambda a, f=f: a + f(a) for name, f in _reductions().items()},
    **{f"{name} along it": lambda a, f=f: a * f(a, axis=0) for name, f in _reductions().items()},
    "lax.reduce": lambda a: a + lax.reduce(a, 0.0, lax.add, (0,)),
    "safe_norm": lambda a: a / optax.safe_norm(a, 1e-3),
    "global_norm": lambda a: a / optax.tree.norm([a]),
    "softmax": lambda a: jax.nn.softmax(a, axis=0),
    "softmax of all": lambda a: jax.nn.softmax(a, axis=(0, 1)),
    "log_softmax": lambda a: jax.nn.log_softmax(a, axis=0),
    "standardize": lambda a: jax.nn.standardize(a, axis=0),
    "cumsum": lambda a: jnp.cumsum(a, 0),
    "cumsum of all": lambda a: jnp.cumsum(a).reshape(a.shape),
    "cumprod": lambda a: jnp.cumprod(a, 0),
    "cummax": lambda a: lax.cummax(a, 0),
    "cumlogsumexp": lambda a: lax.cumlogsumexp(a, 0),
    "associative_scan": lambda a: lax.associative_scan(jnp.add, a),
    "diff": lambda a: jnp.diff(a, axis=0, prepend=0.0),
    "gradient": lambda a: jnp.gradient(a, axis=0),
    "trapezoid": lambda a: a + jnp.trapezoid(a, axis=0),
    "convolve": lambda a: jnp.stack([jnp.convolve(a[:, i], jnp.ones(3), "same") for i in range(a.shape[1])], 1),
    "conv": _smoothed,
    "reduce_window": _windows_sum,
    "sort": lambda a: jnp.sort(a, 0),
    "sort of all": lambda a: jnp.sort(a, None).reshape(a.shape),
    "argsort": lambda a: a + jnp.argsort(a, 0),
    "top_k": lambda a: a + lax.top_k(a.T, 1)[0][:, 0],
    "searchsorted": lambda a: a + jnp.searchsorted(a[:, 0], 0.5),
    "flip": lambda a: jnp.flip(a, 0),
    "flip of all": jnp.flip,
    "roll": lambda a: jnp.roll(a, 1, 0),
    "roll of all": lambda a: jnp.roll(a, 1),
    "rot90": lambda a: jnp.rot90(a, 2),
    "first": lambda a: a - a[0],
    "first, size kept": lambda a: a - a[:1],
    "last": lambda a: a - a[-1],
    "an element": lambda a: a - a[0, 0],
    "every second": lambda a: a + jnp.sum(a[::2], 0),
    "every second, doubled": lambda a: jnp.repeat(a[::2], 2, 0)[: a.shape[0]],
    "set": lambda a: a.at[0].set(0.0),
    "add at": lambda a: a.at[0].add(1.0),
    "take": lambda a: jnp.take(a, jnp.zeros(a.shape[0], int), 0),
    "take_along_axis": lambda a: jnp.take_along_axis(a, jnp.zeros(a.shape, int), 0),
    "gather by itself": lambda a: a[(jnp.abs(a[:, 0]) > 1).astype(int)],
    "dynamic_slice": lambda a: a - lax.dynamic_slice_in_dim(a, 0, 1),
    "dynamic_update_slice": lambda a: lax.dynamic_update_slice(a, jnp.zeros((1, 1)), (0, 0)),
    "concatenate": _shift_right,
    "pad": lambda a: jnp.pad(a, ((1, 0), (0, 0)))[:-1],
    "pad of lax": lambda a: lax.pad(a, 0.0, ((1, -1, 0), (0, 0, 0))),
    "tile": lambda a: jnp.tile(a, (2, 1))[1 : a.shape[0] + 1],
    "repeat": lambda a: jnp.repeat(a, 2, 0)[: a.shape[0]],
    "ravel": lambda a: a / jnp.linalg.norm(jnp.ravel(a)),
    "reshape": lambda a: a.reshape(a.shape[::-1]).T,
    "reshape, first": lambda a: a - a.reshape(-1)[0],
    "dot": lambda a: a @ (a.T @ a),
    "dot of squares": lambda a: (a @ a.T) @ a,
    "vdot": lambda a: a * jnp.vdot(a, a),
    "einsum": lambda a: jnp.einsum("hk,hj,ij->ik", a, a, a),
    "tensordot": lambda a: a + jnp.tensordot(a, a, 2),
    "dot_general": lambda a: a * lax.dot_general(a, a, (((0,), (0,)), ((1,), (1,)))),
    "inv": lambda a: a @ jnp.linalg.inv(a.T @ a + jnp.eye(a.shape[1])),
    "solve": lambda a: jnp.linalg.solve(a @ a.T + jnp.eye(a.shape[0]), a),
    "cholesky": lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(a.shape[0])) @ a,
    "qr": lambda a: jnp.abs(jnp.linalg.qr(a.T, "complete")[0] @ a.T).T,
    "svd": lambda a: a / jnp.linalg.svd(a, compute_uv=False)[0],
    "eigh": lambda a: a + jnp.linalg.eigh(a.T @ a)[0][0],
    "lu": lambda a: jax.scipy.linalg.lu(a)[1][:, :1] + a,
    "triangular_solve": lambda a: jax.scipy.linalg.solve_triangular(a @ a.T + 5 * jnp.eye(a.shape[0]), a, lower=True),
    "fft": lambda a: jnp.fft.fft(a, axis=0).real,
    "arange": lambda a: a + jnp.arange(a.shape[0])[:, None],
    "iota": lambda a: a + lax.broadcasted_iota(jnp.float32, a.shape, 0),
    "indices": lambda a: a * jnp.indices(a.shape)[0],
    "linspace": lambda a: a * jnp.linspace(0, 1, a.shape[0])[:, None],
    "tril": jnp.tril,
    "eye": lambda a: a + jnp.eye(*a.shape),
    "positions in a mask": lambda a: jnp.where(jnp.arange(a.shape[0])[:, None] < 1, 0.0, a),
    "numpy's arange": lambda a: a + np.arange(a.shape[0], dtype=np.float32)[:, None],
    "normal": lambda a: a + jax.random.normal(KEY, a.shape),
    "dropout": lambda a: jnp.where(jax.random.bernoulli(KEY, 0.5, a.shape), a, 0.0),
    "permutation": lambda a: jax.random.permutation(KEY, a),
    "histogram": lambda a: a + jnp.histogram(a, 4, (-1.0, 1.0))[0],
    "bincount": lambda a: a + jnp.bincount((a[:, 0] > 0).astype(int), length=4),
    "segment_sum": lambda a: a + jax.ops.segment_sum(a, jnp.zeros(a.shape[0], int), 1),
    "scan along it": lambda a: lax.scan(lambda c, row: (c + row, c + row), a[0] * 0, a)[1],
    "fori_loop along it": lambda a: a + lax.fori_loop(0, a.shape[0], lambda i, s: s + a[i], a[0] * 0),
    "vmap of a norm": lambda a: jax.vmap(lambda column: column / jnp.linalg.norm(column), 1, 1)(a),
    "covariance": lambda a: a @ jnp.cov(a.T),
    "while until small": lambda a: lax.while_loop(lambda a: jnp.max(a) > 0.1, lambda a: a / 2, a),
    "cond on a sum": lambda a: lax.cond(jnp.sum(a) > 0, lambda a: a, lambda a: -a, a),
}

HARMLESS = {
    "reshape and back": lambda a: jnp.tanh(a.reshape(-1)).reshape(a.shape),
    "flip twice": lambda a: jnp.flip(jnp.flip(a, 0), 0),
    "vmap over it": lambda a: jax.vmap(jnp.tanh)(a),
    "map over it": lambda a: lax.map(jnp.tanh, a),
    "all of it": lambda a: a[:] + a[0:],
    "the sum of its own slice, not used": lambda a: jnp.where(True, a, jnp.sum(a)),
}


def _softplus_by_hand():
    f = jax.custom_vjp(lambda a: jnp.log1p(jnp.exp(a)))
    f.defvjp(lambda a: (f(a), a), lambda a, ct: (ct * jax.nn.sigmoid(a),))
    return f


ELEMENTWISE = {
    "arithmetic": lambda a: 2 - (3 * a + 1) / 4,
    "powers": lambda a: a**2 + a**3 + jnp.abs(a) ** 0.5,
    "functions": lambda a: jnp.exp(jnp.sin(a)) + jnp.tanh(a) - jnp.log1p(a * a),
    "sqrt of squares": lambda a: a / (jnp.sqrt(a * a) + 1e-3),
    "comparisons": lambda a: jnp.where(a > 0, a, a * 0.1) + (a < 0.5),
    "logic": lambda a: a * ((a > 0) & (a < 0.5) | ~(a > -1)),
    "clip": lambda a: jnp.clip(a, -0.5, 0.5),
    "maximum": lambda a: jnp.maximum(a, 0.2) - jnp.minimum(a, 0.1),
    "astype": lambda a: a.astype(jnp.bfloat16).astype(jnp.float32),
    "round": lambda a: jnp.round(a * 3) + jnp.floor(a) - jnp.sign(a),
    "remainder": lambda a: a % 0.7,
    "nan_to_num": lambda a: jnp.nan_to_num(a / (a > 0)),
    "isfinite": lambda a: jnp.where(jnp.isfinite(1 / a), a, 0),
    "zeros_like": lambda a: jnp.zeros_like(a) + 0.9 * jnp.full_like(a, 3.0) * a,
    "relu and gelu": lambda a: jax.nn.relu(a) + jax.nn.gelu(a) + jax.nn.silu(a),
    "log_sigmoid": jax.nn.log_sigmoid,
    "lgamma": lambda a: lax.lgamma(jnp.abs(a) + 1) + lax.erf(a),
    "a number of JAX": lambda a: a * jnp.float32(0.3) + jnp.asarray(2.0),
    "a number that is closed over": lambda a: a * np.float32(0.3),
    "stop_gradient": lambda a: a * lax.stop_gradient(a),
    "custom_vjp": _softplus_by_hand(),
    "jit": jax.jit(lambda a: jnp.tanh(a) * 2),
    "checkpoint": jax.checkpoint(lambda a: jnp.tanh(a) * 2),
    "loops": lambda a: lax.fori_loop(0, 3, lambda i, a: jnp.tanh(a) + i, a),
    "scan of a carry": lambda a: lax.scan(lambda c, s: (jnp.tanh(c) * s, None), a, jnp.arange(3.0))[0],
    "cond on a number": lambda a: lax.cond(jnp.float32(1) > 0, jnp.tanh, jnp.sin, a),
    "grad of a number": lambda a: a * jax.grad(jnp.tanh)(0.3),
    "complex": lambda a: jnp.abs(lax.complex(a, 2 * a)),
    "bits": lambda a: lax.bitcast_convert_type(lax.bitcast_convert_type(a, jnp.int32) ^ 0, jnp.float32),
    "a sum of constants": lambda a: a * jnp.sum(jnp.arange(4.0)),
    "random number": lambda a: a * jax.random.uniform(KEY),
}

WEIGHTS = np.cos(np.arange(16, dtype=np.float32)).reshape(4, 4)
ALONG_THE_WHOLE = {
    **{f"{name}": lambda a, f=f: a + f(a, axis=1)[:, None] for name, f in _reductions().items()},
    "softmax": lambda a: jax.nn.softmax(a, axis=1),
    "standardize": lambda a: jax.nn.standardize(a, axis=-1),
    "cumsum": lambda a: jnp.cumsum(a, 1),
    "sort": lambda a: jnp.sort(a, 1),
    "argsort": lambda a: a + jnp.argsort(a, 1),
    "top_k": lambda a: a + lax.top_k(a, 2)[0][:, :1],
    "flip": lambda a: jnp.flip(a, 1),
    "roll": lambda a: jnp.roll(a, 1, 1),
    "a column": lambda a: a - a[:, 0][:, None],
    "columns": lambda a: a - a[:, :1] + jnp.repeat(a[:, ::2], 2, 1),
    "set": lambda a: a.at[:, 0].set(0.0),
    "take": lambda a: jnp.take(a, jnp.array([2, 0, 1, 1]), 1),
    "take_along_axis": lambda a: a + jnp.take_along_axis(a, jnp.zeros((a.shape[0], 1), int), 1),
    "dynamic_slice": lambda a: a - lax.dynamic_slice_in_dim(a, 1, 1, 1),
    "concatenate": lambda a: jnp.concatenate([a[:, 1:], a[:, :1]], 1),
    "pad": lambda a: jnp.pad(a, ((0, 0), (1, 0)))[:, :-1],
    "matrix": lambda a: a @ WEIGHTS,
    "einsum": lambda a: jnp.einsum("hk,kj->hj", a, WEIGHTS),
    "einsum of two": lambda a: a * jnp.einsum("hk,hk->h", a, a)[:, None],
    "transposed": lambda a: (WEIGHTS @ a.T).T,
    "outer": lambda a: jnp.sum(a[:, :, None] * a[:, None, :], 1),
    "fft": lambda a: jnp.fft.fft(a, axis=1).real,
    "arange": lambda a: a + jnp.arange(a.shape[1]),
    "split and merge": lambda a: jnp.flip(a.reshape(a.shape[0], 2, 2), 2).reshape(a.shape),
    "scan along it": lambda a: lax.scan(lambda c, x: (c + x, c + x), a[:, 0] * 0, a.T)[1].T,
    "vmap": lambda a: jax.vmap(jnp.tanh, 1, 1)(a),
    "vmap of a norm": lambda a: jax.vmap(lambda row: row / jnp.linalg.norm(row))(a),
    "norm of a row": lambda a: a / jnp.linalg.norm(a, axis=1, keepdims=True),
    "broadcast": lambda a: a * jnp.broadcast_to(a[:, :1], a.shape),
    "one_hot": lambda a: a + jax.nn.one_hot(jnp.argmax(a, 1), 4),
}


# Where JAX code may stand: each makes a function of an array into another.


def _in_custom_vjp(fn):
    f = jax.custom_vjp(lambda a: fn(a))
    f.defvjp(lambda a: (fn(a), None), lambda _, ct: (ct * 2,))
    return f


def _in_backward_rule(fn):
    """An elementwise function whose backward rule is not."""
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda a: (jnp.sin(a), a), lambda a, ct: (fn(ct * jnp.cos(a)),))
    return lambda a: jax.vjp(f, a)[1](a)[0]


PLACES = {
    "jit": jax.jit,
    "jit in jit": lambda fn: jax.jit(lambda a: jax.jit(fn)(a) * 2),
    "scan": lambda fn: lambda a: lax.scan(lambda c, _: (fn(c), None), a, None, length=2)[0],
    "stacked by scan": lambda fn: lambda a: lax.scan(lambda c, s: (c, fn(a * s)), 0.0, jnp.arange(3.0))[1][2],
    "fori_loop": lambda fn: lambda a: lax.fori_loop(0, 2, lambda i, a: fn(a), a),
    "while_loop": lambda fn: lambda a: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, fn(c[1])), (0, a))[1],
    "cond": lambda fn: lambda a: lax.cond(jnp.float32(1) > 0, fn, lambda a: a * 1.0, a),
    "switch": lambda fn: lambda a: lax.switch(jnp.int32(1), [jnp.tanh, fn, jnp.sin], a),
    "checkpoint": jax.checkpoint,
    "custom_vjp": _in_custom_vjp,
    "a backward rule": _in_backward_rule,
    "vmap": lambda fn: lambda a: jax.vmap(fn)(a[None])[0],
    "jvp": lambda fn: lambda a: jax.jvp(fn, (a,), (a * 2,))[1],
    "vjp": lambda fn: lambda a: jax.vjp(fn, a)[1](a * 2)[0],
    "linearize": lambda fn: lambda a: jax.linearize(fn, a)[1](a),
    "closed over": lambda fn: lambda a: jax.jit(lambda s: fn(a * s))(2.0),
    "after a transposition": lambda fn: lambda a: fn(a.T.T),
    "after broadcasting": lambda fn: lambda a: fn(jnp.broadcast_to(a[None], (2, *a.shape))[1]),
    "after a cast": lambda fn: lambda a: fn(a.astype(jnp.float16).astype(jnp.float32)),
    "a second time": lambda fn: lambda a: fn(fn(a)),
    "jit with an option": lambda fn: lambda a: jax.jit(lambda n, a: fn(a) * n, static_argnums=0)(2, a),
}
