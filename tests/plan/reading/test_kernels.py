"""FLOPs by hand, what becomes one kernel, and what it reads and writes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshax as mx
from meshax.plan.reading.kernels import flops_of
from meshax.plan.reading.primitives import WORK
from meshax.plan.reading.walk import Source, Step, Value

batch, inner, hidden, outer = mx.dims(batch=8, inner=16, hidden=32, outer=4)


def struct(*dims, dtype=np.float32):
    return mx.tensor(jax.ShapeDtypeStruct([d.size for d in dims], dtype), dims)


def explain(fn, *args, layout="", mesh="data:2 model:4", donate=()):
    return mx.spmd(fn, mx.Mesh(mesh, abstract=True), layout, donate).explain(*args)


def kernels(fn, *args, **options):
    """Returns (name, reads, writes) in bytes of each kernel, in order."""
    return [
        (k.step.name, [v.bytes for v in k.reads], [v.bytes for v in k.writes])
        for k in explain(fn, *args, **options).kernels.all()
    ]


X = struct(batch, inner)
W = {"in": mx.param(struct(inner, hidden)), "out": mx.param(struct(hidden, outer))}
FIRST, SECOND = 2 * 8 * 16 * 32, 2 * 8 * 32 * 4


def mlp(w, x):
    return mx.einsum(mx.relu(mx.einsum(x, w["in"], over=inner)), w["out"], over=hidden)


def loss(w, x):
    return mx.sum(mlp(w, x) ** 2)


def test_flops_of_a_perceptron_by_hand():
    assert explain(mlp, W, X).flops == FIRST + SECOND
    # backward, each product is done for both operands, except that nobody asks for the gradient of x
    assert explain(mx.grad(loss), W, X).flops == FIRST + SECOND + FIRST + 2 * SECOND
    assert explain(mx.grad(loss, argnums=(0, 1)), W, X).flops == 3 * (FIRST + SECOND)


@pytest.mark.parametrize(
    ("layout", "share"),
    [("batch:data", 2), ("hidden:model", 4), ("batch:data hidden:model", 8), ("batch:data+model", 8)],
)
def test_flops_are_of_one_processor(layout, share):
    assert explain(mx.grad(loss, argnums=(0, 1)), W, X, layout=layout).flops == 3 * (FIRST + SECOND) // share


def test_flops_of_a_batched_product_and_of_padding():
    heads, length, memory, d = mx.dims(heads=6, length=5, memory=7, d=3)
    q, k = struct(heads, length, d), struct(heads, memory, d)

    assert explain(lambda q, k: mx.einsum(q, k, over=d), q, k).flops == 2 * 6 * 5 * 7 * 3
    # 6 heads over 4 processors are blocks of 2: padding is computed too
    assert explain(lambda q, k: mx.einsum(q, k, over=d), q, k, layout="heads:model").flops == 2 * 2 * 5 * 7 * 3


def test_what_goes_into_the_stack_of_a_loop():
    """A product's result is copied there, what is computed by the element is written there; stacks begin as zeros."""
    turns = mx.Dim("turns", 3)

    def loop(w, x):
        turn = lambda x, _: (x, (mx.einsum(x, w["in"], over=inner), mx.tanh(x) + 1, x))  # noqa: E731
        return mx.scan(turn, x, None, over=turns)[1]

    found = explain(loop, W, X).kernels
    stacked = {k.step.name: (k.writes, k.stacked, k.stacking) for k in found.all() if k.stacked}
    assert stacked.keys() == {"dot_general", "add"}
    for name, moves in (("dot_general", 3), ("add", 1)):
        writes, into_stack, stacking = stacked[name]
        assert into_stack == writes and stacking == moves * writes[0].bytes
    assert not any(k.stacking for k in explain(mlp, W, X).kernels.all())


