"""The translation model trained as Mesh-TensorFlow's Bitransformer was: the same losses and gradients, no more sent.

`encoder_decoder.json` holds what Mesh-TensorFlow 0.1.21 gave, for packed pairs, a shared embedding, a separate softmax,
learned positions and label smoothing: the losses before each of ten SGD steps on one batch and the loss after them, the
norm of the gradients at each step, and its own counters of the elements that each processor all-reduces in one step.
The variables are listed with the norms of their first gradients; variable number k holds `values(k, ..)`.
"""

import json
from collections import Counter
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax.models.encoder_decoder import EncoderDecoderConfig
from meshax.plan.search.named_layouts import find_layout
from meshax.tensors import is_tensor

GOLDEN = json.loads(Path(__file__).with_name("encoder_decoder.json").read_text(encoding="utf-8"))
RUNS = {f"{run['mesh']} {run['layout'] or 'unsplit'}": run for run in GOLDEN["runs"]}
NUMBERS = {name: number for number, (name, *_) in enumerate(GOLDEN["variables"])}
OURS = {"data+model": "data:2 model:2", "sequence": "data:2 model:2", "fsdp": "data:4", "data": "data:3"}
KEY = jax.random.key(0)
CONFIG = EncoderDecoderConfig(
    d_model=32, heads=4, d_kv=8, d_ff=64, layers=2, vocab=64, positions="learned", max_length=16, attention_scale=1.0,
    label_smoothing=0.1, dtype="float32", keep="everything",
)  # fmt: skip
BATCH, SOURCE, LENGTH, STEP = 4, 16, 12, 0.1


def values(number, shape, deviation):
    """The closed formula that both programs start from."""
    i = np.arange(np.prod(shape), dtype=np.float64)
    return (deviation * np.sqrt(2) * np.sin(number + 1.7 * i + (0.013 + 0.0007 * number) * i * i)).reshape(shape)


def deviation_of(name):
    last = name.removesuffix("/kernel").split("/")[-1]
    return {"embedding": 1.0, "positional_embedding": 1.0, "q": 32**-0.5 * 8**-0.5, "wo": 64**-0.5}.get(last, 32**-0.5)


# Where a parameter of ours is there; {} is the number of a layer.
NAMES = {
    ".embedding.weight": "shared/embedding",
    ".learned.weight": "shared/positional_embedding",
    ".logits.weight": "decoder/logits/kernel",
    ".norm.scale": "decoder/rms_norm/scale",
    ".encoder_norm.scale": "encoder/rms_norm/scale",
}
PARTS = {
    "encoder": ("attention_norm", "attention", None, None, "feed_forward_norm", "feed_forward"),
    "layers": ("attention_norm", "attention", "cross_norm", "cross", "feed_forward_norm", "feed_forward"),
}
KINDS = {"attention": "SelfAttention", "cross": "EncDecAttention", "feed_forward": "DenseReluDense"}
MAPS = {"q": "q", "k": "k", "v": "v", "out": "o"}


def variables_of(path):
    """The names of the variables that a parameter is a stack of."""
    if path in NAMES:
        return [NAMES[path]]
    _, stack, part, *rest = path.split(".")
    block = "encoder" if stack == "encoder" else "decoder"
    order = [one for one in PARTS[stack] if one is not None]
    place = f"layer_{order.index(part) // 2:03}"
    if part.endswith("_norm"):
        inside = "rms_norm/scale"
    elif part == "feed_forward":
        inside = f"DenseReluDense/{ {'into': 'wi', 'out': 'wo'}[rest[0]] }/kernel"
    else:
        inside = f"{KINDS[part]}/{MAPS[rest[0]]}"
    return [f"{block}/block_{number:03}/{place}/{inside}" for number in range(2)]


