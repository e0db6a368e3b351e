"""A mesh and a layout for the processors that there are."""

import io
from types import SimpleNamespace

import jax
import pytest
from rich.console import Console

import meshax as mx
from meshax.launch.peers import Peers
from meshax.train import adapting
from meshax.train.adapting import adapted
from runs import small

TINY = {"layers": 1, "d_model": 16, "d_ff": 32, "heads": 2, "d_kv": 8}


def quiet():
    return Console(file=io.StringIO(), width=200)


def test_a_mesh_that_is_named_stays(tmp_path):
    config = small(tmp_path, mesh="data:2 model:4")
    assert adapted(config, Peers(), quiet()) is config


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_search_fills_all_processors_and_the_run_can_be_made(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 3)
    console = quiet()
    config = adapted(small(tmp_path, mesh="auto", model_=TINY), Peers(), console)
    config.check()
    mesh, layout = config.placed()
    assert mesh.size == 3 and dict(layout.rules) and config.batch == 8
    assert console.file.getvalue() == f"mesh and layout for 3 processors: {config.mesh}, {config.layout}\n"


def test_the_first_process_searches_and_tells_the_others(tmp_path, monkeypatch):
    class Second(Peers):
        process, processes = 1, 2

        def gather(self, name, value=None):
            assert (name, value) == ("the layout", None)
            return [({"mesh": "data:3 model:1", "layout": "batch:data"}, [0]), (None, [1])]

    monkeypatch.setattr(adapting, "search", lambda *_, **__: 1 / 0)
    config = adapted(small(tmp_path, mesh="auto"), Second(), quiet())
    assert (config.mesh, config.layout) == ("data:3 model:1", "batch:data")


def test_processors_that_nobody_knows_are_said(tmp_path, monkeypatch):
    asked = {}
    found = SimpleNamespace(layout=mx.Layout("batch:data"), mesh=SimpleNamespace(axes={"data": 8}))
    monkeypatch.setattr(adapting, "of_device", lambda kind: None)
    monkeypatch.setattr(adapting, "search", lambda *_, **options: asked.update(options) or [found])
    console = quiet()
    assert adapted(small(tmp_path, mesh="auto", model_=TINY), Peers(), console).mesh == "data:8"
    assert asked["hardware"].name == "cpu"
    assert console.file.getvalue().splitlines() == [
        "nothing is known of a cpu: searching with what a cpu can do. Measure this one: meshax bench calibrate",
        "mesh and layout for 8 processors: data:8, batch:data",
    ]