def test_flops_in_a_loop_and_in_remat():
    layers = mx.Dim("layers", 5)
    w = mx.param(struct(layers, inner, mx.Dim("next", inner.size)))

    def deep(w, x, around=lambda f: f):
        def layer(x, w):
            return mx.tanh(mx.einsum(x, w, over=inner)).rename(next="inner"), None

        return mx.sum(mx.scan(around(layer), x, w, over=layers)[0])

    one = 2 * 8 * 16 * 16
    assert explain(deep, w, X).flops == 5 * one
    assert explain(mx.grad(deep), w, X).flops == 5 * 3 * one
    assert explain(mx.grad(lambda w, x: deep(w, x, mx.remat)), w, X).flops == 5 * 4 * one


def test_flops_of_a_convolution():
    n, width, channels, filters = mx.dims(n=2, width=10, channels=3, filters=5)
    x, kernel = struct(n, width, channels), struct(mx.Dim("taps", 4), channels, filters)
    out = (n, mx.Dim("places", 7), filters)

    def conv(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))

    report = explain(lambda x, kernel: mx.local(conv, x, kernel, out=out, splittable="n"), x, kernel, layout="n:data")
    assert report.flops == 2 * (1 * 7 * 5) * 4 * 3


def test_an_elementwise_chain_is_one_kernel():
    assert kernels(lambda x: mx.tanh(x * 2 + 1) - x, X) == [("sub", [512], [512])]


def test_views_are_free():
    assert kernels(lambda x: mx.reshape(x * 2, (mx.Dim("flat", 128),)), X) == [("mul", [512], [512])]


def test_a_mask_is_made_on_the_fly():
    def masked(x):
        return mx.where(mx.arange(batch) >= mx.arange(inner), x, 0.0)

    assert kernels(masked, X) == [("select_n", [512], [512])]


def test_a_product_reads_its_operands_and_computes_nothing_on_the_way():
    assert kernels(lambda x, w: mx.einsum(x * 2, w, over=inner), X, W["in"]) == [
        ("mul", [512], [512]),
        ("dot_general", [512, 2048], [1024]),
    ]


def test_a_reduction_computes_its_operand_on_the_way():
    assert kernels(lambda x: mx.sum(x * x + 1, inner), X) == [("reduce_sum", [512], [32])]


def test_what_is_dear_is_kept_for_its_second_use():
    """The exponential of a softmax is stored; the quotient of its uses is one kernel more."""
    made = kernels(lambda x: mx.softmax(x, over=inner), X)
    assert [name for name, _, _ in made] == ["reduce_max", "exp", "reduce_sum", "div"]
    assert [sum(reads) for _, reads, _ in made] == [512, 512 + 32, 512, 512 + 32]


def test_collectives_read_and_write():
    made = kernels(lambda x: mx.sum(x, batch) * 2, X, layout="batch:data", mesh="data:2")
    assert made == [
        ("reduce_sum", [256], [64]),
        ("mul", [64], [64]),
        ("psum_invariant", [64], [64]),
    ]  # scaled, still pending


def test_a_gather_reads_what_it_takes_not_the_table():
    table, ids = struct(mx.Dim("words", 10_000), inner), struct(batch, dtype=np.int32)
    report = explain(lambda table, ids: mx.gather(table, ids, "words"), table, ids)
    (kernel,) = (k for k in report.kernels.all() if k.step.name == "gather")

    assert kernel.bytes < 5 * batch.size * inner.size * 4


def test_the_kernels_of_a_loop_are_its_bodys():
    turns = mx.Dim("turns", 7)
    report = explain(lambda x: mx.scan(lambda x, _: (mx.tanh(x) + 1, None), x, over=turns)[0], X)

    assert [(k.step.name, k.step.times) for k in report.kernels.all()] == [("add", 7)]
    assert report.kernels.own[0].step.name == "scan"


def test_a_product_over_leading_dims_transposes_first():
    def times(a, b):
        return mx.einsum(a, b, over=batch)

    (kernel,) = explain(times, struct(batch, inner), struct(batch, hidden)).kernels.all()
    assert kernel.workspace == 512
    (kernel,) = explain(times, struct(inner, batch), struct(batch, hidden)).kernels.all()
    assert kernel.workspace == 0

    many = mx.Dim("many", 3)
    (kernel,) = explain(times, struct(many, batch, inner), struct(many, batch, hidden)).kernels.all()
    assert kernel.workspace == 0  # many products at once, one after the other in memory
    (kernel,) = explain(times, struct(batch, many, inner), struct(batch, many, hidden)).kernels.all()
    assert kernel.workspace == 3 * 512


