"""Pairs of sources and texts, and models that read them: what tests of such models have in common."""

import functools

import jax
import numpy as np

import meshax as mx
from meshax.decode import Request
from meshax.plan.search.named_layouts import find_layout
from meshax.tensors import is_tensor

LAYOUTS = {
    "data": ("data:2 model:2", "data"),
    "model": ("data:2 model:2", "model"),
    "data+model": ("data:2 model:4", "data+model"),
    "fsdp": ("data:2 model:2", "fsdp"),
    "sequence": ("data:2 model:4", "sequence"),
    "uneven": ("data:2 model:3", "data+model"),
    "ring": ("data:2 model:2", "batch:data length:model positions:model"),
    "memory": ("data:2 model:2", "batch:data memory:model"),
    "width": ("model:4", "d_model:model"),
}
batch, source_length, length = mx.dims(batch=4, source_length=10, length=8)
KEY = jax.random.key(0)
PAIRS = [  # lengths of (source, text) in each row, packed
    [(4, 3), (5, 5)],
    [(10, 6)],
    [(3, 2), (3, 3), (4, 3)],
    [(7, 8)],
]


def examples(pairs=PAIRS, sizes=(10, 8)):
    """Packed pairs; a pair has the tokens that it has in any packing."""
    rows = {name: [] for name in ("inputs", "inputs_segments", "inputs_positions")}
    rows |= {name: [] for name in ("tokens", "targets", "segments", "positions", "weights")}

    def padded(parts, size):
        joined = [value for part in parts for value in part]
        return joined + [0] * (size - len(joined))

    def tokens(count, seed):
        return [2 + (seed * 7 + i * 5 + i * i) % 20 for i in range(count)]

    for row in pairs:
        texts = [[*tokens(text - 1, source * 3 + text), 1] for source, text in row]
        for name, size, which in (("inputs_", sizes[0], 0), ("", sizes[1], 1)):
            rows[f"{name}segments"].append(padded([[i + 1] * pair[which] for i, pair in enumerate(row)], size))
            rows[f"{name}positions"].append(padded([range(pair[which]) for pair in row], size))
        rows["inputs"].append(padded([tokens(source, source + 2 * text) for source, text in row], sizes[0]))
        rows["targets"].append(padded(texts, sizes[1]))
        rows["tokens"].append(padded([[1, *text[:-1]] for text in texts], sizes[1]))
        rows["weights"].append(padded([[1] * len(text) for text in texts], sizes[1]))
    dims = {True: ("source_length", sizes[0]), False: ("length", sizes[1])}
    return {
        name: mx.tensor(
            np.array(values, np.int32), (mx.Dim("batch", len(pairs)), mx.Dim(*dims[name.startswith("inputs")]))
        )
        for name, values in rows.items()
    }


@functools.cache
def model_of(config):
    """A model of numbers that differ from place to place."""
    shapes, treedef = jax.tree.flatten(jax.eval_shape(lambda: config.make(KEY)))
    draw = np.random.default_rng(0)
    return jax.tree.unflatten(treedef, [draw.normal(0.1, 0.3, x.shape).astype(x.dtype) for x in shapes])


def loss(model, batch):
    total, count = model.loss(batch, KEY)
    return total / count


@functools.cache
def trained(config, mesh="x:1", layout="none"):
    """The loss and the gradients of a model on a mesh."""
    place = mx.Mesh(mesh)
    where = find_layout(layout, place, known=config.glossary, sizes=config.sizes())
    value, grads = mx.spmd(mx.value_and_grad(loss), place, where)(model_of(config), examples())
    return float(value), [x.numpy() for x in jax.tree.leaves(grads, is_leaf=is_tensor)]


def evaluated(config, given):
    """The summed loss of some pairs, and of how many tokens."""
    return _evaluation()(model_of(config), given)


@functools.cache
def _evaluation():
    return mx.spmd(lambda model, batch: model.loss(batch), mx.Mesh("x:1"), "")


def call(model, given):
    names = ("inputs", "tokens", "inputs_segments", "inputs_positions", "segments", "positions")
    return model(**{name: given[name] for name in names})


SOURCES = [(2, 5, 8), (3, 9, 4, 20, 6, 11, 7), (12, 13, 14, 2, 2), (21, 3, 5, 7, 9, 11, 13, 15, 17, 19), (4,)]
REQUESTS = [Request((1,), tokens=6, stop=(1,), source=source) for source in SOURCES]
DECODED = {
    "none": ("x:1", ""),
    "data+model": ("data:2 model:4", "batch:data heads:model d_ff:model vocab:model"),
    "sequence": ("data:2 model:2", "batch:data heads:model d_ff:model vocab:model length:model"),
    "fsdp": ("data:2", mx.Layout("batch:data", params="d_model:data")),
    "memory": ("model:2", "memory:model"),
    "uneven": ("model:3", "heads:model vocab:model"),
}


@functools.cache
def reread(config):
    """Greedy texts by reading everything again for each token, and how near a choice was."""
    run = mx.spmd(call, mx.Mesh("x:1"), "")
    texts, nearest = [], np.inf
    for source in SOURCES:
        text = [1]
        while len(text) < 7:
            rows = {"inputs": _padded(source, 10), "inputs_segments": _padded([1] * len(source), 10)}
            rows |= {"inputs_positions": np.arange(10)[None], "tokens": _padded(text, 7)}
            rows |= {"segments": _padded([1] * len(text), 7), "positions": np.arange(7)[None]}
            given = {
                name: mx.tensor(row.astype(np.int32), f"batch {'source_' * name.startswith('inputs')}length")
                for name, row in rows.items()
            }
            logits = run(model_of(config), given).numpy()[0, len(text) - 1]
            second, first = np.sort(logits)[-2:]
            nearest = min(nearest, first - second)
            if logits.argmax() == 1:
                break
            text.append(int(logits.argmax()))
        texts.append(text[1:])
    assert nearest > 1e-4
    return texts


def _padded(values, size):
    return np.array([[*values, *[0] * (size - len(values))]])
