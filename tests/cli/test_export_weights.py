"""`meshax export`: what it says, and what it refuses."""

import json
import shutil
from pathlib import Path

from meshax.cli import main

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