def work(fn, *args, **options):
    """Returns the elements that are transposed, reduced and dear, of all kernels together."""
    found = [k.work for k in explain(fn, *args, **options).kernels.all()]
    return tuple(sum(one[kind] for one in found) for kind in WORK)


many, more = mx.dims(many=3, more=5)


@pytest.mark.parametrize(
    ("a", "b", "over", "transposed"),
    [
        ((batch, inner), (inner, hidden), inner, 0),
        ((batch, inner), (hidden, inner), inner, 0),  # the second may lie either way
        ((inner, batch), (inner, hidden), inner, 16 * 8),
        ((inner, batch), (hidden, inner), inner, 16 * 8),
        ((batch, inner, many), (inner, many, hidden), (inner, many), 0),
        ((batch, inner, many), (hidden, inner, many), (inner, many), 32 * 16 * 3),  # unless over several dims
        ((batch, inner), (many, more, inner), inner, 3 * 5 * 16),  # or with several others
        ((many, batch, inner), (many, inner, hidden), inner, 0),
        ((many, batch, inner), (many, hidden, inner), inner, 0),
        ((many, inner, batch), (many, inner, hidden), inner, 3 * 16 * 8),
        ((batch, many, inner), (hidden, many, inner), inner, 3 * (8 * 16 + 32 * 16 + 8 * 32)),  # and the result
    ],
    ids=str,
)
def test_operands_that_a_cpu_transposes(a, b, over, transposed):
    assert work(lambda a, b: mx.einsum(a, b, over=over), struct(*a), struct(*b)) == (transposed, 0, 0)


def test_a_product_whose_result_is_transposed_is_turned_over():
    def gradient(x, y, *dims):
        return mx.transpose(mx.einsum(x, y, over=batch), dims)

    x, y = struct(batch, inner), struct(batch, hidden)
    turned = work(lambda x, y: gradient(x, y, hidden, inner), x, y)
    assert turned == (8 * 16 + (8 * 16 + 8 * 32), 0, 0)  # the first is copied before
    heads = struct(batch, many, more)
    kept = work(lambda x, y: gradient(x, y, many, more, inner), x, heads)
    assert kept == (8 * 16 + 16 * 3 * 5, 0, 0)  # not where there are more dims


def test_dims_of_one_element_are_nowhere_else_when_transposed():
    one = mx.Dim("one", 1)
    assert work(lambda x: mx.transpose(x, (inner, batch)), X) == (8 * 16, 0, 0)
    assert work(lambda x: mx.transpose(x, (one, batch)), struct(batch, one)) == (0, 0, 0)


def test_work_is_that_of_the_kernels_own_and_on_the_way():
    assert work(lambda x: mx.sum(mx.exp(x), inner), X) == (0, 128, 128)
    assert work(lambda x: mx.exp(x) + mx.tanh(x), X) == (0, 0, 2 * 128)
    assert work(lambda x: mx.rsqrt(x) * 2, X) == (0, 0, 0)  # processors have that
    assert work(lambda x: mx.max(x, inner), X, layout="batch:data") == (0, 64, 0)


def test_bytes_depend_on_the_dtype():
    report = explain(
        lambda x: mx.einsum(x, x.rename(batch="other"), over=inner), struct(batch, inner, dtype=jnp.bfloat16)
    )
    (kernel,) = report.kernels.all()
    assert kernel.bytes == 2 * (128 + 64)


@pytest.mark.parametrize(("name", "products"), [("fwd", 2), ("bwd", 5)])
def test_attention_by_cudnn_counts_as_the_products_it_stands_for(name, products):
    """It can be traced on a GPU only: this is the operation as a trace there has it."""
    queries, keys = (Value(jax.ShapeDtypeStruct((2, n, 4, 8), jnp.bfloat16)) for n in (6, 10))
    step = Step(f"dot_product_attention_{name}_wrapper", {}, [queries, keys], [], "", (), 1, None, Source())
    assert flops_of(step) == products * 2 * (2 * 4 * 6 * 10 * 8)
