"""Runs of weights from elsewhere: they come in and go out byte for byte, and are runs like any other."""

import filecmp
import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

import meshax as mx
from extent import some
from meshax.tensors import is_tensor
from meshax.train.config import TrainConfig, run_config
from meshax.train.foreign import export_run, import_folder
from meshax.train.loop import Run
from meshax.train.metrics import read_metrics
from meshax.train.options import DataOptions, OptimizerOptions
from meshax.weights import Folder, load
from messages import pinned
from runs import write_text

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face"
FAMILIES = ("llama", "llama3", "mistral", "qwen2", "qwen3", "gpt2")
QUIET = Console(quiet=True)


def folder_of(name, to):
    """A folder of a model with its tokenizer: they all have the same, which has words for the text of the tests."""
    shutil.copytree(GOLDEN / name, to)
    for document in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / "llama" / document, to)
    return to


def imported(name, to, **options):
    """The configuration of an imported run."""
    import_folder(folder_of(name, to / name), TrainConfig(out=str(to / "run"), batch=8, length=32), **options)
    return run_config(to / "run")


def differing_files(one, other):
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    return filecmp.cmpfiles(one, other, names, shallow=False)[1:]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_comes_back_byte_for_byte(name, tmp_path):
    config = imported(name, tmp_path)
    export_run(config, tmp_path / "out")
    assert differing_files(tmp_path / name, tmp_path / "out") == ([], [])


def test_the_run_of_a_folder(tmp_path):
    config = imported("qwen3", tmp_path)
    model = config.model()
    assert (config.preset, config.sizes(), model.d_kv, model.qk_norm) == (
        "decoder",
        {"batch": 8, "length": 32},
        8,
        True,
    )
    there = json.loads((tmp_path / "run" / "config.json").read_text())
    assert there["versions"]["jax"] == jax.__version__ and there["model"]["rope_theta"] == 1e6
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "checkpoints", "config.json", "hugging_face", "vocabulary.json",
    ]  # fmt: skip
    manifest = Run(config, QUIET, read_only=True).checkpoints.describe()
    assert manifest.extra["imported"] == "qwen3" and manifest.step == 0
    assert {entry.dtype for entry in manifest.arrays.values()} == {"bfloat16"}


def tuned(config, text, **changes):
    """The run that goes on from imported weights."""
    options = dict(
        data=DataOptions(text=(text,)), steps=4, save_every=2, eval_every=4, eval_batches=2, log_every=1,
        model_=config.model_ | {"dtype": "float32"}, optimizer=OptimizerOptions(rate=1e-3), mesh="data:2 model:4",
    )  # fmt: skip
    return replace(config, **(options | changes))


def leaves(tree):
    return [np.asarray(leaf.numpy()) for leaf in jax.tree.leaves(tree, is_leaf=is_tensor) if is_tensor(leaf)]


def losses(run):
    return [row["loss"] for row in read_metrics(run.directory / "metrics.jsonl") if "loss" in row]


@pytest.mark.exhaustive
@pytest.mark.parametrize("layers_as", ["loop", "unrolled"])
def test_fine_tuning(layers_as, tmp_path):
    """The first loss is that of the imported model; resumed it is the same run; exported it is read again."""
    text, config = write_text(tmp_path / "text"), imported("llama3", tmp_path)
    fine = tuned(config, text, out=str(tmp_path / "fine"), from_=str(tmp_path / "run"), model_={}, layers_as=layers_as)
    fine = replace(fine, dtype="float32")
    run = Run(fine, QUIET)
    batch = run.tensors(next(run.examples.stream(run.sizes, fine.seed)))
    model = load(tmp_path / "llama3", run.mesh, run.layout, layers_as=layers_as, dtype="float32")
    sums = run.evaluate_batch(model, batch)
    run.train()
    assert losses(run)[0] == pytest.approx(float(sums["loss"]) / float(sums["count"]), rel=1e-6)
    assert losses(run)[-1] < losses(run)[0]

    shutil.copytree(fine.out, tmp_path / "twice")  # as it was when it had been stopped after two steps
    (last,) = (tmp_path / "twice" / "checkpoints").glob("*-step-4")
    shutil.rmtree(last)
    resumed = Run(replace(fine, out=str(tmp_path / "twice")), QUIET)
    resumed.train()
    for once, twice in zip(leaves(run.restored()[0]), leaves(resumed.restored()[0]), strict=True):
        np.testing.assert_array_equal(once, twice)

    export_run(run_config(fine.out), tmp_path / "out")
    assert {entry.dtype for entry in Folder(tmp_path / "out").tensors.values()} == {"BF16"}
    assert filecmp.cmp(tmp_path / "out" / "config.json", tmp_path / "llama3" / "config.json")
    again = load(tmp_path / "out", mx.Mesh("x:1"), layers_as=layers_as)
    for exported, saved in zip(leaves(again), leaves(run.restored()[0].model), strict=True):
        np.testing.assert_array_equal(exported, saved.astype("bfloat16").astype(np.float32))


@pytest.mark.exhaustive
def test_an_imported_run_is_trained_where_it_is(tmp_path):
    text, config = write_text(tmp_path / "text"), imported("gpt2", tmp_path)
    run = Run(tuned(config, text, layout="model"), QUIET)
    before = run.evaluate(run.restored()[0].model, batches=1)
    run.train()
    assert before.loss == pytest.approx(
        run.evaluate(load(tmp_path / "gpt2", run.mesh, run.layout, dtype="float32"), 1).loss
    )
    assert run.checkpoints.steps()[-1] == 4 and losses(run)[-1] < losses(run)[0]


