"""Planning in another process, with children that answer, fail and die; none of them has a compiler."""

import json
import sys

import pytest

import meshax as mx
from meshax.plan.compile import worker
from meshax.plan.compile.worker import plan_apart

REQUEST = {"target": "nowhere.py:f", "topology": "tpu v4:2x2x1", "mesh": "data:8", "layout": "", "params": "",
           "optimizer": "", "overlap": False, "html": "", "width": None}  # fmt: skip


@pytest.fixture
def child(monkeypatch):
    """Puts a program of the test's in the place of the child."""
    popen = worker.subprocess.Popen

    def install(code):
        monkeypatch.setattr(
            worker.subprocess, "Popen", lambda command, **options: popen([sys.executable, "-c", code], **options)
        )

    return install


def test_stages_then_a_result(child):
    child(
        "import json, sys; asked = json.loads(input()); print(json.dumps({'stage': 'tracing'}), flush=True);"
        "print('noise', file=sys.stderr); print(json.dumps({'result': asked}), flush=True);"
        "import time; time.sleep(600)"
    )
    stages = []
    assert plan_apart(REQUEST, stages.append) == REQUEST
    assert stages == ["tracing"]


def test_an_error_is_raised_here(child):
    child(f"input(); print({json.dumps({'error': 'what failed.', 'traceback': 'in the child'})!r})")
    with pytest.raises(mx.MeshaxError) as error:
        plan_apart(REQUEST, print)
    assert str(error.value) == "what failed." and str(error.value.__cause__) == "in the child"


def test_a_child_that_dies(child):
    child("import sys; input(); sys.exit('nothing works')")
    with pytest.raises(mx.MeshaxError) as error:
        plan_apart(REQUEST, print)
    assert str(error.value) == (
        "the compiling process ended with status 1, and without an answer.\n"
        "  values: its last words:\n    nothing works"
    )


def test_a_child_that_is_killed(child):
    child("import os, signal; input(); os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(mx.MeshaxError) as error:
        plan_apart(REQUEST, print)
    assert str(error.value) == (
        "the compiling process ended with signal 9, and without an answer.\n"
        "  fix: signal 9 most often means that this machine has too little memory for the compiler."
    )


def test_the_real_child_says_what_is_wrong(tmp_path):
    file = tmp_path / "failing.py"
    file.write_text("print('noise')\ndef f():\n    raise KeyError('one')\n")
    with pytest.raises(mx.MeshaxError) as error:
        plan_apart(REQUEST | {"target": f"{file}:f"}, lambda stage: None)
    assert str(error.value) == f"{file}:f failed.\n  values: KeyError: 'one', at failing.py:3: raise KeyError('one')"
    assert "Traceback" in str(error.value.__cause__)
