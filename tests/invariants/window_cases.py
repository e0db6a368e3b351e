"""Random convolutions, pools, resizes and paddings: each with what JAX gives for whole arrays, and a layout."""

import random
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import meshax as mx

SPATIAL, TAPS = ("height", "width", "depth"), ("kh", "kw", "kd")
MESHES = ("x:2", "x:8", "x:2 y:4", "x:4 y:1 z:2", "x:2 y:2 z:2", "x:3", "x:5", "x:7")
KINDS = ("conv", "conv_transpose", "max_pool", "mean_pool", "resize", "pad")


@dataclass
class WindowCase:
    """An operation on tensors, the same on whole arrays, and where the tensors are."""

    fn: Any
    reference: Any
    inputs: list
    mesh: str
    layout: mx.Layout
    words: str = field(default="")


def values(r, dims):
    """A tensor whose elements differ from place to place, with its dims in any order."""
    dims = r.sample(dims, len(dims))
    shape = [dim.size for dim in dims]
    n = int(np.prod(shape))
    return mx.tensor((np.sin(1.3 * np.arange(n) + r.random()) * 2).reshape(shape).astype(np.float32), tuple(dims))


def random_layout(r, mesh, names):
    """Each axis splits one dim, or none; dims of windows more often than others."""
    owners = {axis: r.choice([*names, *(n for n in names if n in SPATIAL), None]) for axis in mx.Mesh(mesh).axes}
    axes = r.sample(list(owners), len(owners))
    return mx.Layout({n: [a for a in axes if owners[a] == n] for n in names if n in owners.values()})


def random_case(kind, seed):
    """Returns the case of a kind and a seed."""
    r = random.Random(f"{kind} {seed}")
    rank = r.choice([1, 1, 2, 2, 3])
    largest = {1: 19, 2: 11, 3: 7}[rank]
    names = SPATIAL[:rank]
    spatial = {name: mx.Dim(name, r.randint(1, largest)) for name in names}
    batch = r.sample([mx.Dim("batch", r.randint(1, 3)), mx.Dim("time", 2)], r.choice([0, 1, 1, 2]))
    makers = dict(conv=_conv, conv_transpose=_conv, max_pool=_pool, mean_pool=_pool, resize=_resize, pad=_pad)
    fn, reference, inputs, words = makers[kind](r, kind, names, spatial, batch)
    mesh = r.choice(MESHES)
    every = sorted({dim.name for x in inputs for dim in x.dims})
    case = WindowCase(fn, reference, inputs, mesh, random_layout(r, mesh, every))
    case.words = f"{kind} {seed}: {words} of {[x.dims for x in inputs]} under {case.layout} on {mesh}"
    return case


def _numbers(r, names, largest):
    one = r.randint(1, largest)
    return one if r.random() < 0.5 else {name: r.randint(1, largest) for name in names}


def _each(numbers, names):
    return [numbers if isinstance(numbers, int) else numbers.get(name, 1) for name in names]


def _margins(padding, names, sizes, taps, strides, dilations):
    """The padding of each dim, as JAX has it."""
    if padding == "valid":
        return [(0, 0)] * len(names)
    if padding == "same":
        reaches = [(k - 1) * d + 1 for k, d in zip(taps, dilations)]
        return lax.padtype_to_pads(sizes, reaches, strides, "SAME")
    return [padding.get(name, (0, 0)) for name in names]


