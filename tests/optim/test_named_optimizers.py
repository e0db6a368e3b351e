"""Optimizers by name. That each is right under every layout is tested in test_contract.py."""

import jax
import numpy as np
import optax
import pytest

import meshax as mx
from meshax import optim
from messages import pinned

rows, cols = mx.dims(rows=6, cols=10)
W = mx.param(mx.tensor(np.sin(np.arange(60.0)).reshape(6, 10).astype(np.float32), (rows, cols)))
RATE = optim.schedules.linear(0.1, steps=5)
FROM_OPTAX = {
    "adamw": (
        {"beta1": 0.8, "beta2": 0.9, "epsilon": 0.01, "weight_decay": 0.1},
        optax.adamw(RATE, b1=0.8, b2=0.9, eps=0.01, weight_decay=0.1),
    ),
    "momentum": ({}, optax.sgd(RATE, momentum=0.9)),
    "sgd": ({"momentum": 0.5, "nesterov": True}, optax.sgd(RATE, momentum=0.5, nesterov=True)),
}


@pytest.mark.parametrize("name", FROM_OPTAX)
def test_those_of_optax_are_optaxs(name):
    options, theirs = FROM_OPTAX[name]
    ours = optim.by_name(name, RATE, **options)
    state, got, their_state, wanted = ours.init(W), W, theirs.init(W.numpy()), W.numpy()
    for _ in range(3):
        got, state = ours.apply(W, state, got)
        updates, their_state = theirs.update(W.numpy(), their_state, wanted)
        wanted = optax.apply_updates(wanted, updates)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-6)
    assert jax.tree.structure(jax.tree.leaves(state)) == jax.tree.structure(jax.tree.leaves(their_state))


def test_adafactor_takes_its_options():
    assert optim.by_name("adafactor", RATE, momentum=0.9, stacked="rows") == optim.Adafactor(
        RATE, momentum=0.9, stacked="rows"
    )


test_messages = pinned(
    {
        "an unknown name": (
            mx.ArgumentError,
            lambda: optim.by_name("adam", 0.1),
            """
            there is no optimizer 'adam'.
              fix: did you mean "adamw"?
            """,
        ),
        "an unknown option": (
            mx.ArgumentError,
            lambda: optim.by_name("adafactor", 0.1, weight_decai=0.1),
            """
            the optimizer 'adafactor' has no option 'weight_decai'.
              fix: did you mean "weight_decay"?
            """,
        ),
        "no rate": (
            mx.ArgumentError,
            lambda: optim.by_name("sgd", None),
            """
            a learning rate is a number or a function of the step, not None.
              fix: make a function with optim.schedules.by_name.
            """,
        ),
    }
)
