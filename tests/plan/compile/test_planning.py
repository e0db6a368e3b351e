"""Plans for machines that are not there. What needs no compiler is tested without; the rest is `make test-tpu`."""

import jax
import numpy as np
import pytest

import decoder
import meshax as mx
from meshax.plan.compile.hlo import CompiledCollective
from meshax.plan.compile.planning import CompilerMemory, Plan, count_tokens, plan
from meshax.plan.compile.schedule import ARITHMETIC, PRODUCTS
from meshax.plan.cost.hardware import KNOWN
from messages import pinned

TENSOR = "batch:data heads:model d_ff:model vocab:model"


test_messages = pinned(
    {
        "no program": (
            mx.ArgumentError,
            lambda: plan(print),
            """
            a plan is of a program, not of builtin_function_or_method.
              fix: make one: mx.spmd(fn, mesh, layout).
            """,
        ),
        "nothing to compile for": (
            mx.MeshError,
            lambda: plan(mx.spmd(lambda x: x, mx.Mesh("data:2", abstract=True), "")),
            """
            a plan is compiled, and this mesh has nothing to compile for.
              values: Mesh(data:2, abstract)
              fix: leave out abstract=True, or name a machine: mx.Mesh("data:32 model:16", topology="tpu v2:16x16").
            """,
        ),
    }
)


def test_tokens():
    batch, length, vocab = mx.dims(batch=4, length=6, vocab=10)
    words = mx.Tensor(jax.ShapeDtypeStruct((4, 6), np.int32), (batch, length))
    numbers = mx.zeros((batch, length, vocab))
    assert count_tokens(({"w": numbers}, words, words)) == 24
    assert count_tokens((numbers,)) == 0


def made(memory, refusal="", collectives=()):
    mesh = mx.Mesh("data:2 model:4", abstract=True)
    report = mx.spmd(decoder.sgd, mesh, TENSOR).explain(decoder.init(), *decoder.tokens())
    return Plan(report, KNOWN["tpu-v2"], memory, refusal, list(collectives), 128, {"compiling": 2.5})


def test_a_plan_that_fits():
    one = made(CompilerMemory(5, 4, 3, 10**9, 100), collectives=[CompiledCollective("permute", (("f32", (8,)),), 0, 3)])
    assert one.fits and one.memory.total == 10**9 + 106
    data = one.as_dict()
    assert data["fits"] and data["memory"]["temporaries"] == 10**9
    assert data["collectives_by_kind"]["permute"]["compiled"] == {"operations": 3, "tensors": 3, "bytes": 96}
    assert data["tokens_per_second"] == pytest.approx(128 / data["seconds"])
    assert data["estimated_memory"] == one.report.memory
    text = str(one)
    assert "hidden" not in text and data["exposed"] == {"operations": 3, "tensors": 3, "bytes": 96}
    hidden, partly = (
        CompiledCollective("all-gather", (("f32", (8,)),), 4, count, beside)
        for count, beside in ((2, PRODUCTS), (5, ARITHMETIC))
    )
    some = made(one.memory, collectives=[*one.collectives, hidden])
    said = "in the compiler's schedule {} operations, {} bytes, are hidden behind products, {}and 3, 96 bytes, exposed."
    assert said.format(2, 64, "") in str(some).splitlines()
    assert some.as_dict()["hidden"] == {"operations": 2, "tensors": 2, "bytes": 64}
    every = made(one.memory, collectives=[*some.collectives, partly])
    assert said.format(2, 64, "5, 160 bytes, beside other arithmetic alone, ") in str(every).splitlines()
    assert every.as_dict()["beside_arithmetic"] == {"operations": 5, "tensors": 5, "bytes": 160}
    one.report.overlap = True
    assert said.format(0, 0, "") in str(one).splitlines() and "hidden behind computation" in str(one).splitlines()[-3]
    assert "fits: 1 GB of the 8.59 GB of a tpu-v2 processor, 12%" in text
    assert "permute: 3 are the compiler's own" in text
    assert "tokens/s: 128 in a call" in text and "took: compiling 2.5 s" in text