@cache
def first():
    """The model before its first step."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(jax.eval_shape(CONFIG.make, KEY), is_leaf=is_tensor)
    filled, used = [], []
    for path, leaf in leaves:
        names = variables_of(jax.tree_util.keystr(path))
        used += names
        whole = [
            (1 + values(NUMBERS[name], [32], 0.1))
            if name.endswith("scale")
            else values(NUMBERS[name], GOLDEN["variables"][NUMBERS[name]][1], deviation_of(name))
            for name in names
        ]
        shape = [dim.size for dim in leaf.dims]
        filled.append(mx.param(mx.tensor(np.stack(whole).astype(np.float32).reshape(shape), leaf.dims)))
    assert sorted(used) == sorted(NUMBERS)
    return jax.tree.unflatten(treedef, filled)


def packed(lengths_of, token, size):
    """Two segments in each row, and padding: tokens, segments, positions."""
    rows = np.zeros((3, BATCH, size), np.int32)
    for b in range(BATCH):
        place = 0
        for segment, count in enumerate(lengths_of(b), 1):
            for at in range(count):
                rows[:, b, place] = token(b, place) if at < count - 1 else 1, segment, at
                place += 1
    return rows


@cache
def examples():
    inputs = packed(lambda b: (5 + b, 6), lambda b, p: 2 + (11 * b + 7 * p + 3 * p * p) % 62, SOURCE)
    texts = packed(lambda b: (4 + b, 4), lambda b, p: 2 + (5 * b + 13 * p + p * p) % 62, LENGTH)
    assert inputs[0, 0].tolist() == [2, 12, 28, 50, 1, 50, 28, 12, 2, 60, 1, 0, 0, 0, 0, 0]
    assert texts[0, 3].tolist() == [17, 31, 47, 3, 23, 45, 1, 33, 61, 29, 1, 0]
    before, segments = np.pad(texts[0][:, :-1], ((0, 0), (1, 0))), np.pad(texts[1][:, :-1], ((0, 0), (1, 0)))
    arrays = dict(zip(("inputs", "inputs_segments", "inputs_positions"), inputs, strict=True))
    arrays |= dict(zip(("targets", "segments", "positions"), texts, strict=True))
    arrays |= {"tokens": np.where(segments == texts[1], before, 0), "weights": texts[0] > 0}
    shapes = CONFIG.batch({"batch": BATCH, "source_length": SOURCE, "length": LENGTH})
    return {name: mx.tensor(array.astype(np.int32), shapes[name].dims) for name, array in arrays.items()}


def loss(model, batch):
    """As there: divided by all places, padding included."""
    return model.loss(batch, KEY)[0] / (BATCH * LENGTH)


def step(model, batch):
    value, grads = mx.value_and_grad(loss)(model, batch)
    return jax.tree.map(lambda p, g: p - STEP * g, model, grads), value, grads


def norms(grads):
    """The squared norm of the gradient of each variable, by name."""
    named = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(grads, is_leaf=is_tensor)[0]:
        names = variables_of(jax.tree_util.keystr(path))
        for name, part in zip(names, leaf.numpy().astype(np.float64).reshape(len(names), -1), strict=True):
            named[name] = (part**2).sum()
    return named


def check_training(mesh, layout, wanted):
    program, model = mx.spmd(step, mesh, layout), first()
    losses, lengths = [], []
    for _ in range(11):
        model, value, grads = program(model, examples())
        losses.append(float(value))
        squares = norms(grads)
        if not lengths:
            by_name = {name: norm for name, _, norm in GOLDEN["variables"]}
            assert {name: square**0.5 for name, square in squares.items()} == pytest.approx(by_name, rel=1e-4, abs=1e-6)
        lengths.append(sum(squares.values()) ** 0.5)
    np.testing.assert_allclose(losses, [*wanted["losses"], wanted["loss_after_10"]], atol=5e-6, rtol=0)
    np.testing.assert_allclose(lengths[:-1], wanted["grad_norm"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", some(RUNS, list(RUNS)[-1]))
def test_training_gives_the_same_losses_and_gradients(name):
    check_training(mx.Mesh(RUNS[name]["mesh"]), RUNS[name]["layout"], RUNS[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", OURS)
def test_under_layouts_that_only_we_have(layout):
    mesh = mx.Mesh(OURS[layout])
    rules = find_layout(layout, mesh, known=CONFIG.glossary, sizes=CONFIG.sizes())
    check_training(mesh, rules, next(iter(RUNS.values())))


def test_the_logits_of_the_first_step():
    given = examples()
    names = ("inputs", "tokens", "inputs_segments", "inputs_positions", "segments", "positions")
    call = mx.spmd(lambda model, batch: model(**batch), mx.Mesh("all:2"), "heads:all")
    logits = call(first(), {name: given[name] for name in names}).numpy().astype(np.float64)
    logits = logits * (given["weights"].numpy() > 0)[..., None]  # padding has no logits there
    flat = logits.reshape(-1)
    sums = [flat.sum(), (flat**2).sum(), (flat * np.sin(np.arange(flat.size) + 1)).sum(), flat[0], flat[flat.size // 2]]
    np.testing.assert_allclose(sums, RUNS["all:1 unsplit"]["logits_step0"][:-1], rtol=2e-5)


@pytest.mark.parametrize("name", RUNS)
def test_a_step_communicates_no_more(name):
    run = RUNS[name]
    report = mx.spmd(step, mx.Mesh(run["mesh"]), run["layout"]).explain(first(), examples())
    assert {collective.kind for collective in report.collectives} <= {"all-reduce"}
    ours = Counter()
    for collective in report.collectives:
        for axis in collective.axes:
            ours[axis] += collective.elements * collective.count
    theirs = run["allreduce_elements_per_processor"]
    assert ours.keys() == theirs.keys()
    assert all(ours[axis] <= theirs[axis] for axis in theirs), (ours, theirs)
