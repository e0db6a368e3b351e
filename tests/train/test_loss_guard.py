"""What happens when the loss is not a number, or leaps."""

import math

import numpy as np
import pytest

from meshax.errors import TrainingError
from meshax.train.loss_guard import Guard

BATCH = {"tokens": np.arange(6).reshape(2, 3)}


def watched(guard, losses, first=1):
    for step, loss in enumerate(losses, first):
        guard.check(step, loss, math.isfinite(loss), BATCH)


def test_stop_saves_the_batch(tmp_path):
    guard = Guard(tmp_path)
    with pytest.raises(TrainingError) as raised:
        watched(guard, [2.0, 2.5, math.nan])
    assert str(raised.value) == (
        "the loss or the gradients at step 3 are not numbers.\n"
        "  values: loss nan, before it around 2.25\n"
        "  rule: the run stops; its last checkpoint stays, and the batch is saved.\n"
        f'  fix: look at {tmp_path}/batch-3.npz; lower the learning rate, clip gradients, or pass on_nan="skip".'
    )
    with np.load(tmp_path / "batch-3.npz") as saved:
        np.testing.assert_array_equal(saved["tokens"], BATCH["tokens"])


def test_gradients_that_are_not_finite_stop_too(tmp_path):
    with pytest.raises(TrainingError, match="loss 2, before it around nan"):
        Guard(tmp_path).check(1, 2.0, False, BATCH)


def test_skip_goes_on_for_a_while(tmp_path):
    guard = Guard(tmp_path, "skip", patience=3)
    watched(guard, [2.0, math.nan, math.inf, math.nan, 2.0, math.nan, math.nan, math.nan])
    assert not list(tmp_path.iterdir())
    with pytest.raises(TrainingError, match="at step 9 are not numbers") as raised:
        watched(guard, [math.nan], 9)
    assert str(raised.value).endswith("lower the learning rate, clip gradients, look at the data.")


def test_a_leap(tmp_path):
    losses = [*np.linspace(4, 2, 20), 5.0]
    watched(Guard(tmp_path), losses)  # any loss is fine
    watched(Guard(tmp_path, spike=3.0), [2.0] * 9 + [90.0])  # too early to know
    with pytest.raises(TrainingError, match="the loss at step 11 leapt"):
        watched(Guard(tmp_path, spike=3.0), [2.0] * 10 + [90.0])
    with pytest.raises(TrainingError) as raised:
        watched(Guard(tmp_path, spike=1.5), losses)
    assert str(raised.value) == (
        "the loss at step 21 leapt.\n"
        "  values: loss 5, before it around 3\n"
        "  rule: the run stops; its last checkpoint stays, and the batch is saved.\n"
        f"  fix: look at {tmp_path}/batch-21.npz; lower the learning rate, clip gradients, or pass a spike= above 1.5."
    )