@pytest.mark.parametrize("layout", some(["none", "data+model", "fsdp", "sequence"], "fsdp"))
def test_an_imported_run_evaluates_the_same_under_every_layout(layout, tmp_path):
    text, config = write_text(tmp_path / "text"), imported("qwen2", tmp_path)
    figures = []
    for mesh, rules in (("x:1", "none"), ("data:2 model:4", layout)):
        run = Run(tuned(config, text, mesh=mesh, layout=rules), QUIET, read_only=True)
        state, extra = run.restored()
        assert extra["step"] == 0
        figures.append(run.evaluate(state.model, batches=2).loss)
    assert figures[0] == pytest.approx(figures[1], rel=1e-5)


def small_llama(folder, **changes):
    """A run of our own that is a Llama."""
    fields = dict(d_model=16, heads=4, kv_heads=2, d_kv=4, d_ff=24, layers=2, vocab=300, gated=True)
    fields |= dict(activation="silu", positions="rotary", dtype="float32")
    text = write_text(folder / "text")
    return TrainConfig(
        preset="decoder", model_=fields | changes, out=str(folder / "own"), data=DataOptions(text=(text,)), batch=8,
        length=32, steps=1, optimizer=OptimizerOptions(rate=1e-3), mesh="data:2 model:4", eval_batches=1,
    )  # fmt: skip


def untrained(folder):
    """That run before its first step."""
    run = Run(small_llama(folder), QUIET)
    with run.checkpoints as checkpoints:
        checkpoints.save(0, state := run.first_state(), {"step": 0}, wait=True)
    (folder / "own" / "config.json").write_text(run.config.resolved().to_json())
    return run, state.model


def test_a_run_of_our_own_goes_out_and_comes_back(tmp_path):
    run, model = untrained(tmp_path)
    export_run(run_config(tmp_path / "own"), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["architectures"], config["eos_token_id"]) == ("llama", ["LlamaForCausalLM"], 1)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    import_folder(tmp_path / "out", TrainConfig(out=str(tmp_path / "again"), batch=8, length=32))
    changes = dict(data=run.config.data, mesh="x:1", layout="none")
    again = Run(replace(run_config(tmp_path / "again"), **changes), QUIET, read_only=True)
    for ours, theirs in zip(leaves(model), leaves(again.restored()[0].model), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    words = "the cat sat <end>"
    assert again.examples.vocabulary.decode(again.examples.vocabulary.encode("the cat")) == "the cat"
    assert (
        run.examples.vocabulary.encode(words) != [] and again.examples.vocabulary.size == run.examples.vocabulary.size
    )


def test_another_dtype_and_several_files(tmp_path, monkeypatch):
    config = imported("llama", tmp_path)
    export_run(config, tmp_path / "half", dtype="bfloat16")
    half = Folder(tmp_path / "half")
    assert {entry.dtype for entry in half.tensors.values()} == {"BF16"} and half.config["torch_dtype"] == "bfloat16"
    untrained(tmp_path)
    monkeypatch.setattr("meshax.train.foreign._SHARD_BYTES", 20_000)
    export_run(run_config(tmp_path / "own"), tmp_path / "many")
    many = Folder(tmp_path / "many")
    assert len(many.files) > 2 and all(
        sum(entry.num_bytes for entry in file.tensors.values()) <= 20_000 for file in many.files.values()
    )


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def bare():
    shutil.copytree(GOLDEN / "qwen2", "bare")
    import_folder("bare", TrainConfig(out="new"))


def with_few_words():
    folder = folder_of("qwen2", Path("few"))
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": 20}
    (folder / "config.json").write_text(json.dumps(config))
    import_folder(folder, TrainConfig(out="new"))


def twice():
    config = imported("llama", Path("."))
    import_folder("llama", replace(config, model_={}))


def exported_onto():
    export_run(imported("llama", Path(".")), "llama")


test_messages = pinned(
    {
        "no tokenizer": (
            mx.CheckpointError,
            bare,
            """
            a folder of weights has no tokenizer that can be read.
              values: no bare/tokenizer.json
              rule: tokenizers are read from tokenizer.json, which the library tokenizers writes.
              fix: save it there: AutoTokenizer.from_pretrained(...).save_pretrained(...); or name one: tokenizer=.
            """,
        ),
        "there is a run": (
            mx.MeshaxError,
            twice,
            """
            there is a run in 'run' already.
              fix: choose another out=.
            """,
        ),
        "not empty": (
            mx.CheckpointError,
            exported_onto,
            """
            the folder to export to is not empty.
              values: llama
              fix: name another one.
            """,
        ),
        "dtype": (
            mx.CheckpointError,
            lambda: export_run(imported("llama", Path(".")), "out", dtype="int8"),
            """
            weights are not exported as 'int8'.
              fix: choose one of float32, bfloat16, float16.
            """,
        ),
    }
)


def test_a_tokenizer_with_more_tokens_than_the_model(tmp_path):
    with pytest.raises(mx.CheckpointError, match=r"embed_tokens.weight: BF16 \[61, 16\], not \[20, 16\]"):
        with_few_words()
