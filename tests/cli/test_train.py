"""`meshax train`, `eval`, `generate`, `score` and `presets`: options, what they print, exit statuses; processes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import jax
import pytest

from meshax.cli import evaluate, generate, joining, main, train, written
from meshax.cli.options import UsageError
from meshax.models.decoder import DecoderConfig
from meshax.train.loop import Run
from meshax.train.options import DataOptions, OptimizerOptions, TrainOptions
from runs import write_text

ROOT = Path(__file__).parents[2]
PAPER = ["lm-0.14b", "lm-0.22b", "lm-0.37b", "lm-0.67b", "lm-1.28b", "lm-2.48b", "lm-4.90b"]
SMALL = ["--vocab", "300", "--batch", "8", "--length", "32", "--steps", "6"]
SMALL += ["--save-every", "2", "--eval-every", "3", "--log-every", "1"]


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch):
    """The tests' own: JAX is in use already."""
    for module in (joining, evaluate, written):
        monkeypatch.setattr(module, "use_processors", lambda *_: None)


def parsed(monkeypatch, *arguments):
    """Returns what `meshax train` would train."""
    seen = []
    monkeypatch.setattr(train.Train, "run", lambda self: seen.append(self.options()))
    assert main(["train", *arguments]) == 0
    return seen[0]


@pytest.mark.parametrize("command", ["train", "eval", "generate", "score", "serve", "presets"])
def test_help_explains_with_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert f"\nmeshax {command}" in out and "--json" in out and "--debug" in out and err == ""


