"""The package as users get it: a wheel in a bare environment, first without extras, then with what training needs."""

import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import meshax

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "meshax"
OF_TRAINING = ["grain", "tokenizers", "tensorstore", "matplotlib", "tensorboardX"]

PROGRAM = """
import jax
import meshax as mx

def doubled():
    x = mx.tensor(jax.ShapeDtypeStruct((6, 8), "float32"), "rows cols")
    return lambda x: mx.sum(x + x, over="cols"), (x,)
"""
EXPLAINED = ["program.py:doubled", "--mesh", "a:2", "--layout", "cols:a"]


def run(*words, cwd):
    """Runs a command that knows nothing of this checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XLA_FLAGS")}
    command = [str(word) for word in words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)


def output_of(*words, cwd):
    done = run(*words, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    output_of(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel):
    """The folder of an environment with the wheel in it, and no extra."""
    folder = wheel.parent / "bare"
    output_of(sys.executable, "-m", "venv", folder, cwd=wheel.parent)
    install(folder, wheel)
    (folder / "program.py").write_text(PROGRAM)
    return folder


def install(environment, what):
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    output_of(*pip, what, cwd=environment)


@pytest.mark.exhaustive
def test_the_wheel_has_every_file(wheel):
    there = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("meshax/")}
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert there == {path.relative_to(SOURCE.parent).as_posix() for path in files}
    assert "meshax/py.typed" in there


@pytest.mark.exhaustive
def test_the_metadata_say_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    data = Parser().parsestr(archive.read(name).decode())
    assert (data["Name"], data["Version"]) == ("meshax", meshax.__version__)
    assert data["License-Expression"] == "Apache-2.0"
    assert data["Description-Content-Type"] == "text/markdown"
    assert data.get_payload().startswith("# meshax\n")
    assert "Typing :: Typed" in data.get_all("Classifier")
    assert {"train", "parquet", "wandb", "tpu", "docs", "dev"} <= set(data.get_all("Provides-Extra"))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_bare_environment_explains_and_plans(bare):
    meshax_command = bare / "bin" / "meshax"
    assert output_of(meshax_command, "--version", cwd=bare) == f"meshax {meshax.__version__}\n"
    for target in (EXPLAINED, ["--preset", "tiny", "--mesh", "data:2", "--layout", "data"]):
        assert "all-reduce" in output_of(meshax_command, "explain", *target, cwd=bare)
        assert "all-reduce" in output_of(meshax_command, "plan", *target, "--topology", "cpu", cwd=bare)
    installed = output_of(bare / "bin" / "python", "-m", "pip", "list", "--format", "freeze", cwd=bare)
    assert not [name for name in OF_TRAINING if f"{name.lower()}==" in installed.lower()]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_extra_trains(bare, wheel):
    meshax_command, text = bare / "bin" / "meshax", bare / "text.txt"
    text.write_text("".join(f"{number} bottles of tea, {number * 7 % 13} cups\n" for number in range(20_000)))
    training = [meshax_command, "train", "--data.text", text, "--steps", "3", "--out", "run"]
    training += ["--data.lines", "--mesh", "data:2", "--layout", "data"]
    refused = run(*training, cwd=bare)
    assert refused.returncode == 1
    assert refused.stderr == "meshax: checkpoints need tensorstore.\n  fix: pip install 'meshax[train]'.\n"
    install(bare, f"{wheel}[train]")
    assert "perplexity" in output_of(*training, cwd=bare)
    assert (bare / "run" / "curve.png").exists()
    assert output_of(meshax_command, "generate", "--run", "run", "--prompt", "7 bottles", cwd=bare)
    assert "all-reduce" in output_of(meshax_command, "explain", *EXPLAINED, cwd=bare)