def _conv(r, kind, names, spatial, batch):
    is_transposed = kind == "conv_transpose"
    while True:
        taps = [mx.Dim(tap, r.randint(1, 7 if len(names) < 3 else 4)) for tap in TAPS[: len(names)]]
        stride, dilation = _numbers(r, names, 4), _numbers(r, names, 3)
        padding = r.choice(["same", "valid", {name: (r.randint(0, 4), r.randint(0, 4)) for name in names}])
        sizes, strides, dilations = [spatial[n].size for n in names], _each(stride, names), _each(dilation, names)
        reaches = [(k.size - 1) * d + 1 for k, d in zip(taps, dilations)]
        margins = _margins(padding, names, sizes, [k.size for k in taps], strides, dilations)
        wholes = sizes
        if is_transposed:
            wholes = [(n - 1) * s + reach - sum(m) for n, s, reach, m in zip(sizes, strides, reaches, margins)]
            if padding == "same":
                wholes = [n * s for n, s in zip(sizes, strides)]
                margins = _margins(padding, names, wholes, [k.size for k in taps], strides, dilations)
            # to cut off more than taps reach crashes XLA's CPU compiler in the kernel's derivative, in JAX alone too
            if any(max(m) >= reach for m, reach in zip(margins, reaches)) and padding != "same":
                continue
        if min(wholes) >= 1 and all(n + sum(m) >= reach for n, m, reach in zip(wholes, margins, reaches)):
            break
    groups = [mx.Dim(n, r.randint(2, 3)) for n in r.choice([(), (), (), ("group",), ("group", "part")])]
    over = [mx.Dim(n, r.randint(1, 5)) for n in r.choice([(), ("c_in",), ("c_in",), ("c_in", "more")])]
    outs = [mx.Dim(n, r.randint(1, 5)) for n in r.choice([(), ("c_out",), ("c_out",), ("c_out", "others")])]
    x = values(r, [*batch, *spatial.values(), *groups, *over])
    kernel = values(r, [*taps, *groups, *over, *outs])
    windows = dict(zip(names, (tap.name for tap in taps)))
    arguments = dict(over=[d.name for d in over], stride=stride, dilation=dilation, padding=padding)

    def convolved(array, weights, summed, others):
        """JAX's convolution of [batch, windows, groups, summed], as [batch, windows, groups, others]."""
        b, n, g = len(batch), len(names), len(groups)
        num_groups, num_summed = (int(np.prod([d.size for d in dims])) for dims in (groups, summed))
        weights = jnp.transpose(weights, [kernel.dims.index(d) for d in (*taps, *summed, *groups, *others)])
        out = lax.conv_general_dilated(
            array.reshape(-1, *array.shape[b : b + n], num_groups * num_summed),
            weights.reshape(*weights.shape[:n], num_summed, -1),
            strides,
            margins,
            rhs_dilation=dilations,
            dimension_numbers=(f"N{'DHW'[:n]}C", f"{'DHW'[:n]}IO", f"N{'DHW'[:n]}C"),
            feature_group_count=num_groups,
        )
        sizes = [*array.shape[:b], *out.shape[1:-1], *array.shape[b + n : b + n + g], *(d.size for d in others)]
        return out.reshape(sizes)

    kept = [*batch, *spatial.values(), *groups]
    last = [d for d in kernel.dims if d in outs]

    def reference(array, weights):
        array = jnp.transpose(array, [x.dims.index(d) for d in (*kept, *over)])
        if is_transposed:  # of the convolution that sums over what this one gives
            shape = [*(d.size for d in batch), *wholes, *(d.size for d in (*groups, *outs))]
            like = jax.ShapeDtypeStruct(shape, array.dtype)
            (out,) = jax.linear_transpose(lambda y: convolved(y, weights, outs, over), like)(array)
        else:
            out = convolved(array, weights, over, outs)
        return jnp.transpose(out, [[*kept, *outs].index(d) for d in (*(d for d in x.dims if d not in over), *last)])

    op = getattr(mx, kind)
    return lambda x, kernel: op(x, kernel, windows, **arguments), reference, [x, kernel], f"{windows} {arguments}"


def _pool(r, kind, names, spatial, batch):
    sizes = [spatial[n].size for n in names]
    while True:
        windows = {name: r.randint(1, 5) for name in names}
        stride = r.choice([None, _numbers(r, names, 4)])
        padding = r.choice(["same", "valid", {n: (r.randint(0, windows[n] - 1), r.randint(0, 3)) for n in names}])
        strides = list(windows.values()) if stride is None else _each(stride, names)
        margins = _margins(padding, names, sizes, list(windows.values()), strides, [1] * len(names))
        if all(n + sum(m) >= k for n, m, k in zip(sizes, margins, windows.values())):
            break
    x = values(r, [*batch, *spatial.values(), mx.Dim("channel", r.randint(1, 3))])
    at = {name: i for i, name in enumerate(names)}

    def spread(numbers, default):
        return [numbers[at[d.name]] if d.name in at else default for d in x.dims]

    how = (spread(list(windows.values()), 1), spread(strides, 1), spread(margins, (0, 0)))

    def reference(array):
        if kind == "max_pool":
            return lax.reduce_window(array, -np.inf, lax.max, *how)
        count = lax.reduce_window(np.ones(array.shape, np.float32), 0.0, lax.add, *how)
        return lax.reduce_window(array, 0.0, lax.add, *how) / jnp.maximum(count, 1)

    op = getattr(mx, kind)
    return lambda x: op(x, windows, stride, padding), reference, [x], f"{windows} {stride} {padding}"


def _resize(r, kind, names, spatial, batch):
    sizes = {name: r.randint(1, 2 * spatial[name].size + 3) for name in names}
    method = r.choice(["nearest", "linear"])
    x = values(r, [*batch, *spatial.values()])
    shape = [sizes.get(d.name, d.size) for d in x.dims]
    return (
        lambda x: mx.resize(x, sizes, method),
        lambda array: jax.image.resize(array, shape, method),
        [x],
        f"{sizes} {method}",
    )


def _pad(r, kind, names, spatial, batch):
    name, mode = r.choice(names), r.choice(["reflect", "edge", "constant"])
    most = spatial[name].size - 1 if mode == "reflect" else 6
    before, after = r.randint(0, most), r.randint(0, most)
    x = values(r, [*batch, *spatial.values()])
    margins = [(before, after) if d.name == name else (0, 0) for d in x.dims]
    return (
        lambda x: mx.pad(x, name, before, after, mode=mode),
        lambda array: jnp.pad(array, margins, mode=mode),
        [x],
        f"{name} by {before} and {after}, {mode}",
    )