def test_a_plan_without_collectives():
    x = mx.Tensor(jax.ShapeDtypeStruct((4,), np.float32), mx.dims(batch=4))
    report = mx.spmd(lambda x: x + 1, mx.Mesh("data:2", abstract=True), "batch:data").explain(x)
    one = Plan(report, KNOWN["h200"], CompilerMemory(8, 8, 0, 0, 100), "", [], 0, {})
    assert "\nno collectives\n" in str(one)


def test_a_plan_that_does_not_fit():
    assert not made(CompilerMemory(0, 0, 0, 9 * 10**9, 0)).fits
    large = made(CompilerMemory(0, 0, 0, 9 * 10**9, 0))
    assert large.missing == large.as_dict()["missing"] == 9 * 10**9 - 2**33
    assert "does NOT fit: 9 GB of the 8.59 GB of a tpu-v2 processor, 105%, 410 MB are missing" in str(large)
    refused = made(None, "Ran out of memory on HBM.")
    assert not refused.fits and refused.as_dict()["memory"] is None
    assert "does NOT fit the 8.59 GB of a tpu-v2 processor. The compiler says: Ran out of memory on HBM." in str(
        refused
    )


@pytest.mark.parametrize(
    "words", ["HLO temporaries (9.75G) exceeds available HBM (7.50G).", "Used 9.75G of 7.50G hbm. Exceeded by 2.25G."]
)
def test_a_refusal_says_what_is_missing(words):
    refused = made(None, words)
    assert refused.missing == 2.25 * 2**30
    assert f"of a tpu-v2 processor: 2.42 GB are missing. The compiler says: {words}" in str(refused)


def test_a_page(tmp_path):
    path = made(CompilerMemory(0, 0, 0, 0, 0)).to_html(tmp_path / "plan.html")
    assert path.read_text().startswith("<!doctype html>")


def test_the_compiler_of_devices_that_are_there():
    program = mx.spmd(decoder.sgd, mx.Mesh("data:2 model:4"), TENSOR)
    args = decoder.init(), *decoder.tokens()
    one = plan(program, *args, hardware="cpu")
    stats = program.compile(*args).memory_analysis()
    assert one.memory.temporaries == stats.temp_size_in_bytes
    assert one.memory.arguments == one.estimate["arguments"] == stats.argument_size_in_bytes
    assert one.fits and one.as_dict()["topology"] == "cpu"
    assert one.compiled["all-reduce"].bytes == one.ours["all-reduce"].bytes


@pytest.mark.tpu
def test_the_compiler_answers():
    stages = []
    program = mx.spmd(decoder.sgd, mx.Mesh("data:2 model:4", topology="tpu v4:2x2x1"), TENSOR)
    one = plan(program, decoder.init(), *decoder.tokens(), progress=stages.append)
    assert stages == ["tracing", "lowering", "compiling", "reading"] == list(one.took)
    assert one.fits and one.hardware.name == "tpu-v4" and one.tokens == 128
    assert one.compiled["all-reduce"].tensors == one.ours["all-reduce"].tensors
    assert one.compiled["all-reduce"].bytes == one.ours["all-reduce"].bytes
    assert one.compiled["all-reduce"].operations < one.ours["all-reduce"].operations


@pytest.mark.tpu
def test_what_does_not_fit_is_an_answer():
    (huge,) = mx.dims(huge=2**33)
    x = mx.Tensor(jax.ShapeDtypeStruct((2**33,), np.float32), (huge,))
    program = mx.spmd(lambda x: mx.cumsum(x, "huge"), mx.Mesh("data:8", topology="tpu v2:2x2"), "")
    one = plan(program, x)
    assert not one.fits and "memory" in one.refusal
