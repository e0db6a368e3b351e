"""`meshax bench step`: the table, the JSON, and what is refused."""

import dataclasses
import json

import jax
import pytest

from meshax.bench.step import Measurement, Step
from meshax.cli import bench_step, main
from meshax.errors import ArgumentError

SMALL = ["bench", "step", "--batch", "8", "--length", "16", "--rounds", "1", "--steps", "1"]


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch):
    """The tests' own: JAX is in use already, and others' programs may be kept."""
    monkeypatch.setattr(bench_step, "use_processors", lambda mesh: None)
    keeps = jax.config.values["jax_enable_compilation_cache"]
    yield
    jax.config.update("jax_enable_compilation_cache", keeps)


MEASURED = Measurement(
    "meshax", 656_000, 128, 0.5, (0.4, 0.5, 0.6), 4.0, 0.25, 3 << 30, 1e9, 1e10, 7.1, "a processor",
    {"products": 0.3, "collectives": 0.15, "idle": 0.05}, "everything",
)  # fmt: skip
TABLE = """\
656,000 parameters, 128 tokens a step, a processor

program      step  tokens/s  utilization  peak memory  compiling  tracing       keeps
meshax   500.0 ms       256        20.0%      3.0 GiB      4.0 s    0.2 s  everything

ms of a profiled step  products  collectives  idle
meshax                    300.0        150.0  50.0

utilization: 6 x"""


def test_tables_fit_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = bench_step.as_text([MEASURED], "6 x").splitlines()
    assert max(map(len, lines[2:-1])) <= 60
    assert "meshax: step 500.0 ms, tokens/s 256, utilization 20.0%, peak" in lines
    assert "ms of a profiled step  products  collectives  idle" in lines


def test_a_peak_that_nobody_knows():
    text = bench_step.as_text([dataclasses.replace(MEASURED, peak_flops=0.0)], "6 x")
    assert text.startswith(TABLE.replace("  20.0%", "unknown"))


def test_what_is_unknown_is_null():
    measured = dataclasses.replace(MEASURED, peak_flops=0.0, peak_bytes=0).as_dict()
    assert [measured[name] for name in ("peak_flops", "peak_bytes", "utilization")] == [None] * 3
    assert MEASURED.as_dict()["peak_bytes"] == 3 << 30


def test_the_table(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("meshax.bench.step.measure", lambda *what, say: asked.append(what) or MEASURED)
    assert main([*SMALL, "--mesh", "data:2 model:4", "--layout", "data+model", "--keep", "nothing"]) == 0
    assert capsys.readouterr().out.startswith(TABLE)
    step = Step("tiny", 8, 16, mesh="data:2 model:4", layout="data+model", keep="nothing")
    assert asked == [(step, 1, 1)]


def test_what_was_measured_is_reported_whoever_fails(capsys, monkeypatch):
    def in_turns(programs, step, turns, steps, profile, say, limit):
        assert (programs, turns, steps, limit) == (("meshax", "jax", "torch"), 1, 1, 90.0)
        say("torch: compiling")
        yield MEASURED
        raise ArgumentError("the program 'torch' gave no answer in 90 seconds.")

    monkeypatch.setattr("meshax.bench.beside.in_turns", in_turns)
    monkeypatch.setattr("meshax.bench.beside.check", lambda *_: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # whether PyTorch is here or not
    assert main([*SMALL, "--beside", "jax,torch", "--limit", "90", "--json"]) == 1
    out, err = capsys.readouterr()
    assert [one["program"] for one in json.loads(out)["measurements"]] == ["meshax"]
    assert err.splitlines() == [
        "torch: compiling",
        "meshax: 500.000 ms",
        "meshax: the program 'torch' gave no answer in 90 seconds.",
    ]


@pytest.mark.exhaustive
def test_beside_by_hand(capsys):
    assert main([*SMALL, "--model.positions", "sinusoidal", "--beside", "jax", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [one["program"] for one in data["measurements"]] == ["meshax", "jax"]
    assert all(one["seconds"] > 0 and one["kernels"]["products"] > 0 for one in data["measurements"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "0"], "--rounds is 0."),
        (["--batch", "-1"], "the batch is -1."),
        (["--length", "-3"], "the length is -3."),
        (["--optimizer", "adamx"], "there is no optimizer 'adamx'."),
        (["--layout", "btch:data"], "no dim 'btch' was ever made"),
        (["--rings", "nosuch"], "no mesh axis 'nosuch'"),
        (["--compiler-options", "foo"], "'foo' is no option of the compiler."),
        (["--compiler-options", "xla_nonsense=1"], "values: No such compile option: 'xla_nonsense'"),
        (["--keep", "everything", "--model.keep", "nothing"], "--keep is 'everything', and --model.keep is 'nothing'."),
        (["--layers-as", "loop", "--model.layers-as", "unrolled"], "--layers-as is 'loop', and --model.layers-as is "),
        (["--limit", "60"], "--limit is 60."),
        (["--preset", "tinny"], "there is no preset 'tinny'."),
        (["--layers-as", "spun"], "there is no way 'spun' to go through layers."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_refused(arguments, words, capsys):
    assert main(["bench", "step", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tensorflow"], "there is no program 'tensorflow'."),
        (["jax", "--mesh", "data:8"], "programs by hand run on one processor."),
        (["jax", "--limit", "-1"], "--limit is -1."),
        (["jax", "--packed", "--overlap"], "no program by hand does that.\n  values: --packed; --overlap"),
        (["jax", "--layout", "data"], "values: --layout data"),
        (["jax", "--optimizer", "sgd"], "values: --optimizer sgd (they have adafactor)"),
        (["jax", "--keep", "collectives"], "values: --keep collectives (it has nothing, products, everything)"),
        (["jax", "--model.tied", "true"], "no program by hand has such parts.\n  values: tied True"),
        (["jax", "--model.dropout", "0.1"], "values: dropout 0.1"),
        (["jax", "--model.window", "8"], "values: window 8"),
        (["jax", "--preset", "tiny"], "values: positions rotary"),
        (["jax", "--preset", "modern-1b"], "values: kv_heads 8, activation silu, gated True, positions rotary"),
        (["torch"], "PyTorch is not installed here."),
        (["torch", "--dtype", "float32"], "values: --dtype float32 (torch has bfloat16)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nothing_else_is_measured_beside(arguments, words, capsys, monkeypatch):
    """A program by hand is the same model, or there is none."""
    if len(arguments) > 1:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # whether PyTorch is here or not
    assert main(["bench", "step", "--preset", "lm-0.14b", "--beside", *arguments]) == 2
    assert words in capsys.readouterr().err