def test_every_option_of_train_is_explained(capsys):
    main(["train", "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert not re.findall(r"--[a-z.-]+(?: [A-Z]+| \[STR \[STR \.\.\.\]\])? \(default", words)


def test_what_a_leap_is_compared_with_is_explained(capsys):
    main(["train", "--help"])
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "stop at a loss so many times the median of the last 50, once there are 10; 0: never" in words


def test_the_common_options(monkeypatch):
    given = "--preset lm-0.14b --mesh data:8 --layout fsdp --param-layout d_ff:data --optimizer-layout vocab:data"
    found = parsed(monkeypatch, *given.split(), "--out", "there", "--steps", "10", "--seed", "3")
    wanted = dict(mesh="data:8", layout="fsdp", param_layout="d_ff:data", optimizer_layout="vocab:data")
    assert found == TrainOptions("lm-0.14b", **wanted, out="there", steps=10, seed=3)


def test_options_in_groups(monkeypatch):
    found = parsed(monkeypatch, "--data.text", "a.txt", "b.txt", "--data.lines", "--optimizer.rate", "0.1")
    assert found == TrainOptions(
        data=DataOptions(text=("a.txt", "b.txt"), lines=True), optimizer=OptimizerOptions(rate=0.1)
    )


def test_options_win_over_the_file(monkeypatch, tmp_path):
    """Also one that has the value of the default, and one of a group whose others the file gives."""
    path = tmp_path / "run.toml"
    path.write_text('steps = 50\nseed = 4\nbatch = 32\n[optimizer]\nname = "adafactor"\nrate = 0.5\n')
    base = TrainOptions(steps=50, seed=4, batch=32, optimizer=OptimizerOptions(name="adafactor", rate=0.5))
    assert parsed(monkeypatch, "--config", str(path)) == base
    found = parsed(monkeypatch, f"--config={path}", "--steps", "600", "--optimizer.rate", "0.1")
    assert found == replace(base, steps=600, optimizer=replace(base.optimizer, rate=0.1))


def test_every_field_of_a_model_is_an_option(monkeypatch, capsys):
    """Values stay text until the configuration reads them; those of the file stay as they are."""
    found = parsed(monkeypatch, "--preset", "decoder", "--model.d-model", "64", "--model.tied=true", "--from", "runs/x")
    assert found == TrainOptions("decoder", {"d_model": "64", "tied": "true"}, from_="runs/x")
    main(["train", "--help"])
    shown = set(re.findall(r"--[\w.-]*\w", capsys.readouterr().out))
    assert {f"--model.{field.name.replace('_', '-')}" for field in fields(DecoderConfig)} <= shown


def test_fields_of_a_model_win_over_the_file(monkeypatch, tmp_path, capsys):
    path = tmp_path / "run.toml"
    path.write_text('preset = "lm-0.14b"\nfrom = "runs/x"\n[model]\nlayers = 3\nvocab = 500\nwindow = "none"\n')
    found = parsed(monkeypatch, "--config", str(path), "--model.layers", "4", "--vocab", "300")
    assert found == TrainOptions("lm-0.14b", {"layers": "4", "window": "none"}, "runs/x", vocab=300)
    path.write_text("vocab = 500\ndropout = 0.1\n")
    found = parsed(monkeypatch, "--config", str(path), "--model.vocab", "400")
    assert found == TrainOptions(model_={"vocab": "400"}, dropout=0.1)
    found = parsed(monkeypatch, "--config", str(path), "--model.vocab", "400", "--vocab", "300")
    assert found == TrainOptions(model_={"vocab": "400"}, dropout=0.1, vocab=300)  # an error, later
    path.write_text('preset = "lm-0.14b"\n[model]\nlayers = 3\n')
    monkeypatch.undo()
    assert main(["train", "--config", str(path), "--preset", "tiny"]) == 2
    assert capsys.readouterr().err == (
        f"meshax: {path} has a [model] of its own, for 'lm-0.14b', and --preset is 'tiny'.\n"
        "  fix: leave out --preset, or the fields of the model in the file.\n"
    )


def test_what_a_model_keeps_is_said_in_one_way(monkeypatch, tmp_path, capsys):
    for given in (["--keep", "auto"], ["--model.keep", "auto"], ["--keep", "auto", "--model.keep", "auto"]):
        assert parsed(monkeypatch, *given) == TrainOptions(keep="auto")
    assert parsed(monkeypatch, "--model.keep", "products") == TrainOptions(keep="products")
    path = tmp_path / "run.toml"
    path.write_text('[model]\nkeep = "auto"\nlayers = 3\n')
    assert parsed(monkeypatch, "--config", str(path)) == TrainOptions(model_={"layers": 3}, keep="auto")
    found = parsed(monkeypatch, "--config", str(path), "--keep", "nothing")
    assert found == TrainOptions(model_={"layers": 3}, keep="nothing")
    monkeypatch.undo()
    assert main(["train", "--keep", "nothing", "--model.keep", "auto"]) == 2
    words = "meshax: --keep is 'nothing', and --model.keep is 'auto'.\n  fix: leave one of them out.\n"
    assert capsys.readouterr().err == words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model.d-modle", "4"], "there is no option --model.d-modle.\n  fix: did you mean --model.d-model?"),
        (["--model.d-model", "wide"], "the field 'd_model' of the model cannot be 'wide'."),
        (["--model.activation", "rel"], "there is no activation 'rel'.\n  fix: did you mean \"relu\"?"),
        (["--preset", "decoder"], "no learning rate suits the optimizer 'adamw' always."),
        (["--from", "nowhere"], "there is no run in 'nowhere'."),
        (["--optimizer.beta1", "1"], "--optimizer.beta1 is 1.0."),
        (["--preset", "tinny"], "there is no preset 'tinny'."),
        (["--layout", "dat"], "there is no layout named 'dat'."),
        (["--mesh", "data"], "'data' is not a part of a mesh."),
        (["--mesh", "data:64", "--layout", "data"], "the mesh has 64 processors, but there are only 8 devices."),
        (["--optimizer.name", "adam"], "there is no optimizer 'adam'."),
        (["--compiler-options", "foo"], "'foo' is no option of the compiler."),
        (["--batch", "1"], "a batch of 1 is too small for this layout."),
        (["--batch", "8", "--optimizer.microbatches", "3"], "a batch of 8 cannot be cut into 3 microbatches."),
        (["--config", "nowhere.toml"], "'nowhere.toml' cannot be read as a configuration."),
        (["--config", "a.toml", "--config=b.toml"], "--config is given twice.\n  fix: write all options into one file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_2(arguments, words, tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path / "run"), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"meshax: {words}") and "Traceback" not in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [["--stesp", "3"], ["--steps", "many"], ["--config"]], ids=" ".join)
def test_a_command_line_that_cannot_be_read_is_2(arguments, capsys):
    assert main(["train", *arguments]) == 2
    assert capsys.readouterr().out == ""


def test_what_fails_is_1(tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path / "run"), "--data.text", str(tmp_path / "none.txt")]) == 1
    assert capsys.readouterr().err.startswith("meshax: a file of text does not exist.\n")
    for command in ("eval", "generate"):
        assert main([command, "--run", str(tmp_path / "nothing")]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"meshax: there is no run in '{tmp_path}/nothing'.\n")


@pytest.mark.parametrize("option", [["--temperature", "-1"], ["--top-k", "-1"], ["--tokens", "-2"]], ids=" ".join)
def test_wrong_draws(option, capsys):
    assert main(["generate", *option]) == 2
    assert "\n  fix: give a number, 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["eval", "generate"])
def test_a_wrong_step(command, capsys):
    assert main([command, "--step", "lates"]) == 2
    wanted = "meshax: 'lates' is not a step.\n  fix: give the number of one, latest or best.\n"
    assert capsys.readouterr().err.startswith(wanted)


def test_a_search_for_more_than_it_has(capsys):
    assert main(["generate", "--beam", "2", "--nbest", "3", "--stop", "end"]) == 2
    assert capsys.readouterr().err == (
        "meshax: a search gives at most as many texts as it has beams, and no string stops it.\n"
        "  values: 2 beams, the best 3, stop 'end'\n  fix: give more beams, or draw: --beam 0.\n"
    )


def test_two_kinds_of_prompts(capsys, tmp_path):
    assert main(["generate", "--prompt", "a", "--prompts", "b"]) == 2
    assert "there are prompts and a file of prompts." in capsys.readouterr().err
    assert main(["generate", "--prompts", str(tmp_path / "none")]) == 2
    assert "the prompts cannot be read.\n  values: " in capsys.readouterr().err
    (tmp_path / "latin").write_bytes(b"th\xe9")
    assert main(["generate", "--prompts", str(tmp_path / "latin")]) == 2
    assert "the prompts are not UTF-8." in capsys.readouterr().err
    (tmp_path / "empty").write_bytes(b"")
    assert main(["generate", "--prompts", str(tmp_path / "empty")]) == 2
    assert "there is no prompt." in capsys.readouterr().err
    assert main(["score"]) == 2
    assert "there is no text.\n  fix: give --text TEXT, or --texts FILE." in capsys.readouterr().err


def test_a_wrong_draw_says_which():
    with pytest.raises(UsageError, match=r"^temperature is -1\.0\."):
        generate.Generate(temperature=-1.0).run()


def test_presets(capsys):
    assert main(["presets", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["presets"]}
    assert next(iter(rows)) == "tiny" and set(PAPER) <= set(rows)
    for name in PAPER:
        assert f"lm-{rows[name]['parameters'] / 1e9:.2f}b" == name
    assert rows["tiny"]["batch"] == 16 and rows["tiny"]["length"] == 128 and rows["tiny"]["model"]["heads"] == 8
    assert rows["tiny"]["glossary"]["batch"] == "examples"
    assert main(["presets"]) == 0
    out = capsys.readouterr().out
    assert "lm-4.90b         4.90 B parameters" in out and "tiny             0.66 M parameters" in out
    assert "0.00" not in out


def answer(capsys, *arguments):
    """Runs a command with --json, and returns the one object that it prints."""
    assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def test_from_text_to_text(tmp_path, capsys, monkeypatch):
    text, run = write_text(tmp_path / "text"), str(tmp_path / "run")
    trained = answer(capsys, "train", *SMALL, "--data.text", text, "--out", run)
    assert trained["perplexity"] < 300 and trained["bigram_perplexity"] > 1

    evaluated = answer(capsys, "eval", "--run", run)
    assert evaluated["step"] == 6
    assert all(evaluated[name] == trained[name] for name in ("perplexity", "bits_per_byte", "tokens"))
    moved = answer(capsys, "eval", "--run", run, "--mesh", "x:1", "--layout", "none", "--step", "best")
    assert moved["perplexity"] == pytest.approx(trained["perplexity"], rel=1e-5)

    # Generating needs no text but the beginning.
    monkeypatch.setattr(Run, "examples", property(lambda self: pytest.fail("the text was looked for")))
    texts = answer(capsys, "generate", "--run", run, "--prompt", "the cat", "a", "--tokens", "5")["results"]
    assert [result["prompt"] for result in texts] == ["the cat", "a"]
    (output,) = texts[0]["outputs"]
    assert len(output["tokens"]) <= 5 and output["score"] < 0
    alone = ["--run", run, "--mesh", "x:1", "--layout", "none"]
    assert main(["generate", *alone, "--prompt", "the cat", "--tokens", "5"]) == 0  # as it comes
    assert capsys.readouterr().out == "the cat" + output["text"].rstrip("\n") + "\n"
    stop = output["text"].rstrip("\n")[2:5]
    assert main(["generate", *alone, "--prompt", "the cat", "--tokens", "5", "--stop", stop, "never"]) == 0
    assert capsys.readouterr().out == ("the cat" + output["text"].partition(stop)[0]).rstrip("\n") + "\n"

    (tmp_path / "prompts").write_text("a\nthe cat\n")
    again = answer(capsys, "generate", *alone, "--prompts", str(tmp_path / "prompts"), "--tokens", "5")["results"]
    pairs = [[(result["prompt"], result["outputs"][0]["text"]) for result in one] for one in (again, texts[::-1])]
    assert pairs[0] == pairs[1]

    options = ["--prompt", "the cat", "a", "--tokens", "5", "--beam", "3", "--nbest", "2"]
    searched = answer(capsys, "generate", *alone, *options)["results"]
    assert [len(result["outputs"]) for result in searched] == [2, 2]
    assert all(result["outputs"][0]["score"] >= result["outputs"][1]["score"] for result in searched)

    (first,) = answer(capsys, "score", *alone, "--text", "the cat sat")["results"]
    assert first["text"] == "the cat sat" and first["log_probability"] < 0 and len(first["tokens"]) > 1
    (tmp_path / "texts").write_text("a\n\nb\n\n")
    assert main(["score", *alone, "--text", "", "--texts", str(tmp_path / "texts")]) == 2
    assert capsys.readouterr().err == (
        "meshax: the text '' has no tokens.\n"
        f"  values: --text, number 1\n          {tmp_path}/texts, line 2\n          {tmp_path}/texts, line 4\n"
        "  fix: leave it out.\n"
    )

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
        assert main(["generate", *alone, "--prompt", "th\u00e9", "--tokens", "1"]) == 0
        assert sys.stdout.buffer.getvalue().startswith(b"th\\xe9")

    assert main(["eval", "--run", run, "--step", "5"]) == 1
    assert capsys.readouterr().err.startswith("meshax: there is no checkpoint of step 5.\n")


def start(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    environment.pop("XLA_FLAGS")
    return subprocess.Popen(
        [sys.executable, "-m", "meshax", *arguments], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.slow
def test_killed_and_run_again_in_real_processes(tmp_path):
    """A process that is killed loses what came after its last checkpoint, and nothing else."""
    run = tmp_path / "run"
    given = ["train", *SMALL, "--data.text", write_text(tmp_path / "text"), "--steps", "5000", "--out", str(run)]
    killed = start(*given, "--json")
    limit = time.monotonic() + 240
    while not list(run.glob("checkpoints/*-step-4")) and killed.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    assert killed.communicate(timeout=150)[0] == "" and killed.returncode == -signal.SIGKILL

    evaluated = start("eval", "--run", str(run), "--json")
    out, err = evaluated.communicate(timeout=300)
    assert evaluated.returncode == 0, err
    step = json.loads(out)["step"]

    resumed = start(*given, "--json")
    while (line := resumed.stderr.readline()) and "resumed" not in line:
        pass
    assert line == f"resumed at step {step}\n"
    resumed.send_signal(signal.SIGINT)
    out, err = resumed.communicate(timeout=300)
    assert resumed.returncode == 130 and out == "" and "Traceback" not in err


COMMANDS = """
import sys
from meshax.cli import evaluate, joining, main, written

run, *train = sys.argv[1:]
assert main(["train", *train, "--out", run]) == 0
for module in (joining, evaluate, written):
    module.use_processors = lambda *_: None  # by now JAX is in use
for words in ("eval", "score --text the.cat.sat", "generate --temperature 0", "generate --top-k 9 --top-p 0.9 --seed 3",
              "generate --beam 3 --nbest 3"):
    command, *options = words.split()
    prompts = ["--prompt", "the cat", "a dog and", "--tokens", "6"] if command == "generate" else []
    assert main([command, "--run", run, *options, *prompts, "--json"]) == 0
"""


@pytest.mark.slow
def test_64_bits_change_nothing(tmp_path):
    """In processes of their own: the same texts, the same dtypes, and nothing but the last digits of numbers."""
    data = ["--data.text", write_text(tmp_path / "text"), "--vocab", "300", "--batch", "8", "--length", "32"]
    model = ["--model.layers", "1", "--model.d-model", "32", "--steps", "2", "--eval-batches", "1", "--json"]
    found = {}
    for bits in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", COMMANDS, str(tmp_path / bits), *data, *model, "--mesh", "data:2 model:4"],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_ENABLE_X64": bits},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        manifest = next((tmp_path / bits / "checkpoints").glob("*/manifest.json")).read_text()
        dtypes = re.findall(r"(?:int|float)\d+", manifest)
        found[bits] = jax.tree.flatten(([json.loads(line) for line in done.stdout.splitlines()], dtypes))
    (wanted, structure), (numbers, same) = found.values()
    assert same == structure and {"float32", "int32"} < {*wanted} and not {"float64", "int64"} & {*numbers}
    for number, other in zip(numbers, wanted):
        assert number == (pytest.approx(other, rel=1e-4) if isinstance(other, float) else other)
