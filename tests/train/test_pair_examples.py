"""Runs that translate, from files of pairs to BLEU: what they read, store, say and evaluate on."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import meshax as mx
from meshax.data.pair_packing import PackedPairs
from meshax.errors import ArgumentError, TrainingError
from meshax.train.config import TrainConfig
from meshax.train.loop import Run, run_config
from meshax.train.metrics import read_metrics
from meshax.train.options import DataOptions
from meshax.train.pair_examples import PairExamples, stored_vocabularies
from meshax.train.text_options import TextOptions
from messages import pinned
from runs import PAIRS, SMALL_TRANSLATOR, small_translator, write_pairs

QUIET = Console(quiet=True)


def heard():
    return Console(record=True, width=300, file=io.StringIO())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A whole run, and what it said."""
    folder, console = tmp_path_factory.mktemp("pairs"), heard()
    run = Run(small_translator(folder), console)
    run.train()
    return run, console.export_text()


def texts_of(tokens, words):
    return [words.decode(tokens.document(number)) for number in range(tokens.num_documents)]


def test_a_run_reads_stores_and_says(trained):
    run, said = trained
    examples = run.examples
    pairs = [
        pair
        for part in (examples.train, examples.held_out)
        for pair in zip(*(texts_of(side, words) for side, words in zip(part, examples.vocabularies)))
    ]
    assert sorted(pairs) == sorted(PAIRS)
    assert set(texts_of(examples.train[0], examples.vocabularies[0])).isdisjoint(examples.held_out_texts()[0])
    assert examples.held_out_texts(3) == tuple(list(side)[:3] for side in examples.held_out_texts())
    result = json.loads((run.directory / "result.json").read_text())
    assert {"perplexity", "bits_per_byte", "bleu", "chrf", "pairs", "held_out_pairs", "bigram_perplexity"} <= set(
        result
    )
    assert result["pairs"] + result["held_out_pairs"] == len(PAIRS)
    assert "8 x 24 = 192 tokens a step, source length 20" in said
    assert "BLEU" in said and "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0, 4 translations" in said
    assert "not: " in said  # of four steps


