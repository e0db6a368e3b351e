"""What a command line may name: each kind of target, and everything that can be wrong with one."""

import pytest

import meshax as mx
from meshax.plan.compile.targets import blamed, load_target

FILE = """\
from functools import partial
import jax
import numpy as np
import meshax as mx
import beside

batch, hidden = mx.dims(batch=8, hidden=4)
x = mx.Tensor(jax.ShapeDtypeStruct((8, 4), np.float32), (batch, hidden))

def double(x):
    return mx.sum(x * 2.0, over="hidden")

def plain():
    return double, (x,)

def donating():
    return double, [x], 0

def built():
    return mx.spmd(double, mx.Mesh("data:2", abstract=True), "batch:data"), (x,)

def sized(size):
    return double, (x,)

eight = partial(sized, 8)

def failing():
    numbers = {}
    return numbers["one"]

def wrong():
    return double, x

def nothing():
    pass

def untraceable():
    return lambda x: x.array.shape[7], (x,)

def mistaken():
    mx.sum(x, over="hiden")

NUMBER = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "programs.py"
    path.write_text(FILE)
    (tmp_path / "beside.py").write_text("")
    return path


def message_of(error, file):
    return str(error.value).replace(str(file), "programs.py")


def test_a_function_and_its_arguments(file):
    target = load_target(f"{file}:plain")
    program = target.build("data:2", "data")
    assert program.layout == mx.Layout("batch:data") and program.mesh.is_abstract
    assert len(program.explain(*target.args).collectives) == 0


@pytest.mark.parametrize(("name", "donate"), [("plain", ()), ("donating", (0,)), ("eight", ())])
def test_forms(file, name, donate):
    target = load_target(f"{file}:{name}")
    assert len(target.args) == 1 and target.donate == donate


def test_a_program_keeps_its_mesh_and_layout_unless_told(file):
    target = load_target(f"{file}:built")
    assert target.build().layout == mx.Layout("batch:data")
    assert target.build(mesh="data:4").mesh.axes == {"data": 4}
    assert target.build(layout="hidden:data").layout == mx.Layout("hidden:data")
    assert target.build(rings="data").layout == mx.Layout("batch:data", rings="data")


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "sized": """programs.py:sized takes arguments: size.
  rule: a target is called without arguments.
  fix: give them defaults, or bind them: small = functools.partial(function, size=8).""",
        "failing": """programs.py:failing failed.
  values: KeyError: 'one', at programs.py:29: return numbers["one"]""",
        "wrong": """programs.py:wrong does not return a program.
  values: (function, Tensor)
  rule: it returns (fn, args), (fn, args, donate) or (program, args).
  fix: return for example step, (w, images, labels): args is a tuple, also if there is one.""",
        "nothing": """programs.py:nothing does not return a program.
  values: NoneType
  rule: it returns (fn, args), (fn, args, donate) or (program, args).
  fix: return for example step, (w, images, labels): args is a tuple, also if there is one.""",
        "eihgt": """programs.py has no function 'eihgt'.
  values: programs.py:eihgt
  fix: did you mean "eight"?""",
        "NUMBER": """programs.py has no function 'NUMBER'.
  values: programs.py:NUMBER
  fix: known names: built, donating, double, eight, failing, mistaken, nothing, plain, sized, untraceable, wrong.""",
    }.items(),
)
def test_messages(file, name, text):
    with pytest.raises(mx.ArgumentError) as error:
        load_target(f"{file}:{name}")
    assert message_of(error, file) == text


def test_our_own_errors_pass_as_they_are(file):
    with pytest.raises(mx.ShapeError, match="there is no dim 'hiden' here") as error:
        load_target(f"{file}:mistaken")
    assert error.value.__notes__ == ['  line: programs.py:41: mx.sum(x, over="hiden")']


@pytest.mark.parametrize("target", ["programs.py", "programs:plain", "programs.py:", "programs.py:not a name", ""])
def test_what_is_no_target(target):
    with pytest.raises(mx.ArgumentError) as error:
        load_target(target)
    wanted = f"{target!r} does not name a program.\n  fix: write FILE.py:FUNCTION, as in examples/transformer.py:tiny."
    assert str(error.value) == wanted


def test_a_missing_file():
    with pytest.raises(mx.ArgumentError, match=r"there is no file 'nowhere.py'\.\n  values: nowhere.py:f\n  fix: "):
        load_target("nowhere.py:f")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("x = 1\ndef f(:\n", "SyntaxError: invalid syntax (broken.py, line 2), at broken.py:2: def f(:"),
        ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all', at broken.py:1: "),
    ],
)
def test_a_file_that_cannot_be_loaded(tmp_path, text, values):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(mx.ArgumentError) as error:
        load_target(f"{path}:f")
    assert str(error.value).startswith(f"{path}:f cannot be loaded.\n  values: {values}")


def test_a_function_that_cannot_be_traced_is_blamed(file):
    target = load_target(f"{file}:untraceable")
    with pytest.raises(mx.ArgumentError) as error, blamed(target.name, file, "cannot be traced"):
        target.build("data:2").explain(*target.args)
    assert message_of(error, file) == (
        "programs.py:untraceable cannot be traced.\n"
        "  values: IndexError: tuple index out of range, at programs.py:38: return lambda x: x.array.shape[7], (x,)"
    )


def test_no_mesh(file):
    with pytest.raises(mx.ArgumentError) as error:
        load_target(f"{file}:plain").build()
    wanted = 'programs.py:plain has no mesh of its own.\n  fix: give one: mesh="data:2 model:4".'
    assert message_of(error, file) == wanted
