"""Communication is minimal: what a decoder under each layout sends, in the trace and in the compiled program."""

import re
from collections import Counter

import jax
import numpy as np
import optax
import pytest

import decoder
import hlo
import meshax as mx
from decoder import BATCH, D_FF, D_KV, D_MODEL, HEADS, LAYERS, LENGTH, VOCAB
from meshax import optim

MESH = "data:2 model:4"
DATA, MODEL = 2, 4
TENSOR = "heads:model d_ff:model vocab:model"
STREAM = (BATCH, LENGTH, D_MODEL)


def traced(program, *args):
    """Returns {(kind, axes, elements): times} of the traced program."""
    counts = Counter()
    for c in program.explain(*args).collectives:
        counts[c.kind, c.axes, c.elements] += c.count
    return counts


def compiled(program, *args):
    """Returns {(kind, elements): times} of the compiled program."""
    return Counter(
        {(kind, n): k for kind, found in hlo.operands(program.compile(*args)).items() for n, k in found.items()}
    )


def without_axes(counts):
    merged = Counter()
    for (kind, _, elements), times in counts.items():
        merged[kind, elements] += times
    return merged


def make(layout, step=decoder.sgd):
    return mx.spmd(step, mx.Mesh(MESH), layout)


@pytest.fixture(scope="module")
def args():
    return decoder.init(), *decoder.tokens()


def phases(program, args, elements):
    counts = Counter()
    for c in program.explain(*args).collectives:
        if c.elements == elements:
            counts[c.kind, c.phase] += c.count
    return counts


