"""Convolutions equal those of the real Mesh-TensorFlow where it is right, and send no more than its counters.

The figures are of Mesh-TensorFlow 0.1.21 on TensorFlow 2.12.1: for an image x and a filter from one closed formula the
checksums of y, and of the gradients of half the sum of its squares. Its splits are cut into blocks by hand; with stride
2 they give other values there, silently, so none of those is here.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import meshax as mx
from extent import some

FIGURES = json.loads((Path(__file__).parent / "mesh_tensorflow_convolutions.json").read_text())
PLACES = {2: ("h", "w"), 3: ("d", "h", "w")}
WHOLE = {f"{e['case']} {e['filter']} {e['strides']} {e['padding']}": e for e in FIGURES["whole"]}
SPLIT = {f"{e['case']} {e['filter']} {e['layout']}": e for e in FIGURES["split"]}


def numbers(k, shape, deviation):
    i = np.arange(math.prod(shape), dtype=np.float64)
    values = deviation * math.sqrt(2) * np.sin(k + 1.7 * i + (0.013 + 0.0007 * k) * i * i)
    return values.reshape(shape).astype(np.float32)


def checksum(x):
    y = x.numpy().astype(np.float64).ravel()
    return [y.sum(), (y * y).sum(), (y * np.sin(np.arange(y.size) + 1)).sum(), y[0], y[y.size // 2], y[-1]]


def arranged(entry):
    """The image, the filter, and the function that gives y and the gradients by both."""
    places = PLACES[len(entry["spatial"])]
    is_transposed = "transpose" in entry["case"]
    x = mx.tensor(numbers(1, [2, *entry["spatial"], 3], 1.0), ("batch", *places, "cin"))
    channels, names = ([4, 3], ("cout", "cin")) if is_transposed else ([3, 4], ("cin", "cout"))
    kernel = mx.tensor(numbers(2, [*entry["filter"], *channels], 0.3), (*(f"k{p}" for p in places), *names))
    windows = {place: f"k{place}" for place in places}
    how = {"stride": dict(zip(places, entry["strides"])), "padding": entry["padding"].lower()}
    op = mx.conv_transpose if is_transposed else mx.conv

    def run(x, kernel):
        def loss(both):
            y = op(*both, windows, over="cin", **how)
            return mx.sum(mx.square(y)) / 2, y

        (_, y), (dx, dkernel) = mx.value_and_grad(loss, has_aux=True)((x, kernel))
        return y, dx, dkernel

    return x, kernel, run


@pytest.mark.parametrize("name", some(WHOLE, list(WHOLE)[1]))
def test_values_and_gradients(name):
    entry = WHOLE[name]
    x, kernel, run = arranged(entry)

    results = run(x, kernel)

    assert [d.size for d in results[0].dims] == entry["out_shape"]
    for result, key in zip(results, ("y", "dx", "dfilter")):
        np.testing.assert_allclose(checksum(result), entry[key], 2e-4, 2e-3, err_msg=key)


@pytest.mark.parametrize("name", some(SPLIT, list(SPLIT)[3]))
def test_no_more_is_sent(name):
    entry = SPLIT[name]
    x, kernel, run = arranged(entry)
    layout = entry["layout"].replace("_blocks", "").replace(";", " ")

    program = mx.spmd(run, mx.Mesh(entry["mesh"].replace(";", " ")), layout)
    sent = [c for c in program.explain(x, kernel).collectives if c.kind == "permute"]

    theirs = sum(count for kind, (count, _) in entry["counters_per_processor"].items() if kind.startswith("shift"))
    assert sum(c.elements * c.count for c in sent) <= theirs
    y, dx, dkernel = program(x, kernel)
    for ours, alone in zip((y, dx, dkernel), run(x, kernel)):
        np.testing.assert_allclose(ours.numpy(), alone.numpy(), 1e-4, 1e-3)