def test_it_goes_on_without_its_files_as_if_nothing_had_happened(trained, tmp_path):
    whole, _ = trained
    shutil.copytree(whole.directory, tmp_path / "run")
    (last,) = (tmp_path / "run" / "checkpoints").glob("*-step-*4")
    shutil.rmtree(last)
    config = small_translator(tmp_path, data=whole.config.data, translations=0)
    gone = [Path(name).with_suffix(".gone") for name in (*config.data.source, *config.data.target)]
    for name, other in zip((*config.data.source, *config.data.target), gone):
        Path(name).rename(other)
    console = heard()
    Run(config, console).train()
    assert "resumed at step 2" in console.export_text()
    losses = [
        {row["step"]: row["loss"] for row in read_metrics(folder / "metrics.jsonl") if "loss" in row}
        for folder in (whole.directory, tmp_path / "run")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 4


def test_evaluating_on_other_pairs_and_without_tokens(trained, tmp_path):
    run, _ = trained
    config = run_config(run.directory)
    (tmp_path / "b.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS[::7]) + "no pair\n")
    looking, console = Run(config, QUIET, read_only=True), heard()
    looking.console = console
    looking.use_other_text(TextOptions(pairs=(str(tmp_path / "b.tsv"),)))
    model = looking.restored()[0].model
    assert looking.examples.held_out_texts() == tuple(list(side) for side in zip(*PAIRS[::7]))
    assert "1 line that is not a pair" in console.export_text()
    assert looking.evaluate(model).count == looking.examples.amounts()[1]


def test_packed_losses_are_the_sum_of_the_unpacked(trained):
    """The loss of the packed rows is that of each pair alone."""
    run, _ = trained
    model = run.restored()[0].model
    source, target = run.examples.held_out
    packed = PackedPairs(source, target, 20, 24)
    rows = packed.read(range(len(packed)))
    assert rows["segments"].max() > 2
    alone = {name: [] for name in rows}
    for row in range(len(packed)):
        for segment in range(1, rows["segments"][row].max() + 1):
            masks = [rows[name][row] == segment for name in ("inputs_segments", "segments")]
            for name, array in rows.items():
                mask = masks[0] if name.startswith("inputs") else masks[1]
                one = np.zeros_like(array[row])
                one[: mask.sum()] = 1 if name.endswith("segments") else array[row][mask]
                alone[name].append(one)
    losses = []
    for arrays in (rows, {name: np.stack(array) for name, array in alone.items()}):
        batch, sizes = mx.Dim("batch", len(arrays["inputs"])), {"source_length": 20, "length": 24}
        tensors = {
            name: mx.tensor(
                array, (batch, mx.Dim(one := "source_length" if "inputs" in name else "length", sizes[one]))
            )
            for name, array in arrays.items()
        }
        loss, count = mx.spmd(lambda model, batch: model.loss(batch), run.mesh, run.layout)(model, tensors)
        assert float(count) == target.num_tokens
        losses.append(float(loss))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


LAYOUTS = {
    "data": "data:4",
    "model": "model:2",
    "data+model": "data:2 model:2",
    "fsdp": "data:4",
    "sequence": "data:2 model:2",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_losses_under_every_layout(trained, tmp_path, layout):
    run, _ = trained
    config = small_translator(tmp_path, mesh=LAYOUTS[layout], layout=layout, translations=0, save_every=99)
    Run(config, QUIET).train()
    here, there = (
        [row["loss"] for row in read_metrics(directory / "metrics.jsonl") if "loss" in row]
        for directory in (config.directory(), run.directory)
    )
    assert here == pytest.approx(there, rel=2e-5) and len(here) == 4


def opened(folder, console=QUIET, **changes):
    config = small_translator(folder, **changes)
    return PairExamples.open(config, console)


def test_the_pairs_that_are_made_by_rules(tmp_path):
    console = heard()
    examples = opened(tmp_path, console, data=DataOptions(max_documents=300), vocab=400, length=64, source_length=64)
    sources, targets = examples.held_out_texts()
    assert len(sources) == 300 == examples.train[0].num_documents
    written = tmp_path / "run" / "pairs"
    assert (written / "held_out.fr").read_text().split("\n")[:300] == targets
    assert "numbers, dates and times in English and French" in console.export_text()
    again = opened(tmp_path, data=DataOptions(max_documents=300), vocab=400, length=64, source_length=64)
    assert again.train[0].fingerprint == examples.train[0].fingerprint


def test_separate_subwords(tmp_path):
    data = replace(write_pairs(tmp_path / "pairs"), separate=True)
    examples = opened(tmp_path, data=data)
    source, target = examples.vocabularies
    assert source.fingerprint != target.fingerprint
    assert small_translator(tmp_path, data=data).model().source_embedding
    assert [words.fingerprint for words in stored_vocabularies(tmp_path / "run")] == [
        source.fingerprint,
        target.fingerprint,
    ]
    pairs = zip(*examples.held_out_texts())
    assert set(pairs) <= set(PAIRS)
    named = replace(data, vocabulary=str(tmp_path / "run" / "vocabulary.json"), separate=False)
    joint = opened(tmp_path, out="joint", data=named)
    assert joint.vocabularies[0].fingerprint == joint.vocabularies[1].fingerprint == source.fingerprint
    both = replace(data, target_vocabulary=str(tmp_path / "run" / "vocabulary.json"))
    assert opened(tmp_path, out="both", data=both).vocabularies[1].fingerprint == source.fingerprint


def test_the_model_with_a_prefix_translates_with_words_of_both_sides(tmp_path):
    data = replace(write_pairs(tmp_path / "pairs"), separate=True)
    fields = SMALL_TRANSLATOR | {"max_length": 44}
    config = small_translator(tmp_path, preset="prefix-tiny", model_=fields, data=data, mesh="x:2", layout="vocab:x")
    console = heard()
    run = Run(config, console)
    run.train()
    assert json.loads((run.directory / "result.json").read_text())["bleu"] >= 0
    assert "BLEU" in console.export_text()
    losses = [row["loss"] for row in read_metrics(run.directory / "metrics.jsonl") if "loss" in row]
    assert len(losses) == 4 and losses[-1] < losses[0]
    after = TrainConfig(from_=str(run.directory), out=str(tmp_path / "after"), data=replace(data, separate=False))
    words = PairExamples.open(after, QUIET).vocabularies
    assert [one.fingerprint for one in words] == [one.fingerprint for one in run.examples.vocabularies]


def test_pairs_to_evaluate_on_and_what_is_left_out(tmp_path):
    train = write_pairs(tmp_path / "pairs", [*PAIRS, ("x" * 100, "y"), ("", "z")])
    other = write_pairs(tmp_path / "other", PAIRS[:9])
    data = replace(train, validation_source=other.source, validation_target=other.target)
    console = heard()
    examples = opened(tmp_path, console, data=data)
    assert examples.held_out_texts() == tuple(list(side) for side in zip(*PAIRS[:9]))
    assert examples.train[0].num_documents == len(PAIRS) + 1
    said = console.export_text()
    assert f"1 pair with an empty side ({tmp_path}/pairs/a.en, line {len(PAIRS) + 2})" in said
    assert "left out of the 561 pairs to train on: 1, which are longer than 20 source or 24 target tokens" in said


def few(folder):
    return opened(folder, data=write_pairs(folder / "few", PAIRS[:1]))


def test_too_few_pairs(tmp_path):
    with pytest.raises(TrainingError, match="there are too few pairs to hold some of them out.\n  values: 1 pairs"):
        few(tmp_path)


def checked(**data):
    TrainConfig(preset="wmt-tiny", data=DataOptions(**data), mesh="x:1", layout="none").check()


test_messages = pinned(
    {
        "text": (
            ArgumentError,
            lambda: checked(text=("a.txt",)),
            """
            data.text is 'a.txt', and the model learns from pairs of texts.
              fix: leave it out; pairs are data.source= and data.target=, or data.pairs=.
            """,
        ),
        "bytes": (
            ArgumentError,
            lambda: checked(max_bytes=5),
            """
            data.max_bytes is 5, and the model learns from pairs of texts.
              fix: leave it out; pairs are data.source= and data.target=, or data.pairs=.
            """,
        ),
        "one embedding for two vocabularies": (
            ArgumentError,
            lambda: TrainConfig(
                preset="wmt-tiny", data=DataOptions(separate=True), model_={"source_embedding": "false"}
            ).model(),
            """
            data.separate is True, and model.source_embedding is 'false'.
              rule: subwords of one embedding are of one vocabulary.
              fix: leave one of them out.
            """,
        ),
    }
)