def sizes_of(tree, split_by=lambda dims: 1):
    """Returns how often each number of elements of a parameter on one processor occurs."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, mx.Tensor))
    return Counter(x.size // split_by({d.name for d in x.dims}) for x in leaves)


def by_model(names):
    return MODEL if names & {"heads", "d_ff", "vocab"} else 1


def test_tensor_parallel_two_all_reduces_forward_and_two_backward_a_layer(args):
    stream = int(np.prod(STREAM))
    program = make(TENSOR)
    # one more each way: the embedding's result, and the gradient of what the logits are made of
    assert phases(program, args, stream) == {
        ("all-reduce", "forward"): 2 * LAYERS + 1,
        ("all-reduce", "backward"): 2 * LAYERS + 1,
    }
    labels = BATCH * LENGTH
    assert traced(program, *args) == {
        ("all-reduce", ("model",), stream): 4 * LAYERS + 2,
        ("all-reduce", ("model",), labels): 3,  # maximum, normaliser, the label's logit
    }
    assert compiled(program, *args) == without_axes(traced(program, *args))


def with_remat(policy):
    layer = mx.remat(decoder.layer, policy=policy)
    return lambda *args: decoder.sgd(*args, loss=lambda *a: decoder.loss(*a, layer=layer))


def test_remat_repeats_one_all_reduce_a_layer_unless_collectives_are_kept(args):
    stream = int(np.prod(STREAM))
    plain = {("all-reduce", "forward"): 2 * LAYERS + 1, ("all-reduce", "backward"): 2 * LAYERS + 1}
    assert phases(make(TENSOR, with_remat("collectives")), args, stream) == plain
    assert phases(make(TENSOR, with_remat(None)), args, stream) == plain | {("all-reduce", "recompute"): LAYERS}


@pytest.mark.parametrize("microbatches", [None, 4])
def test_data_parallel_reduces_each_gradient_once(args, microbatches):
    options = {} if microbatches is None else {"microbatches": microbatches, "over": "batch"}
    program = make("batch:data", lambda *a: decoder.sgd(*a, **options))
    wanted = Counter({("all-reduce", ("data",), n): times for n, times in sizes_of(args[0]).items()})
    wanted["all-reduce", ("data",), 1] += microbatches or 1  # the loss
    assert traced(program, *args) == wanted
    assert compiled(program, *args) == without_axes(wanted)


def test_data_and_tensor_parallel(args):
    stream = BATCH // DATA * LENGTH * D_MODEL
    program = make("batch:data " + TENSOR)
    wanted = Counter({("all-reduce", ("data",), n): times for n, times in sizes_of(args[0], by_model).items()})
    wanted["all-reduce", ("data",), 1] += 1
    wanted["all-reduce", ("model",), stream] += 4 * LAYERS + 2
    wanted["all-reduce", ("model",), BATCH // DATA * LENGTH] += 3
    assert traced(program, *args) == wanted
    assert compiled(program, *args) == without_axes(wanted)


def layer_weights():
    """Returns the sizes of the parameters of one layer: the norms, attention, feed-forward."""
    return Counter({D_MODEL: 2, D_MODEL * HEADS * D_KV: 4, D_MODEL * D_FF: 2})


def test_stored_parameters_are_gathered_forward_and_backward_and_scattered_once(args):
    program = make(mx.Layout("batch:data", params="d_model:data"))
    outside = Counter({VOCAB * D_MODEL: 2, D_MODEL: 1})  # embedding, logits, the last norm
    gathers, scatters = Counter(), Counter()
    passes = lambda size: 1 if size == D_MODEL else 2  # a vector is kept for the backward pass  # noqa: E731
    for size, times in layer_weights().items():
        gathers[size // DATA] += passes(size) * LAYERS * times
        scatters[size] += LAYERS * times
    for size, times in outside.items():
        gathers[size // DATA] += passes(size) * times
        scatters[size] += times
    gathers[VOCAB * D_MODEL // DATA] -= 1  # one-hot tokens have no gradient: nothing needs the embedding again
    wanted = Counter({("all-gather", ("data",), n): times for n, times in gathers.items()})
    wanted += Counter({("reduce-scatter", ("data",), n): times for n, times in scatters.items()})
    wanted["all-reduce", ("data",), 1] += 1
    counts = traced(program, *args)
    assert counts == wanted
    # outside of loops XLA may find that a gather is done twice, and do it once
    assert not compiled(program, *args) - without_axes(counts)
    for c in program.explain(*args).collectives:
        if c.elements in {n for size in layer_weights() for n in (size, size // DATA)} and c.elements > D_MODEL:
            assert c.count == LAYERS, "inside the loop over layers"


POLICIES = {
    "no remat": lambda body: body,
    "around the loop": lambda body: body,
    "nothing": mx.remat,
    "collectives": lambda body: mx.remat(body, "collectives"),
    "products": lambda body: mx.remat(body, jax.checkpoint_policies.dots_saveable),
    "everything": lambda body: mx.remat(body, jax.checkpoint_policies.everything_saveable),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_stored_parameters_keep_at_most_two_layers_whole(policy):
    """Whatever is kept for the backward pass: a parameter is gathered once forward, once backward, and not kept."""
    d_model, d_ff, layers, batch = mx.dims(d_model=128, d_ff=2048, layers=12, batch=8)

    def body(x, w):
        h = mx.tanh(mx.einsum(x, w["in"], over=d_model))
        return x + mx.einsum(h, w["out"], over=d_ff), None

    def through(x, w):
        return mx.scan(POLICIES[policy](body), x, w, over=layers)[0]

    def loss(w, x):
        x = mx.remat(through)(x, w) if policy == "around the loop" else through(x, w)
        return mx.mean(x * x)

    def step(w, x):
        value, grads = mx.value_and_grad(loss)(w, x)
        return jax.tree.map(lambda p, g: p - g, w, grads), value

    struct = lambda *dims: mx.tensor(jax.ShapeDtypeStruct([d.size for d in dims], np.float32), dims)  # noqa: E731
    w = {"in": mx.param(struct(layers, d_model, d_ff)), "out": mx.param(struct(layers, d_ff, d_model))}
    x = struct(batch, d_model)
    one_layer = 2 * d_model.size * d_ff.size * 4
    memory = {}
    for name, params in (("whole", ""), ("stored", "d_model:data")):
        program = mx.spmd(step, mx.Mesh("data:8"), mx.Layout("batch:data", params=params), donate=0)
        memory[name] = program.compile(w, x).memory_analysis()
    counts = Counter()
    for c in program.explain(w, x).collectives:
        counts[c.kind] += c.count
    turns = 6 if policy == "around the loop" else 4  # the loop is run again, and then backward
    assert counts == {"all-gather": turns * layers.size, "reduce-scatter": 2 * layers.size, "all-reduce": 1}
    shards = layers.size * one_layer // 8  # the gradients, as they are stored
    assert memory["stored"].argument_size_in_bytes < 1.1 * shards
    activations = 3 * layers.size * (d_model.size + d_ff.size) * 4
    assert memory["stored"].temp_size_in_bytes < shards + 2 * one_layer + activations
    assert memory["whole"].temp_size_in_bytes > layers.size * one_layer


@pytest.mark.parametrize("d_ff", [2048, 2047])
def test_a_policy_does_not_keep_masked_parameters_either(d_ff):
    d_model, d_ff, layers, batch = mx.dims(d_model=128, d_ff=d_ff, layers=6, batch=8)

    def body(x, w):
        h = mx.tanh(mx.einsum(x, w["in"], over=d_model))
        return x + mx.einsum(h, w["out"], over=d_ff), None

    def loss(w, x):
        policy = jax.checkpoint_policies.everything_saveable
        return mx.mean(mx.scan(mx.remat(body, policy), x, w, over=layers)[0] ** 2)

    w = {"in": mx.param(mx.ones((layers, d_model, d_ff))), "out": mx.param(mx.ones((layers, d_ff, d_model)))}
    program = mx.spmd(
        mx.grad(loss), mx.Mesh("data:4 model:2"), mx.Layout("batch:data d_ff:model", params="d_model:data")
    )
    recomputed = [c for c in program.explain(w, mx.ones((batch, d_model))).collectives if c.phase == "recompute"]
    assert sum(c.count for c in recomputed if c.kind == "all-gather") == 2 * layers.size


def test_what_is_jitted_is_traced_anew_inside_of_remat():
    """And the other way round: whether a parameter is gathered twice must not depend on what was traced before."""
    d_model, d_ff, layers, batch = mx.dims(d_model=16, d_ff=32, layers=3, batch=8)

    @jax.jit
    def layer(x, w):
        return x + mx.einsum(mx.tanh(mx.einsum(x, w["in"], over=d_model)), w["out"], over=d_ff)

    def gathers(wrapped):
        loss = lambda w, x: mx.mean(  # noqa: E731
            mx.scan(wrapped(lambda x, w: (layer(x, w), None)), x, w, over=layers)[0] ** 2
        )
        program = mx.spmd(mx.grad(loss), mx.Mesh("data:8"), mx.Layout("batch:data", params="d_model:data"))
        return traced(program, w, mx.ones((batch, d_model)))

    w = {"in": mx.param(mx.ones((layers, d_model, d_ff))), "out": mx.param(mx.ones((layers, d_ff, d_model)))}
    assert gathers(mx.remat) == gathers(lambda body: body) == gathers(mx.remat)


def test_a_parameter_from_outside_of_remat_is_not_kept_whole_either():
    d_model, d_ff, batch = mx.dims(d_model=128, d_ff=2048, batch=8)

    def loss(w, x):
        h = mx.remat(lambda x: mx.tanh(mx.einsum(x, w, over=d_model)))(x)
        return mx.mean(h * h)

    program = mx.spmd(mx.grad(loss), mx.Mesh("data:8"), mx.Layout("batch:data", params="d_model:data"))
    phases = Counter()
    for c in program.explain(mx.param(mx.ones((d_model, d_ff))), mx.ones((batch, d_model))).collectives:
        phases[c.kind, c.phase] += c.count
    assert phases == {("all-gather", "forward"): 1, ("all-gather", "recompute"): 1, ("reduce-scatter", "backward"): 1}


@pytest.mark.parametrize(
    ("count", "sent"),
    [
        # a word on each processor: these are told to all, and the vectors are exchanged, there and back
        (8, {("all-gather", ("data",), 1): 1, ("all-to-all", ("data",), 16): 2}),
        # more words than the table has rows
        (800, {("all-gather", ("data",), 80): 1, ("reduce-scatter", ("data",), 640): 1}),
    ],
)
def test_a_stored_embedding_sends_the_rows_or_the_table(count, sent):
    vocab, d_model, batch = mx.dims(vocab=40, d_model=16, batch=count)
    words = mx.tensor(np.arange(count, dtype=np.int32) % 40, batch)

    def loss(w):
        return mx.sum(mx.gather(w, words, vocab) ** 2)

    program = mx.spmd(mx.grad(loss), mx.Mesh("data:8"), mx.Layout("batch:data", params="d_model:data"))
    w = mx.param(mx.ones((vocab, d_model)))
    assert traced(program, w) == sent
    assert program(w).numpy().sum() == 2 * count * 16


def test_optimizer_state_split_over_data_scatters_and_gathers_once(args):
    optimizer = optim.from_optax(optax.adam(1e-3))

    def step(w, state, inputs, targets):
        value, grads = mx.value_and_grad(decoder.loss)(w, inputs, targets)
        return *optimizer.apply(grads, state, w), value

    program = make(mx.Layout("batch:data", optimizer="d_model:data"), step)
    state = mx.spmd(optimizer.init, program.mesh, program.layout)(args[0])
    wanted = Counter({("all-reduce", ("data",), 1): 1})
    for size, times in sizes_of(args[0]).items():
        wanted["reduce-scatter", ("data",), size] += times
        wanted["all-gather", ("data",), size // DATA] += times
    assert traced(program, args[0], state, *args[1:]) == wanted
    assert compiled(program, args[0], state, *args[1:]) == without_axes(wanted)


def test_sequence_parallel_never_all_reduces_the_stream(args):
    program = make("length:model " + TENSOR)
    stream = int(np.prod(STREAM))
    counts = traced(program, *args)
    assert not [n for kind, _, n in counts if kind == "all-reduce" and n >= stream // MODEL]
    # each layer gathers and scatters twice forward, and the other way round twice backward; embedding and logits once
    assert counts["all-gather", ("model",), stream // MODEL] == 4 * LAYERS + 2
    assert counts["reduce-scatter", ("model",), stream] == 4 * LAYERS + 2
    assert {n for kind, _, n in counts if kind == "all-reduce"} == {
        LAYERS * D_MODEL,  # the norms' scales
        D_MODEL,
        BATCH * LENGTH,  # the softmax over the vocabulary
    }
    assert not compiled(program, *args) - without_axes(counts)


def test_query_key_and_value_share_one_backward_all_reduce():
    batch, d_model, heads = mx.dims(batch=4, d_model=6, heads=8)
    x = mx.tensor(np.ones((4, 6), np.float32), (batch, d_model))
    w = mx.tensor(np.ones((6, 8), np.float32), (d_model, heads))

    def loss(x, w):
        q, k, v = (mx.einsum(x, w * scale, over=d_model) for scale in (1.0, 2.0, 3.0))
        return mx.sum(q * k * v)

    program = mx.spmd(mx.grad(loss), mx.Mesh("model:8"), "heads:model")
    assert traced(program, x, w) == {("all-reduce", ("model",), 24): 1}


def test_a_cast_from_outside_a_loop_is_reduced_once():
    batch, d_model, heads, layers = mx.dims(batch=4, d_model=6, heads=8, layers=5)
    x = mx.tensor(np.ones((4, 6), np.float32), (batch, d_model))
    w = mx.tensor(np.ones((5, 6, 8), np.float32), (layers, d_model, heads))

    def loss(x, w):
        total, _ = mx.scan(
            lambda sum, w: (sum + mx.einsum(x, w, over=d_model), None), mx.zeros((batch, heads)), w, over=layers
        )
        return mx.sum(total * total)

    program = mx.spmd(mx.grad(loss), mx.Mesh("model:8"), "heads:model")
    counts = traced(program, x, w)
    assert counts["all-reduce", ("model",), 24] == 1


PENDING = {
    "added": (lambda x, y: mx.einsum(x, y, over="k") + mx.einsum(x, y * 2, over="k"), {("all-reduce", 12): 1}),
    "scaled": (lambda x, y: -(mx.einsum(x, y, over="k") * 2 / 3), {("all-reduce", 12): 1}),
    "summed": (lambda x, y: mx.mean(mx.einsum(x, y, over="k")), {("all-reduce", 1): 1}),
    "transposed": (lambda x, y: mx.transpose(mx.einsum(x, y, over="k"), "j i"), {("all-reduce", 12): 1}),
    "used twice": (lambda x, y: (lambda z: mx.exp(z) * mx.sin(z))(mx.einsum(x, y, over="k")), {("all-reduce", 12): 1}),
    "stopped": (
        lambda x, y: (lambda z: mx.exp(z) + mx.exp(mx.stop_gradient(z)))(mx.einsum(x, y, over="k")),
        {("all-reduce", 12): 1},
    ),
    "normalised": (lambda x, y: mx.softmax(mx.einsum(x, y, over="k"), over="j"), {("all-reduce", 12): 1}),
    "scattered": (lambda x, y: mx.einsum(x, y, over="k").rename(i="s"), {("reduce-scatter", 12): 1}),
    "gathered": (lambda x, y: x.rename(k="u"), {("all-gather", 12): 1}),
    "renamed alike": (lambda x, y: x.rename(k="s"), {}),
    "moved": (lambda x, y: x.rename(k="u", i="s"), {("all-to-all", 6): 1}),
    "cut": (lambda x, y: (mx.zeros(x.dims[:1]) + 1.0).rename(i="s"), {}),
}


@pytest.mark.parametrize("name", PENDING)
def test_what_a_pending_sum_or_a_rename_costs(name):
    fn, wanted = PENDING[name]
    i, j, k = mx.dims(i=4, j=3, k=6)
    mx.Dim.declare({"s": "i, renamed", "u": "k, renamed"})
    x = mx.tensor(np.arange(24, dtype=np.float32).reshape(4, 6), (i, k))
    y = mx.tensor(np.arange(18, dtype=np.float32).reshape(6, 3), (k, j))
    program = mx.spmd(fn, mx.Mesh("x:4" if name == "moved" else "x:2"), "k:x s:x")
    found = Counter()
    for c in program.explain(x, y).collectives:
        found[c.kind, c.elements] += c.count
    if name == "moved":
        wanted = {("all-to-all", 8): 1}  # 6 over 4 is stored as 4 blocks of 2
    assert found == wanted


row, col, near, kept, place, places = mx.dims(row=3, col=16, near=4, kept=2, place=5, places=8)

# Along [row:3, col:16/x] over 4 processors: {(kind, elements): times}, and the bytes that each processor sends.
ALONG_A_SPLIT_DIM = {
    "shift": (lambda x, i: mx.shift(x, col, 1), {("permute", 3): 1}, 12),
    "shift back": (lambda x, i: mx.shift(x, col, -1), {("permute", 3): 1}, 12),
    "shift by a block": (lambda x, i: mx.shift(x, col, 4), {("permute", 12): 1}, 48),
    "shift by more": (lambda x, i: mx.shift(x, col, 6), {("permute", 6): 2}, 48),
    "shift out": (lambda x, i: mx.shift(x, col, 16), {}, 0),
    "windows": (lambda x, i: mx.windows(x, col, near, 1, 2), {("permute", 3): 1, ("permute", 6): 1}, 36),
    "windows before": (lambda x, i: mx.windows(x, col, near, before=3), {("permute", 9): 1}, 36),
    "windows apart": (lambda x, i: mx.windows(x, col, near, stride=4), {}, 0),
    "first half": (lambda x, i: mx.slice(x, col, 0, 8), {("permute", 6): 2}, 48),
    "second half": (lambda x, i: mx.slice(x, col, 8, 8), {("permute", 6): 2}, 48),
    "middle half": (lambda x, i: mx.slice(x, col, 4, 8), {("permute", 6): 1}, 24),
    "every other": (lambda x, i: mx.slice(x, col, 0, 8, stride=2), {}, 0),
    "pad": (lambda x, i: mx.pad(x, col, 2, 2), {("permute", 3): 1}, 12),
    "flip": (lambda x, i: mx.flip(x, col), {("permute", 12): 1}, 48),
    "concat": (lambda x, i: mx.concat([x, x * 2], col), {("permute", 12): 4}, 192),
    "stack": (lambda x, i: mx.stack([x, x * 2], "pair"), {}, 0),
    "unstack": (lambda x, i: mx.unstack(x, col), {("all-gather", 12): 1}, 144),
    "top_k": (lambda x, i: mx.top_k(x, over=col, k=kept), {("all-gather", 6): 2}, 144),
    "top_k without places": (lambda x, i: mx.top_k(x, over=col, k=kept)[0], {("all-gather", 6): 1}, 72),
    "sort": (lambda x, i: mx.sort(x, col), {("all-gather", 12): 1}, 144),
    "argsort": (lambda x, i: mx.argsort(x, col), {("all-gather", 12): 1}, 144),
    "cumsum": (lambda x, i: mx.cumsum(x, col), {("all-gather", 3): 1}, 36),
    "gather": (lambda x, i: mx.gather(x, i, col), {("all-reduce", 15): 1}, 90),
    "scatter_add": (lambda x, i: mx.scatter_add(x, i, mx.ones((place, row)), col), {}, 0),
    "one_hot": (lambda x, i: mx.one_hot(i, col), {}, 0),
    "local": (lambda x, i: mx.local(jax.numpy.tanh, x, out=x.dims, splittable=col), {}, 0),
    "categorical": (lambda x, i: mx.random.categorical(jax.random.key(0), x, col), {("all-reduce", 3): 2}, 36),
    "permutation": (lambda x, i: mx.random.permutation(jax.random.key(0), col), {}, 0),
    "gradient of shift": (lambda x, i: mx.grad(lambda x: squares(mx.shift(x, col, 1)))(x), {("permute", 3): 2}, 24),
    "gradient of gather": (
        lambda x, i: mx.grad(lambda x: squares(mx.gather(x, i, col)))(x),
        {("all-reduce", 15): 1},
        90,
    ),
    "gradient of top_k": (
        lambda x, i: mx.grad(lambda x: squares(mx.top_k(x, over=col, k=kept)[0]))(x),
        {("all-gather", 6): 1},
        72,
    ),
    "gradient of cumsum": (
        lambda x, i: mx.grad(lambda x: squares(mx.cumsum(x, col)))(x),
        {("all-gather", 3): 1, ("reduce-scatter", 12): 1},
        72,
    ),
}


def squares(x):
    return mx.sum(x * x)


def struct(*dims, dtype=np.float32):
    return mx.tensor(jax.ShapeDtypeStruct([dim.size for dim in dims], dtype), dims)


@pytest.mark.parametrize("name", ALONG_A_SPLIT_DIM)
def test_what_an_operation_along_a_split_dim_sends(name):
    fn, wanted, sent = ALONG_A_SPLIT_DIM[name]
    program = mx.spmd(fn, mx.Mesh("x:4", abstract=True), "col:x")
    args = struct(row, col), struct(place, dtype=np.int32)

    assert without_axes(traced(program, *args)) == wanted
    assert program.explain(*args).wire_bytes == sent


def test_a_slice_sends_no_more_than_it_keeps():
    for start in range(9):
        program = mx.spmd(lambda x: mx.slice(x, col, start, 8), mx.Mesh("x:4", abstract=True), "col:x")  # noqa: B023
        counts = traced(program, struct(row, col))
        assert {kind for kind, _, _ in counts} <= {"permute"}
        assert sum(elements * times for (_, _, elements), times in counts.items()) <= 8 * row.size


OVER_ONE_AXIS = {
    "gather": (
        lambda x, i, u: mx.gather(x, i, col),
        {("all-gather", 2): 1, ("reduce-scatter", 24): 1},  # the indices, and the sum of the result
    ),
    "scatter_add": (
        lambda x, i, u: mx.scatter_add(x, i, u, col),
        {("all-gather", 2): 1, ("all-gather", 6): 1},  # the indices and the updates
    ),
}


@pytest.mark.parametrize("name", OVER_ONE_AXIS)
def test_indices_split_over_the_axis_of_the_dim_they_index(name):
    fn, wanted = OVER_ONE_AXIS[name]
    program = mx.spmd(fn, mx.Mesh("x:4", abstract=True), "col:x places:x")
    args = struct(row, col), struct(places, dtype=np.int32), struct(places, row)

    assert without_axes(traced(program, *args)) == wanted


def test_what_is_renamed_is_gathered_once_for_all_that_is_made_from_it():
    def fn(x):
        whole = x.rename(col="whole")
        return mx.tanh(whole), mx.exp(whole) * 2, mx.sin(mx.cos(whole))

    assert without_axes(traced(mx.spmd(fn, mx.Mesh("x:4", abstract=True), "col:x"), struct(row, col))) == {
        ("all-gather", row.size * col.size // 4): 1
    }


def test_a_narrower_copy_of_what_is_renamed_is_gathered_itself():
    def fn(x):
        narrow = x.rename(col="whole").astype("bfloat16")
        return narrow * 2, narrow + 1

    (gather,) = mx.spmd(fn, mx.Mesh("x:4", abstract=True), "col:x").explain(struct(row, col)).collectives
    assert (gather.kind, gather.bytes) == ("all-gather", 2 * row.size * col.size // 4)


def test_the_gradient_of_a_masked_stored_parameter_is_scattered():
    """As documented for parameters: each use gathers, and its backward pass reduce-scatters; microbatches are uses."""
    batch, hidden = mx.dims(batch=8, hidden=16)
    w, x, mask = mx.param(struct(col, hidden)), struct(batch, col), mx.ones((col, hidden)) > 0
    layout, elements = mx.Layout("batch:x", params="hidden:x"), col.size * hidden.size

    def sends(loss, **parts):
        counts = without_axes(traced(mx.spmd(mx.grad(loss, **parts), mx.Mesh("x:4", abstract=True), layout), w, x))
        return {kind: times for (kind, n), times in counts.items() if n >= elements // 4}

    def product(w, x):
        return mx.mean(mx.tanh(mx.einsum(x, w, over=col)))

    once = {"all-gather": 1, "reduce-scatter": 1}
    assert sends(lambda w, x: product(w, x)) == once
    assert sends(lambda w, x: product(mx.where(mask, w, 0.0), x)) == once
    assert sends(lambda w, x: product(w, x) + product(w, x * x)) == {"all-gather": 2, "reduce-scatter": 2}
    assert sends(lambda w, x: product(w, x), microbatches=2, over=batch) == {"all-gather": 2, "reduce-scatter": 2}


def test_indices_of_a_whole_dim_may_be_split():
    program = mx.spmd(lambda x, i: mx.gather(x, i, col), mx.Mesh("x:4", abstract=True), "places:x")
    assert not traced(program, struct(row, col), struct(places, dtype=np.int32))

    program = mx.spmd(lambda *args: mx.scatter_add(*args, col), mx.Mesh("x:4", abstract=True), "places:x")
    args = struct(row, col), struct(places, dtype=np.int32), struct(places, row)
    assert without_axes(traced(program, *args)) == {("all-reduce", 48): 1}


def test_the_trace_is_the_same_for_8_and_for_4096_processors():
    batch, d_model, d_ff = mx.dims(batch=4096, d_model=512, d_ff=8192)

    def loss(w, x):
        h = mx.relu(mx.einsum(x, w["in"], over=d_model))
        return mx.mean(mx.square(mx.einsum(h, w["out"], over=d_ff)))

    struct = lambda *dims: mx.tensor(jax.ShapeDtypeStruct([d.size for d in dims], np.float32), dims)  # noqa: E731
    w = {"in": struct(d_model, d_ff), "out": struct(d_ff, d_model)}
    programs = [
        mx.spmd(mx.value_and_grad(loss), mx.Mesh(mesh, abstract=True), "batch:data d_ff:model")
        for mesh in ("data:2 model:4", "data:64 model:64")
    ]
    small, large = (re.findall(r" = (\w+)", str(p.trace(w, struct(batch, d_model)).jaxpr)) for p in programs)
    assert small == large
