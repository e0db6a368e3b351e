"""Convolutions: what they send and keep in memory, beside GSPMD; gradients of gradients; dtypes; messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshax as mx
from example_tensors import numbers
from extent import some
from hlo import operands, wire
from messages import pinned

batch, height, width, depth = mx.dims(batch=2, height=16, width=8, depth=8)
c_in, c_out = mx.dims(c_in=3, c_out=5)
kh, kw, kd = mx.dims(kh=3, kw=3, kd=3)
mesh = mx.Mesh("rows:2 cols:4")
cube = mx.Mesh("x:2 y:2 z:2")
x, kernel = numbers(batch, height, width, c_in), numbers(kh, kw, c_in, c_out)
both = {"height": "kh", "width": "kw"}


def conv(x, kernel, **arguments):
    return mx.conv(x, kernel, both, over="c_in", **arguments)


def gradients(fn):
    """The gradients of a weighted sum of what a function gives, by its two arguments."""
    return lambda x, kernel: mx.grad(lambda both: mx.sum(mx.sin(fn(*both))))((x, kernel))


# The elements that a processor sends forward, along each axis. Blocks of [height:16/cols] are 4, of [width:8/rows] 4.
SENT = {
    "height:cols": ({}, [2 * 1 * 8 * 3] * 2),
    "height:rows": ({}, [2 * 1 * 8 * 3]),  # two processors: both sides in one permute
    "height:cols width:rows": ({}, [2 * 1 * 4 * 3, 2 * 1 * 4 * 3, 2 * 1 * 6 * 3]),
    "width:cols height:rows": ({"stride": 2}, [2 * 1 * 2 * 3, 2 * 9 * 1 * 3]),  # even sizes: zeros come behind
    "width:cols": ({"padding": "valid"}, [2 * 16 * 2 * 3]),  # 6 in blocks of 2
    "batch:rows": ({}, []),
    "c_out:cols batch:rows": ({}, []),
}


def sent(compiled):
    """The elements of the operand of each permute of a compiled program."""
    made = operands(compiled)
    assert not made.keys() & {"all-gather", "all-to-all"}, made
    return sorted(n for n, times in made.get("permute", {}).items() for _ in range(times))


@pytest.mark.parametrize("layout", some(SENT, "height:cols width:rows"))
def test_borders_are_all_that_is_sent(layout):
    arguments, border = SENT[layout]
    fn = lambda x, kernel: conv(x, kernel, **arguments)  # noqa: E731

    forward = mx.spmd(fn, mesh, layout).compile(x, kernel)
    backward = mx.spmd(gradients(fn), mesh, layout).compile(x, kernel)

    assert sent(forward) == sorted(border)
    assert sent(backward) == sorted([*border, *border])  # once forward, and as much back
    weights = kernel.size if "c_out" not in layout else 3 * 3 * 3 * 2  # blocks of c_out are 2, 2, 1 and none
    assert operands(backward)["all-reduce"][weights] == 1  # the kernel's gradient, once


def test_a_split_sum_is_pending():
    program = mx.spmd(lambda x, k: conv(x, k) + 2 * conv(x, k), mx.Mesh("ring:3"), "c_in:ring height:ring"[:9])

    (record,) = program.explain(x, kernel).collectives
    assert (record.kind, record.shape) == ("all-reduce", (2, 16, 8, 5))


def test_the_peak_of_memory_has_no_factor_of_the_window():
    """Input, what it is with its border, and output: three dims, each with seven taps."""
    volume = numbers(*mx.dims(height=32, width=32, depth=32, c_in=4))
    taps = numbers(*mx.dims(kh=7, kw=7, kd=7, c_in=4, c_out=4), scale=0.1)
    windows = {"height": "kh", "width": "kw", "depth": "kd"}
    program = mx.spmd(lambda x, k: mx.conv(x, k, windows, over="c_in"), cube, "height:x width:y depth:z")

    memory = program.compile(volume, taps).memory_analysis()

    block, stretch, weights = 16**3 * 4 * 4, 22**3 * 4 * 4, 7**3 * 16 * 4
    assert memory.argument_size_in_bytes == block + weights
    assert block <= memory.output_size_in_bytes <= block + 64
    before, border = 22 * 22 * 16 * 4 * 4, 22 * 22 * 3 * 4 * 4  # the last dim's: what it is fetched for, and received
    assert memory.temp_size_in_bytes <= stretch + before + border + 64
    assert program.explain(volume, taps).memory["peak"] <= 2 * block + stretch + before + 2 * border + weights


SPLITS = {
    "one dim": ("height:cols", {}, ()),
    "two dims": ("height:rows width:cols", {}, ()),
    "two dims, strided": ("height:rows width:cols", {"stride": 2}, ()),
    "batch and a dim": ("batch:rows height:cols", {}, ()),
    "dilated": ("height:cols", {"dilation": 2}, ()),
    "channels": ("c_in:rows", {}, ()),
    "groups and batch": ("batch:rows", {}, ("c_in",)),
}


@pytest.mark.parametrize("name", some(SPLITS, "two dims, strided"))
def test_never_more_bytes_than_gspmd(name):
    """XLA's own partitioner, given the same arrays, split alike, and the same convolution; forward and gradients."""
    layout, arguments, groups = SPLITS[name]
    channels = mx.Dim("c_in", 4)
    big = numbers(batch, height, width, channels)
    weights = numbers(kh, kw, channels, c_out)
    fn = lambda x, k: mx.conv(x, k, both, over=() if groups else "c_in", **arguments)  # noqa: E731
    rules = dict(rule.split(":") for rule in layout.split())
    shardings = [
        NamedSharding(mesh.jax_mesh, PartitionSpec(*(rules.get(d.name) for d in t.dims))) for t in (big, weights)
    ]

    def plain(x, k):
        k = k.reshape(3, 3, 1, 20) if groups else k
        return jax.lax.conv_general_dilated(
            x,
            k,
            [arguments.get("stride", 1)] * 2,
            "SAME",
            rhs_dilation=[arguments.get("dilation", 1)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=4 if groups else 1,
        )

    loss = lambda args: jnp.sum(jnp.sin(plain(*args)))  # noqa: E731
    theirs = jax.jit(jax.grad(loss), in_shardings=(tuple(shardings),), out_shardings=tuple(shardings))
    text = theirs.lower((jnp.asarray(big.numpy()), jnp.asarray(weights.numpy()))).compile().as_text()
    ours = mx.spmd(gradients(fn), mesh, layout).compile(big, weights).as_text()

    assert wire(ours) <= wire(text)


@pytest.mark.parametrize("op", some([mx.conv, mx.conv_transpose], mx.conv))
def test_gradients_of_gradients(op):
    fn = lambda x, k: op(x, k, both, over="c_in", stride=2)  # noqa: E731

    def second(x, k):
        first = gradients(fn)
        return mx.grad(lambda both: sum(mx.sum(mx.square(g)) for g in first(*both)))((x, k))

    got = mx.spmd(second, mesh, "height:cols width:rows")(x, kernel)
    for ours, alone in zip(got, second(x, kernel)):
        np.testing.assert_allclose(ours.numpy(), alone.numpy(), 1e-4, 1e-4 * np.abs(alone.numpy()).max())


TRANSPOSES = [
    {"stride": 2},
    {"stride": 1, "dilation": 2},
    {"stride": 3, "dilation": 2, "padding": "valid"},
    {"stride": 2, "padding": {"height": (1, 0), "width": (0, 1)}},
]


@pytest.mark.parametrize(
    "layout", some(["", "height:cols width:rows", "batch:rows c_out:cols"], "height:cols width:rows")
)
@pytest.mark.parametrize("arguments", some(TRANSPOSES, TRANSPOSES[0], TRANSPOSES[3]), ids=str)
def test_gpus_find_the_gradient_of_a_transpose_otherwise(arguments, layout, monkeypatch):
    """It is the same, and so are gradients of gradients."""
    first = gradients(lambda x, k: mx.conv_transpose(x, k, both, over="c_in", **arguments))

    def both_orders(x, k):
        return first(x, k), mx.grad(lambda both: sum(mx.sum(mx.square(g)) for g in first(*both)))((x, k))

    plain = mx.spmd(both_orders, mesh, layout)
    wanted, text = plain(x, kernel), plain.lower(x, kernel).as_text()
    monkeypatch.setattr(mx.Mesh, "platform", "gpu")
    otherwise = mx.spmd(both_orders, mesh, layout)

    assert otherwise.lower(x, kernel).as_text() != text
    for ours, theirs in zip(jax.tree.leaves(otherwise(x, kernel)), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-5, 1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("dtype", some(["bfloat16", "float16", "int32", "float8_e4m3fn"], "float16"))
def test_dtypes(dtype):
    """A pending sum of float16 is one of float32: its parts may overflow where the whole does not."""
    given = mx.round(x * 4).astype(dtype), mx.round(kernel * 3).astype(dtype)

    made = mx.spmd(conv, mx.Mesh("ring:3"), "c_in:ring")(*given)

    whole = conv(*(t.astype(jnp.float32) for t in given))
    assert made.dtype == dtype
    np.testing.assert_array_equal(made.numpy(), whole.astype(dtype).numpy())
    if dtype == "float16":
        large = mx.full((batch, height, width, c_in), 1.0, jnp.float16) * mx.tensor(
            np.float16([30000, 30000, -30000]), "c_in"
        )
        ones = mx.ones((kh, kw, c_in, c_out), jnp.float16) / 9
        total = mx.spmd(conv, mx.Mesh("ring:3"), "c_in:ring")(large, ones)
        assert np.isfinite(total.numpy()).all()


@pytest.mark.parametrize("layout", ["", "height:cols", "batch:rows c_out:cols", "c_in:cols"])
def test_reports_count_products(layout):
    """Those of one processor: taps times channels for each element of the result; zeros between elements are none."""
    given, weights = (
        numbers(batch, height, width, mx.Dim("c_in", 4)),
        numbers(kh, kw, mx.Dim("c_in", 4), mx.Dim("c_out", 8)),
    )
    parts = {"": 1, "height:cols": 4, "batch:rows c_out:cols": 8, "c_in:cols": 4}[layout]

    once = mx.spmd(conv, mesh, layout).explain(given, weights).flops
    assert once == 2 * (2 * 16 * 8 * 8) * (9 * 4) // parts
    transposed = lambda x, k: mx.conv_transpose(x, k, both, over="c_in", stride=2)  # noqa: E731
    assert mx.spmd(transposed, mesh, layout).explain(given, weights).flops == once


def test_jax_on_slices():
    """JAX's own convolution may see slices of a batch, not of an image."""

    def plain(x, k):
        out = jax.lax.conv_general_dilated(x.array, k.array, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.tree.map(lambda _: out, conv(x, k))

    np.testing.assert_allclose(
        mx.spmd(plain, mesh, "batch:rows")(x, kernel).numpy(), conv(x, kernel).numpy(), 1e-5, 1e-5
    )
    with pytest.raises(mx.SliceError, match=r"along 'height'(.|\n)*use mx.conv"):
        mx.spmd(plain, mesh, "height:cols").trace(x, kernel)


def test_names_decide():
    """Dims in any order; groups are what both have; what the kernel has alone comes last; taps that are split."""
    turned = mx.transpose(x, "c_in width batch height")
    made = mx.spmd(conv, mesh, "kh:rows c_out:cols")(turned, mx.transpose(kernel, "c_out kh c_in kw"))
    assert made.dims == (width, batch, height, c_out)
    np.testing.assert_allclose(
        mx.transpose(made, "batch height width c_out").numpy(), conv(x, kernel).numpy(), 1e-5, 1e-4
    )

    depthwise = mx.conv(x, numbers(kh, c_in), {"height": "kh"})
    assert depthwise.dims == x.dims
    several = mx.conv(x, numbers(kh, c_in, c_out, mx.Dim("copies", 2)), {"height": "kh"})
    assert several.dims == (*x.dims, c_out, mx.Dim("copies", 2))
    alone = mx.conv(x, numbers(kh, c_out), {"height": "kh"}, over=("c_in", "c_out"))  # each has one of them
    assert alone.dims == (batch, height, width)


def wrong(**arguments):
    return lambda: mx.conv(x, kernel, **({"windows": both, "over": "c_in"} | arguments))


MISTAKES = {
    "no windows": (
        mx.ArgumentError,
        wrong(windows={}),
        """
        the windows of mx.conv slide along one to three dims.
          values: {} for [batch:2, height:16, width:8, c_in:3]
          fix: name them in a dict: mx.conv(x, kernel, {"height": "kh", "width": "kw"}).
        """,
    ),
    "a window along a dim that there is not": (
        mx.ShapeError,
        wrong(windows={"hight": "kh"}),
        """
        there is no dim 'hight' here.
          values: [batch:2, height:16, width:8, c_in:3]
          fix: did you mean "height"?
        """,
    ),
    "two windows of one dim of taps": (
        mx.ShapeError,
        wrong(windows={"height": "kh", "width": "kh"}),
        """
        a dim of taps of mx.conv is a dim of the tensor too, or slides along two dims.
          values: [batch:2, height:16, width:8, c_in:3] and [kh:3, kw:3, c_in:3, c_out:5], taps kh, kh
          rule: each dim of x that a window slides along has a dim of the kernel of its own.
          fix: rename the kernel's dim.
        """,
    ),
    "taps that are channels": (
        mx.ShapeError,
        wrong(windows={"height": "c_in"}, over=()),
        """
        a dim of taps of mx.conv is a dim of the tensor too, or slides along two dims.
          values: [batch:2, height:16, width:8, c_in:3] and [kh:3, kw:3, c_in:3, c_out:5], taps c_in
          rule: each dim of x that a window slides along has a dim of the kernel of its own.
          fix: rename the kernel's dim.
        """,
    ),
    "a stride of nothing": (
        mx.ArgumentError,
        wrong(stride={"height": 0}),
        """
        mx.conv takes a stride of at least 1.
          values: {'height': 0}
          fix: leave stride= out.
        """,
    ),
    "a padding in capitals": (
        mx.ArgumentError,
        wrong(padding="SAME"),
        """
        mx.conv does not know this padding.
          values: 'SAME'
          rule: padding is "same", "valid", or how many elements before and behind each dim.
          fix: write for example padding={"height": (1, 1)}.
        """,
    ),
    "a negative padding": (
        mx.ArgumentError,
        wrong(padding={"height": (-1, 0)}),
        """
        mx.conv takes padding of at least 0.
          values: {'height': (-1, 0)}
          fix: use mx.slice to cut elements off.
        """,
    ),
    "a transpose of which nothing is left": (
        mx.ArgumentError,
        lambda: mx.conv_transpose(x, kernel, both, over="c_in", padding={"height": (9, 9)}),
        """
        mx.conv_transpose leaves nothing of dim height:16.
          values: padding 9 and 9
          rule: its padding is what the convolution was padded by, and is cut off: at least one element is left.
          fix: choose less padding.
        """,
    ),
    "two dtypes": (
        mx.DtypeError,
        lambda: conv(x, kernel.astype(jnp.bfloat16)),
        """
        tensor and kernel of mx.conv have different dtypes.
          values: [batch:2, height:16, width:8, c_in:3] float32 and [kh:3, kw:3, c_in:3, c_out:5] bfloat16
          rule: a product is computed in one dtype, so that none is slower than it looks.
          fix: cast one of them: kernel.astype(x.dtype).
        """,
    ),
    "channels and height over one axis": (
        mx.LayoutError,
        lambda: mx.spmd(lambda x, k: mx.conv(x, k, {"width": "kw"}), mesh, "width:cols c_out:cols").trace(
            numbers(width), numbers(kw, c_out)
        ),
        """
        dims of the operands of one operation are split over the same mesh axis: 'width' and 'c_out' over 'cols'.
          values: [width:8/cols] and [kw:3, c_out:5/cols] under Layout("width:cols c_out:cols")
          rule: an axis splits at most one of the dims that meet in a tensor.
          fix: split one of them over another axis, or rename it where they meet, to a name without a rule.
        """,
    ),
}
test_messages = pinned(MISTAKES)
