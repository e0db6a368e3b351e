"""The same step by other programs: what is made of several measurements of one."""

from meshax.bench.beside import together
from meshax.bench.step import Measurement


def measured(rounds, compiling, tracing, peak):
    return Measurement(
        "jax", 7, 12, sorted(rounds)[1], rounds, compiling, tracing, peak, 1e12, 2e12, 3.5, "a GPU", {"products": 0.5}
    )


def test_turns_are_one_measurement():
    turns = [
        measured((0.3, 0.5, 0.4), 9.0, 0.7, 5),
        measured((0.1, 0.2, 0.9), 4.0, 0.4, 6),
        measured((0.6, 0.7, 0.8), 5.0, 0.5, 4),
    ]
    got = together(turns)
    assert got.rounds == (0.3, 0.5, 0.4, 0.1, 0.2, 0.9, 0.6, 0.7, 0.8) and got.seconds == 0.5
    assert (got.compile_seconds, got.trace_seconds, got.peak_bytes) == (5.0, 0.5, 6)
    assert got.utilization == 1.0 and got.kernels == {"products": 0.5}
