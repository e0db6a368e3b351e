"""`meshax bench decode`: the table, the JSON, and what is refused."""

import dataclasses
import json

import pytest

from meshax.bench.decode import Decoding, Measurement
from meshax.cli import bench_decode, main

MEASURED = Measurement(
    "meshax", "tiny", 656_000, 8, 1024, 64, 0.002, (0.001, 0.002, 0.003), 0.04, 9.0, 4e9, 8e8, 4.8e12, 3 << 30,
    "a processor", {"products": 0.0015, "idle": 0.0005},
)  # fmt: skip
TABLE = """\
tiny: 656,000 parameters, texts of 1,024 tokens, a processor

program  slots   a token     bound  share  tokens/s  first token  peak memory
meshax       8  2.000 ms  1.000 ms  50.0%     4,000      42.0 ms      3.0 GiB
jax          8  4.000 ms  1.000 ms  25.0%     2,000                   unknown

ms of a profiled token  slots  products   idle
meshax                      8     1.500  0.500

bound: bytes (4.8 TB/s)"""


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch):
    """The tests' own: JAX is in use already."""
    monkeypatch.setattr(bench_decode, "use_processors", lambda mesh: None)


def test_the_table():
    by_hand = dataclasses.replace(MEASURED, program="jax", seconds=0.004, prompt_seconds=0.0, peak_bytes=0, kernels={})
    assert bench_decode.as_text([MEASURED, by_hand], "bytes") == TABLE


def test_each_number_of_slots(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("meshax.bench.decode.measure", lambda *what, say: asked.append(what) or MEASURED)
    assert main(["bench", "decode", "--slots", "1,8", "--context", "128", "--model.layers", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [one["share"] for one in data["measurements"]] == [0.5, 0.5]
    first = Decoding("tiny", context=128, fields={"layers": "1"})
    assert asked == [(first, 5), (dataclasses.replace(first, slots=8), 5)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "0"], "--rounds is 0."),
        (["--slots", "1,many"], "'many' is no number of slots."),
        (["--slots", ""], "there is no number of slots."),
        (["--slots", "0"], "slots is 0."),
        (["--context", "32"], "64 tokens are written in texts of 32."),
        (["--beside", "tensorflow"], "there is no program 'tensorflow'."),
        (["--beside", "jax", "--mesh", "model:8"], "programs by hand run on one processor."),
        (["--beside", "jax", "--model.window", "8"], "no program by hand has such parts."),
        (["--preset", "tinny"], "there is no preset 'tinny'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_refused(arguments, words, capsys):
    assert main(["bench", "decode", *arguments]) == 2
    assert words in capsys.readouterr().err
