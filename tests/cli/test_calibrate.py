import json

import pytest

from meshax.bench.calibrate import Measurement
from meshax.cli import main
from meshax.plan.cost.hardware import Hardware, Link, load


class FakeCalibration:
    """Measures nothing."""

    count = 2

    def __init__(self):
        self.measured = []

    def run(self):
        for what in ("a product", "a stream"):
            self.measured.append(Measurement(what, 0.5, 2e9, "FLOP/s"))
            yield self.measured[-1]

    def hardware(self):
        return Hardware("this", {"float32": 2e9}, 4e9, 1e9, Link(0.0, float("inf")), measured=True)


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path):
    monkeypatch.setattr("meshax.bench.calibrate.Calibration", FakeCalibration)
    monkeypatch.setattr("jax.config.update", lambda name, value: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_it_writes_where_predictions_look(tmp_path, capsys):
    assert main(["bench", "calibrate"]) == 0
    out, err = capsys.readouterr()
    path = tmp_path / "meshax" / "hardware.json"
    assert "a product" in out and "2 GFLOP/s" in out and out.endswith(f"written to {path}\n")
    assert "measuring" in err or "a stream" in err
    assert load(path).flops == {"float32": 2e9}


def test_json_has_no_infinite_numbers(tmp_path, capsys):
    path = tmp_path / "deep" / "machine.json"
    assert main(["bench", "calibrate", "--out", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert data["hardware"]["inside"] == {"latency": 0.0, "bandwidth": None, "start": 0.0}
    assert [m["what"] for m in data["measurements"]] == ["a product", "a stream"]
    assert data["written"] == str(path) and load(path).name == "this"


def test_no_processors(capsys):
    assert main(["bench", "calibrate", "--devices", "0"]) == 2
    assert capsys.readouterr().err.startswith("meshax: there cannot be 0 processors.\n  fix: --devices 8.")


def test_no_home(monkeypatch, capsys):
    """It is said before a minute of measuring; `--out` does without one."""
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert main(["bench", "calibrate"]) == 2
    assert capsys.readouterr().err.startswith(
        "meshax: there is no home to write into: HOME is not set.\n  fix: --out machine.json."
    )
