"""The moving average of the parameters: by its formula, under every layout, with nothing sent for it."""

import jax
import numpy as np
import pytest

import meshax as mx
from extent import some
from meshax import optim
from messages import pinned

rows, cols = mx.dims(rows=6, cols=10)
LAYOUTS = {
    "unsplit": mx.Layout(""),
    "rows": mx.Layout("rows:data"),
    "uneven": mx.Layout("rows:model cols:data"),
    "zero-1": mx.Layout("", optimizer="cols:data"),
    "zero-3": mx.Layout("cols:model", params="rows:data", optimizer="rows:data"),
}
RATE, DECAY, STEPS = 0.1, 0.3, 4


def start():
    values = np.arange(60, dtype=np.float32).reshape(6, 10) / 7
    return {"w": mx.param(mx.tensor(values, (rows, cols))), "b": mx.param(mx.tensor(values[0] - 1, (cols,)))}


def gradients(params, number):
    return jax.tree.map(lambda p: p * 0.5 + number, params, is_leaf=lambda x: isinstance(x, mx.Tensor))


def step(optimizer):
    def run(params, state, number):
        return optimizer.apply(gradients(params, number), state, params)

    return run


@pytest.mark.parametrize("label", some(LAYOUTS, "zero-1", "uneven"))
def test_it_is_the_formula_under_every_layout(label):
    optimizer = optim.averaged(optim.by_name("sgd", RATE), DECAY)
    mesh, params = mx.Mesh("data:2 model:4"), start()
    state = mx.spmd(optimizer.init, mesh, LAYOUTS[label])(params)
    run = mx.spmd(step(optimizer), mesh, LAYOUTS[label])
    plain = {name: x.numpy().astype(np.float64) for name, x in params.items()}
    average = dict(plain)
    for n in range(1, STEPS + 1):
        params, state = run(params, state, float(n))
        keep = min(DECAY, (1 + n) / (10 + n))
        assert (keep < DECAY) == (n < 3)
        for name in plain:
            plain[name] = plain[name] - RATE * (plain[name] * 0.5 + n)
            average[name] = keep * average[name] + (1 - keep) * plain[name]
    for name in plain:
        np.testing.assert_allclose(params[name].numpy(), plain[name], rtol=1e-5)
        np.testing.assert_allclose(state.average[name].numpy(), average[name], rtol=1e-5)
    assert int(state.count) == STEPS


@pytest.mark.parametrize("label", ["zero-1", "zero-3"])
def test_it_sends_nothing(label):
    sent = []
    for optimizer in (optim.by_name("sgd", RATE), optim.averaged(optim.by_name("sgd", RATE), DECAY)):
        mesh = mx.Mesh("data:2 model:4", abstract=True)
        state = mx.spmd(optimizer.init, mesh, LAYOUTS[label]).trace(start()).results
        report = mx.spmd(step(optimizer), mesh, LAYOUTS[label]).explain(start(), state, 1.0)
        sent.append(report.wire_bytes)
    assert sent[0] == sent[1]


test_messages = pinned(
    {
        "all of itself": (
            mx.ArgumentError,
            lambda: optim.averaged(optim.by_name("sgd", 0.1), 1.0),
            """
            a moving average cannot keep 1.0 of itself.
              fix: give a number between 0 and 1, as in 0.999.
            """,
        ),
    }
)
