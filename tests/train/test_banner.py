"""What a run says before its first step; nothing is trained."""

from dataclasses import replace

import pytest
from rich.console import Console

from meshax.plan.printing.units import show_bytes
from meshax.train.banner import banner
from meshax.train.loop import Run
from meshax.train.options import OptimizerOptions
from runs import small, write_text

SPLIT = """
model   tiny, 470,656 parameters: d_model 128, heads 8, d_kv 16, d_ff 512, layers 2, vocab 300
data    3,342 tokens, 1,113 held out; 12 steps are 0.919 epochs
batch   8 x 32 = 256 tokens a step
mesh    data:2 model:4, 8 x cpu
layout  batch:data heads:model d_ff:model vocab:model
rate    0.003 by adamw, cosine, warm-up of 1
memory  {memory} on each processor predicted, of 2 GB
sends   1.46 MB by each processor in a step, in 27 collectives
"""
WHOLE = """
batch   8 x 32 = 256 tokens a step, in 2 microbatches
mesh    x:1, 1 x cpu
layout  none
rate    0.5 by sgd, linear to 0.01
sends   nothing
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("banner")
    write_text(folder / "text")
    return folder


def lines_of(config):
    return banner(Run(config, Console(quiet=True)))


def test_a_split_run(folder):
    run = Run(small(folder), Console(quiet=True))
    memory = show_bytes(run.report.memory["peak"])
    assert banner(run) == SPLIT.format(memory=memory).strip().splitlines()


def test_a_whole_run_with_other_options(folder):
    optimizer = OptimizerOptions("sgd", 0.5, "linear", warmup=0, min_rate=0.01, microbatches=2)
    lines = lines_of(replace(small(folder, "whole"), mesh="x:1", layout="none", optimizer=optimizer, memory="1GB"))
    assert set(WHOLE.strip().splitlines()) <= set(lines)
    assert [line for line in lines if line.startswith("memory ")][0].endswith(", of 1 GB")
