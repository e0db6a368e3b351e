"""`meshax export`: what it says, and what it refuses."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from meshax.cli import main, written
from meshax.data.vocabulary import Vocabulary
from meshax.train.loop import Run
from meshax.train.record import record_start
from meshax.train.text_record import TARGET_VOCABULARY
from runs import small_translator

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face"


def test_out_and_in_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "llama", "llama")
    assert main(["import", "--from", "llama", "--out", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": "run", "parameters": 5872}
    assert main(["export", "--run", "run", "--to", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": "out"}
    for name in ("model.safetensors", "config.json", "tokenizer.json", "generation_config.json"):
        assert Path("out", name).read_bytes() == Path("llama", name).read_bytes()
    assert main(["export", "--run", "run", "--to", "out"]) == 1
    assert "the folder to export to is not empty." in capsys.readouterr().err
    assert main(["export", "--run", "run", "--to", "llama/config.json"]) == 1
    assert "the folder to export to is a file." in capsys.readouterr().err
    assert main(["export", "--run", "nowhere", "--to", "out"]) == 1
    assert "there is no run in 'nowhere'." in capsys.readouterr().err


@pytest.mark.exhaustive
def test_programs_write_what_generate_writes(tmp_path, monkeypatch, capsys):
    """Under another layout too: a run of Llama's shape, its programs called where there is nothing but JAX."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "llama", "llama")
    assert main(["import", "--from", "llama", "--out", "run", "--json"]) == 0
    capsys.readouterr()
    options = ["--mesh", "model:2", "--layout", "kv_heads:model d_ff:model vocab:model"]
    meshax = [sys.executable, "-m", "meshax"]

    def said(*arguments):
        return subprocess.run([*meshax, *arguments], capture_output=True, text=True, check=True).stdout

    asked = ["--prompt", "def f", "--tokens", "6", "--temperature", "0", "--json"]
    written = json.loads(said("generate", "--run", "run", *asked))["results"][0]["outputs"][0]["tokens"]
    exporting = ["--format", "stablehlo", "--places", "64", "--prompts", "16", *options]
    said("export", "--run", "run", "--to", "out", *exporting)
    words = Vocabulary.load("out/vocabulary.json")
    prompt = [words.begin, *words.encode("def f")]
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "out/run.py", *map(str, prompt), "--tokens", "6"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert json.loads(done.stdout)[: len(written)] == written


@pytest.mark.exhaustive
def test_programs_of_a_model_that_translates(tmp_path, monkeypatch, capsys):
    """A run that has saved its first state: its programs read sources, and both vocabularies lie beside them."""
    monkeypatch.setattr(written, "use_processors", lambda mesh: None)
    run = Run(small_translator(tmp_path / "data", steps=2), Console(quiet=True))
    with contextlib.closing(run.checkpoints):
        record_start(run.config, run.mesh, run.layout, run._signature)
        run._save(2, run.first_state())
    command = ["export", "--run", str(run.directory), "--to", str(tmp_path / "out"), "--format", "stablehlo"]
    options = ["--places", "24", "--prompts", "12", "--mesh", "model:2", "--layout", "heads:model vocab:model"]
    assert main([*command, *options]) == 0, capsys.readouterr().err
    described = json.loads((tmp_path / "out" / "exported.json").read_text())
    words = Vocabulary.load(tmp_path / "out" / "vocabulary.json")
    assert described["reads_sources"] and described["tokens"]["source_end"] == words.end
    both = [path.exists() for folder in (run.directory, tmp_path / "out") for path in [folder / TARGET_VOCABULARY]]
    assert both in ([True, True], [False, False])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "onnx"], "there is no format 'onnx'."),
        (["--format", "stablehlo", "--prompts", "few"], "there is no such program."),
        (["--format", "stablehlo", "--dtype", "float16"], "programs are exported in the dtype that they compute in."),
    ],
)
def test_what_is_refused(arguments, words, capsys):
    assert main(["export", "--run", "run", "--to", "out", *arguments]) == 2
    assert words in capsys.readouterr().err
