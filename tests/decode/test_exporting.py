"""Exported programs: where meshax cannot be imported they write what the engine writes."""

import json
import subprocess
import sys
from dataclasses import replace

import jax
import pytest

import meshax as mx
from meshax.decode import Engine, Request
from meshax.decode.exporting import export_programs
from meshax.models.decoder import DecoderConfig
from meshax.models.encoder_decoder import EncoderDecoderConfig
from meshax.models.prefix_decoder import PrefixDecoderConfig

CONFIG = DecoderConfig(
    d_model=16, heads=4, kv_heads=2, d_kv=4, d_ff=24, layers=1, vocab=50, positions="rotary", dtype="float32",
    gated=True, activation="silu",
)  # fmt: skip
PROMPT = (7, 8, 9, 11, 2)
# A finder that refuses meshax stands before all others: the programs have to do without.
BARE = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("meshax", "equinox", "optax"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_bare(folder, *arguments, processors=1):
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={processors}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", BARE, str(folder / "run.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=flags, cwd=folder, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("axes", "layout", "slots"),
    [
        ("model:4", "kv_heads:model d_ff:model vocab:model", 2),  # 2 groups over 4: padded
        pytest.param("data:2 model:4", "batch:data heads:model vocab:model", 2, marks=pytest.mark.exhaustive),
        pytest.param("one:1", "", 1, marks=pytest.mark.exhaustive),
        pytest.param("model:2 more:4", "kv_heads:model memory:more vocab:more", 3, marks=pytest.mark.exhaustive),
    ],
)
def test_without_meshax_the_same_is_written(axes, layout, slots, tmp_path):
    model, mesh = CONFIG.make(jax.random.key(1)), mx.Mesh(axes)
    sizes = {"slots": slots, "places": 32, "page": 8}
    (ours,) = Engine(model, mesh, layout, chunk=4, **sizes).generate([Request(PROMPT, 8)])
    folder = export_programs(model, mesh, layout, tmp_path / "out", prompts=(8,), about={"mine": 1}, **sizes)
    described = json.loads((folder / "exported.json").read_text())
    assert described["mesh"] == mesh.axes and described["vocab"] == 50 and described["mine"] == 1
    assert {one["name"] for one in described["programs"]["step"]["inputs"]} == {"token", "at"}
    assert sorted(path.name for path in folder.iterdir()) == [
        "exported.json", "prefill-8.jax_export", "run.py", "step.jax_export",
        "weights.safetensors",
    ]  # fmt: skip
    status, out, err = run_bare(folder, *PROMPT, "--tokens", 8, processors=mesh.size)
    assert status == 0, err
    assert json.loads(out) == ours.tokens


@pytest.mark.parametrize(
    ("config", "axes", "layout"),
    [
        (EncoderDecoderConfig, "model:2", "heads:model d_ff:model vocab:model"),
        pytest.param(PrefixDecoderConfig, "data:2 model:2", "batch:data heads:model", marks=pytest.mark.exhaustive),
        pytest.param(EncoderDecoderConfig, "one:1", "", marks=pytest.mark.exhaustive),
    ],
)
def test_a_model_that_reads_sources(config, axes, layout, tmp_path):
    """Its programs read sources of some lengths; the text begins with what the first step takes."""
    shape = config(d_model=16, heads=2, d_kv=4, d_ff=24, layers=1, vocab=50, positions="learned", max_length=64)
    model, mesh = replace(shape, dtype="float32").make(jax.random.key(1)), mx.Mesh(axes)
    sizes = {"slots": 2, "places": 16, "page": 8}
    engine = Engine(model, mesh, layout, chunk=4, source_places=12, **sizes)
    (ours,) = engine.generate([Request((3,), 8, source=PROMPT)])
    about = {"tokens": {"begin": 3}}
    folder = export_programs(model, mesh, layout, tmp_path / "out", prompts=(6, 12), about=about, **sizes)
    described = json.loads((folder / "exported.json").read_text())
    inputs = [one["name"] for one in described["programs"]["prefill-12"]["inputs"]]
    assert described["reads_sources"] and inputs == ["taken", "sources", "source_lengths"]
    status, out, err = run_bare(folder, *PROMPT, "--tokens", 8, processors=mesh.size)
    assert status == 0, err
    assert json.loads(out) == ours.tokens
    status, _, err = run_bare(folder, *PROMPT * 3, "--tokens", 8, processors=mesh.size)
    assert status == 2 and "there is no program for 15 tokens, only for 12 and fewer" in err


def test_what_is_refused(tmp_path):
    model, mesh = CONFIG.make(jax.random.key(1)), mx.Mesh("one:1")
    with pytest.raises(mx.ArgumentError, match="a prompt of 40 tokens does not fit"):
        export_programs(model, mesh, "", tmp_path / "out", places=32, prompts=(8, 40))
    (tmp_path / "file").write_text("")
    with pytest.raises(mx.CheckpointError, match="the folder to export to is not empty"):
        export_programs(model, mesh, "", tmp_path)
    with pytest.raises(mx.CheckpointError, match="the folder to export to is a file"):
        export_programs(model, mesh, "", tmp_path / "file")
