"""Hidden tokens: how many, which, the same for all processes, and a run that learns to fill them in."""

import numpy as np
import pytest
from rich.console import Console

from meshax.train.loop import Run
from meshax.train.masked_text import MaskedBatches, masked
from runs import small, write_text


def text(rows=64, length=50):
    tokens = 2 + (np.arange(rows * length).reshape(rows, length) * 17) % 98
    segments = np.ones((rows, length), np.int32)
    segments[:, 45:] = 0
    return {"tokens": tokens.astype(np.int32), "segments": segments, "weights": segments.copy()}


def test_what_is_hidden():
    given = text()
    out = masked(given, (0, 1), 100)
    chosen, read, real = out["weights"] > 0, out["tokens"], given["tokens"]
    np.testing.assert_array_equal(out["targets"], real)
    np.testing.assert_array_equal(read[~chosen], real[~chosen])
    assert not chosen[:, 45:].any()
    share = chosen[:, :45].mean()
    hidden, same = (read[chosen] == 0).mean(), (read[chosen] == real[chosen]).mean()
    assert abs(share - 0.15) < 0.02 and abs(hidden - 0.8) < 0.06 and 0.03 < same < 0.18
    assert read[chosen].max() < 100 and not (read[chosen] == 1).any()


def test_it_follows_from_the_seed_the_batch_and_the_tokens():
    given = text()
    whole = masked(given, (0, 1), 100)
    half = masked({name: array[32:] for name, array in given.items()}, (0, 1), 100)
    np.testing.assert_array_equal(whole["tokens"][32:], half["tokens"])
    for seed in ((0, 2), (1, 1)):
        assert (masked(given, seed, 100)["weights"] != whole["weights"]).any()


class Repeating:
    """The same batch again and again."""

    def __next__(self):
        return text()

    def state(self):
        return {"place": 3}

    def restore(self, state):
        assert state == {"place": 3}


def test_a_stream_goes_on_where_it_was():
    stream = MaskedBatches(Repeating(), 5, 100)
    first, second, state = next(stream), next(stream), stream.state()
    assert (first["weights"] != second["weights"]).any()
    third = next(stream)
    other = MaskedBatches(Repeating(), 5, 100)
    other.restore(state)
    assert other.position == 2 and stream.position == 3
    np.testing.assert_array_equal(next(other)["tokens"], third["tokens"])


@pytest.mark.exhaustive
def test_a_run_learns_to_fill_in(tmp_path):
    write_text(tmp_path / "text")
    places = dict(mesh="data:1", layout="data", eval_every=12, save_every=12, dropout=0.0)
    result = Run(small(tmp_path, preset="masked-tiny", **places), Console(quiet=True)).train()
    assert set(result.figures()) >= {"perplexity", "accuracy"}
    assert result.metrics["perplexity"] < 200 and 0 <= result.metrics["accuracy"] <= 1  # of 300 tokens
