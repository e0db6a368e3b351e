"""A run from text to a trained model; stopped and resumed it is the same run, under another layout too."""

import io
import json
import math
import os
import re
import resource
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from tensorboardX.proto import event_pb2

from meshax.data.vocabulary import Vocabulary
from meshax.errors import LayoutError, MeshaxError, TrainingError
from meshax.models.presets import preset
from meshax.train.checkpoint import Damaged, arrays, writing
from meshax.train.evaluation import Evaluation
from meshax.train.loop import Run, run_config
from meshax.train.loss_guard import Guard
from meshax.train.metrics import Metrics, finite, read_metrics
from meshax.train.options import DataOptions, OptimizerOptions
from meshax.train.profiling import Profile
from meshax.train.record import record_start, signature
from runs import small, write_text

QUIET = Console(quiet=True)


def made(config, **options):
    return Run(config, QUIET, **options)


SPEED = re.compile("seconds?|utilization|memory_bytes")


def measured(directory):
    """What was measured at each step, but not how fast, nor in which memory."""
    rows = read_metrics(directory / "metrics.jsonl")
    return [{name: value for name, value in row.items() if not SPEED.search(name)} for row in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loop")
    write_text(folder / "text")
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    """A run that nothing interrupts."""
    run = made(small(folder))
    return run, run.train()


def test_what_a_run_leaves_behind(whole):
    run, result = whole
    there = {path.name for path in run.directory.iterdir()}
    files = "checkpoints config.json config.toml curve.png events metrics.jsonl result.json text.json tokens"
    assert there == {*files.split(), "vocabulary.json"}
    assert run_config(run.directory) == run.config.resolved()
    assert (run.directory / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((run.directory / "events").glob("events.out.tfevents.*"))
    found = json.loads((run.directory / "result.json").read_text())
    assert found["perplexity"] == result.metrics["perplexity"] and found["bigram_perplexity"] > 1
    assert found["vocabulary_size"] == run.examples.vocabulary.size
    rows = measured(run.directory)
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 13))
    assert [row["step"] for row in rows if "eval_loss" in row] == [4, 8, 12]
    for what in ("evaluation_seconds", "saving_seconds"):
        timed = [row["step"] for row in read_metrics(run.directory / "metrics.jsonl") if row.get(what, 0) > 0]
        assert timed == [4, 8]
    assert rows[-1]["eval_loss"] == result.loss < rows[0]["loss"]


def test_a_layout_that_cannot_fit_the_model_is_found_before_the_text_is_read(folder, monkeypatch):
    monkeypatch.setattr("meshax.train.corpus.prepare", lambda *_: pytest.fail("the text was read"))
    wrong = small(folder, "wrong", mesh="model:8", layout="d_model:model heads:model")
    with pytest.raises(LayoutError, match="are split over one axis|the same axis|'model'"):
        made(wrong)
    assert not (folder / "wrong").exists()


BLOWN_UP = {math.inf: "inf", math.nan: "nan", 800.0: "inf", 300.0: "1.9e+130", 3.5: "33.12"}


@pytest.mark.parametrize(("loss", "shown"), BLOWN_UP.items(), ids=str)
def test_a_perplexity_is_readable_and_json(loss, shown):
    metrics = preset("tiny").model.metrics({"loss": loss})
    evaluation = Evaluation(loss, 100, metrics, {"bits_per_byte": 2e300 if loss > 9 else 1.5})
    assert str(evaluation).startswith(f"perplexity {shown}, ") and len(str(evaluation)) < 60
    text = json.dumps(finite(evaluation.metrics), allow_nan=False)
    value = metrics["perplexity"]
    assert json.loads(text)["perplexity"] == (value if math.isfinite(value) else None)


def test_a_run_that_blows_up_stays_readable(folder, capsys):
    optimizer = OptimizerOptions(name="sgd", rate=1e3, clip=0.0, schedule="constant", warmup=0)
    alone = dict(mesh="x:1", layout="none", steps=2, eval_every=1)
    run = Run(small(folder, "blown up", optimizer=optimizer, **alone), Console(stderr=True, width=200))
    found = run.train()
    assert found.loss > 100
    printed = capsys.readouterr().err
    assert "held-out perplexity" in printed and not re.search(r"\d{20}", printed)
    json.loads((run.directory / "result.json").read_text(), parse_constant=pytest.fail)
    for line in (run.directory / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


@pytest.mark.exhaustive
def test_a_profile_on_request(folder):
    run = made(small(folder, "profiled", steps=4, profile=True))
    run.train()
    assert len(list((run.directory / "profile").rglob("*.xplane.pb"))) == 1


def test_a_profile_is_of_a_few_steps(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("jax.profiler.start_trace", lambda path: calls.append(step))
    monkeypatch.setattr("jax.profiler.stop_trace", lambda: calls.append(-step))
    profile = Profile(tmp_path, 10, 100)
    for step in range(11, 101):
        profile.at(step)
    profile.close()
    assert calls == [13, -18]


@pytest.mark.exhaustive
def test_a_run_goes_on_when_a_step_cannot_be_saved_and_back_when_one_is_damaged(folder, whole, monkeypatch):
    """The disk fails at step 4, for good; later the newest checkpoint is damaged. What comes of it is the same run."""
    works = arrays.write

    def fails(database, snapshots):
        if "step-4" in str(database):
            raise OSError(28, "No space left on device")
        works(database, snapshots)

    monkeypatch.setattr(writing, "PAUSES", (0.0,))
    console = Console(record=True, file=io.StringIO(), width=200)
    with monkeypatch.context() as broken:
        broken.setattr(arrays, "write", fails)
        run = Run(small(folder, "failing"), console)
        run.train()
    said = console.export_text()
    assert "warning: step 4 could not be saved: No space left on device; again in 0 s" in said
    assert (
        "warning: the checkpoint of step 4 was not saved." in said and "the run goes on: step 8 is saved next" in said
    )
    assert measured(run.directory) == measured(whole[0].directory)
    newest = max(run.directory.glob("checkpoints/*-step-12"))
    part = next(path for path in newest.rglob("d/*") if path.is_file())
    os.truncate(part, part.stat().st_size - 1)
    with pytest.raises(Damaged, match="the checkpoint of step 12 is damaged"):
        made(small(folder, "failing")).train()
    run = Run(small(folder, "failing", on_damage="previous"), console)
    run.train()
    said = console.export_text()
    assert f"set aside: {newest.name}.damaged" in said and "THE RUN GOES BACK to step 8" in said
    assert newest.with_name(f"{newest.name}.damaged").is_dir()
    assert measured(run.directory) == measured(whole[0].directory)


def test_a_full_disk_while_measuring(tmp_path):
    """Everything that is written to /dev/full fails as on a full disk: it is kept, and written when there is room."""
    told = []
    metrics = Metrics(tmp_path, warn=told.append)
    metrics.write(1, loss=2.0)
    before = metrics.path.rename(tmp_path / "before")
    metrics.path.symlink_to("/dev/full")
    metrics.write(2, loss=1.0)
    metrics.write(3, loss=0.5)
    assert told == [
        f"what a run measures cannot be written to {metrics.path}: No space left on device; it is kept until it can be"
    ]
    metrics.path.unlink()
    before.rename(metrics.path)
    metrics.write(4, loss=0.25)
    metrics.close()
    assert [row["step"] for row in read_metrics(metrics.path)] == [1, 2, 3, 4]
    assert len(told) == 1


def test_events_go_on_in_another_file(tmp_path):
    """A disk that takes no more than 2 kB of a file, then any: nothing is lost, and each record is whole."""
    metrics = Metrics(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
    try:
        for step in range(100):
            metrics.write(step, loss=step / 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    metrics.write(100, loss=0.5)
    metrics.close()
    assert [row["step"] for row in read_metrics(metrics.path)] == list(range(101))
    files = sorted((tmp_path / "events").iterdir())
    assert len(files) > 1
    assert {event.step for file in files for event in events_of(file) if event.HasField("summary")} == set(range(101))


def events_of(path):
    """The events of a file, up to half a one at its end."""
    data, place = path.read_bytes(), 0
    while place + 12 <= len(data):
        size = int.from_bytes(data[place : place + 8], "little")
        if place + 16 + size <= len(data):
            yield event_pb2.Event.FromString(data[place + 12 : place + 12 + size])
        place += 16 + size


def test_a_run_does_not_begin_where_nothing_can_be_measured(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(TrainingError) as error:
        Metrics(tmp_path / "metrics.jsonl" / "nowhere")
    assert str(error.value) == (
        "what a run measures cannot be written.\n"
        f"  values: {tmp_path}/metrics.jsonl/nowhere/metrics.jsonl: No such file or directory\n"
        "  rule: the run stops; its last checkpoint stays.\n"
        "  fix: make room, and start the run again: it goes on from there."
    )


def test_the_checkpoint_evaluates_to_the_runs_own_figure(whole):
    run, result = whole
    again = made(run_config(run.directory), read_only=True)
    state, extra = again.restored("best")
    assert extra["step"] == 12
    assert again.evaluate(state.model) == result


def test_interrupted_and_resumed_it_is_the_same_run(folder, whole, monkeypatch):
    """Bit for bit, as the layout is the same."""
    config, check = small(folder, "interrupted"), Guard.check

    def crash(self, step, *rest):
        if step == 10:
            raise RuntimeError("a crash")
        check(self, step, *rest)

    monkeypatch.setattr(Guard, "check", crash)
    with pytest.raises(RuntimeError, match="a crash"):
        made(config).train()
    monkeypatch.undo()
    resumed = made(config)
    assert resumed.checkpoints.steps() == [4, 8]
    assert resumed.train() == whole[1]
    assert measured(resumed.directory) == measured(whole[0].directory)


@pytest.mark.slow
def test_resumed_under_another_layout_and_unrolled_it_is_the_same_up_to_rounding(folder, whole):
    config = small(folder, "moved", mesh="data:4", layout="fsdp", layers_as="unrolled")
    shutil.copytree(whole[0].directory, config.out)
    shutil.rmtree(next((folder / "moved" / "checkpoints").glob("*-step-12")))  # as if it had crashed before
    result = made(config).train()
    assert result.loss == pytest.approx(whole[1].loss, rel=1e-4)
    for got, wanted in zip(measured(folder / "moved"), measured(whole[0].directory), strict=True):
        np.testing.assert_allclose(list(got.values()), list(wanted.values()), rtol=1e-4)


def test_a_run_that_is_done_is_only_evaluated_again(whole, monkeypatch):
    run, result = whole
    before = measured(run.directory)
    again = made(run.config)
    monkeypatch.setattr(Run, "step", property(lambda self: pytest.fail("a step was taken")))
    assert again.train() == result
    assert measured(run.directory) == before


def test_a_checkpoint_of_another_run(whole, folder, tmp_path):
    run, _ = whole
    other = replace(run.config, out=str(tmp_path / "other"), optimizer=OptimizerOptions(rate=1e-4))
    other.directory().mkdir()
    record_start(other, run.mesh, run.layout, signature(other))
    newest = max(run.directory.glob("checkpoints/*-step-12"))
    shutil.copytree(newest, tmp_path / "other" / "checkpoints" / newest.name)
    for one in (made(other), made(other, read_only=True)):
        with pytest.raises(Damaged, match=r"of another run than .*\n.*optimizer.rate is 0.003 there, 0.0001 here\n"):
            one.train() if not one.read_only else one.restored()
    shutil.copyfile(run.directory / "config.json", tmp_path / "other" / "config.json")  # the run, moved
    assert made(other, read_only=True).restored()[1]["step"] == 12


def test_a_configuration_of_an_earlier_version(whole, tmp_path):
    """They said that nothing is dropped where nobody had asked; what the model has was in its fields."""
    run, _ = whole
    data = json.loads((run.directory / "config.json").read_text())
    data["dropout"], data["model"]["dropout"] = 0.0, 0.25
    (tmp_path / "config.json").write_text(json.dumps(data))
    assert run_config(tmp_path).model().dropout == 0.25
    del data["model"]["dropout"]  # still earlier
    (tmp_path / "config.json").write_text(json.dumps(data))
    assert run_config(tmp_path).model().dropout == 0.0


def test_fewer_steps_than_there_are(whole):
    run, _ = whole
    with pytest.raises(TrainingError) as raised:
        made(replace(run.config, steps=8)).train()
    assert str(raised.value) == (
        f"the run in {str(run.directory)!r} is at step 12 already.\n"
        "  values: steps is 8\n"
        "  fix: ask for more steps, or choose another out=."
    )
    assert run_config(run.directory).steps == 12  # what failed changes nothing


def test_a_directory_of_another_model(whole):
    run, _ = whole
    with pytest.raises(TrainingError) as raised:
        made(replace(run.config, vocab=400))
    assert str(raised.value) == (
        f"{str(run.directory)!r} holds a run of another model.\n"
        "  values: vocab is 300 there, 400 here\n"
        "  fix: give its options, as its config.toml has them, choose another out=, or remove it."
    )


def test_another_vocabulary(whole, folder):
    run, _ = whole
    other = small(folder, "other", vocab=290)
    made(other)
    data = replace(run.config.data, vocabulary=f"{other.out}/vocabulary.json")
    with pytest.raises(TrainingError, match="has another vocabulary"):
        made(replace(run.config, data=data))
    with pytest.raises(TrainingError, match="has 300 subwords, the model 290") as raised:
        made(small(folder, "third", vocab=290, data=replace(data, vocabulary=str(run.directory / "vocabulary.json"))))
    assert str(raised.value).endswith("fix: pass vocab=300, or another vocabulary.")


def test_other_text_does_not_resume(whole, tmp_path):
    run, _ = whole
    data = replace(run.config.data, text=(write_text(tmp_path / "text", lines=130),), cache=str(tmp_path / "tokens"))
    with pytest.raises(TrainingError) as raised:
        made(replace(run.config, data=data)).train()
    before, after = list(run.config.data.text), list(data.text)
    assert str(raised.value) == (
        f"the run in '{run.directory}' cannot go on with other text.\n"
        f"  values: data.text was {before}, is {after}\n"
        "  rule: a run goes on with the tokens that it has stored; the text itself may be gone.\n"
        "  fix: give the options as they were, or choose another out=."
    )
    with pytest.raises(TrainingError, match="cannot go on with other batches.\n  values: seed was 0, is 1"):
        made(replace(run.config, seed=1)).train()
    with pytest.raises(TrainingError, match="optimizer is 'adamw' there, 'sgd' here"):
        made(replace(run.config, optimizer=replace(run.config.optimizer, name="sgd", rate=0.1)))


def test_a_start_that_failed_leaves_no_vocabulary_to_the_next(folder, tmp_path):
    (tmp_path / "two.txt").write_text("only one line\nand another\n")
    short = DataOptions(text=(str(tmp_path / "two.txt"),), lines=True)
    with pytest.raises(TrainingError, match="the text is too short to hold some of it out"):
        made(small(folder, "twice", data=short))
    again, fresh = made(small(folder, "twice")), made(small(folder, "once"))
    assert again.examples.vocabulary.fingerprint == fresh.examples.vocabulary.fingerprint


@pytest.mark.exhaustive
def test_evaluation_needs_the_stored_tokens_alone(tmp_path, monkeypatch):
    """The text may be gone or changed, and another directory the current one; names of directories may have `..`."""
    write_text(tmp_path / "own" / "text")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    data = DataOptions(text=("../own/text/*.txt",))
    config = replace(small(tmp_path, data=data, steps=2), out="../own/run")
    result = made(config).train()
    write_text(tmp_path / "own" / "text", lines=50)
    monkeypatch.chdir(tmp_path)
    again = made(run_config("own/run"), read_only=True)
    assert again.evaluate(again.restored()[0].model) == result


def test_two_runs_do_not_write_into_one_directory(whole):
    run, _ = whole
    first = made(run.config)
    with first.checkpoints, pytest.raises(ValueError, match="another run|writes"):
        made(run.config).train()


OPENED: set[str] = set()
sys.addaudithook(lambda event, args: OPENED.add(str(args[0])) if event == "open" and args else None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"layout": "batch:data heads:data"},
            "dims of the operands of one operation are split over the same mesh axis",
        ),
        ({"layout": "batch:dat"}, "the layout does not fit the mesh or the program."),
        ({"memory": "1MB"}, "a step does not fit 1 MB on each processor."),
        ({"batch": 1}, "a batch of 1 is too small for this layout."),
        ({"optimizer": OptimizerOptions(microbatches=3)}, "a batch of 8 cannot be cut into 3 microbatches."),
        ({"optimizer": OptimizerOptions(name="adam")}, "there is no optimizer 'adam'."),
        ({"vocab": 100}, "a vocabulary of 100 tokens is too small."),
        ({"vocab": 260}, "the vocabulary has 300 subwords, the model 260."),
        ({"preset": "lm-4.90b"}, "a step does not fit "),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_said_before_the_text_is_read(tmp_path, changes, words):
    text, vocabulary = tmp_path / "large.txt", tmp_path / "vocabulary.json"
    with open(text, "wb") as file:
        file.truncate(50 << 30)  # bytes, none of which takes room
    Vocabulary.train([f"{n} {n * n}" for n in range(3000)], 300).save(vocabulary)
    data = DataOptions(text=(str(text),), lines=True, vocabulary=str(vocabulary) if changes == {"vocab": 260} else "")
    OPENED.clear()
    with pytest.raises(MeshaxError) as error:
        Run(small(tmp_path, **{"data": data} | changes))
    assert str(error.value).startswith(words) and str(text) not in OPENED
