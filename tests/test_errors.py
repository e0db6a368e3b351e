"""How a message is built: what failed, on which values, which rule, what to do."""

import importlib.util
from pathlib import Path

import jax
import pytest

import meshax as mx
from meshax.errors import did_you_mean

PAGE_MAKER = Path(__file__).parents[1] / "docs" / "errors_page.py"


@pytest.fixture
def maker():
    spec = importlib.util.spec_from_file_location("errors_page", PAGE_MAKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_message_has_four_parts_in_order():
    error = mx.ShapeError("it failed.", fix="do this.", values="[batch:6]", rule="it must not.")

    assert str(error) == "it failed.\n  values: [batch:6]\n  rule: it must not.\n  fix: do this."


def test_a_message_leaves_out_the_parts_it_has_nothing_for():
    assert str(mx.MeshaxError("it failed.", fix="do this.")) == "it failed.\n  fix: do this."


@pytest.mark.parametrize(
    "error",
    [
        mx.ArgumentError,
        mx.CheckpointError,
        mx.DimError,
        mx.DtypeError,
        mx.LayoutError,
        mx.MeshError,
        mx.OptimizerError,
        mx.ShapeError,
    ],
)
def test_every_error_is_a_value_error(error):
    assert issubclass(error, mx.MeshaxError)
    assert issubclass(error, ValueError)


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (["batch", "length"], 'did you mean "batch"?'),
        (["batches", "batch", "length"], 'did you mean "batch" or "batches"?'),
        (["width", "height"], "known names: height, width."),
        ([f"n{i:02}" for i in range(13)], "known names: " + ", ".join(f"n{i:02}" for i in range(12)) + ", ..."),
        ([], "there are none yet."),
    ],
)
def test_did_you_mean(known, sentence):
    assert did_you_mean("bacth", known) == sentence


def test_an_error_inside_a_program_points_at_the_users_line():
    batch, length = mx.dims(batch=4, length=6)

    def wrong(x):
        return jax.jit(lambda x: mx.sum(x, over="lenght"))(x)  # the user's line

    with pytest.raises(mx.ShapeError) as error:
        mx.spmd(mx.grad(lambda x: mx.sum(wrong(x))), mx.Mesh("x:2"), "batch:x")(mx.ones((batch, length)))
    assert [note for note in error.value.__notes__ if "test_errors.py" in note and "# the user's line" in note]


def test_the_page_of_errors_is_made_from_the_source(maker):
    page = maker.PAGE.read_text(encoding="utf-8")
    assert maker.filled(page) == page, "run: python docs/errors_page.py"


def test_every_module_with_messages_is_in_one_table(maker):
    sections = [match[2] for match in maker.TABLE.finditer(maker.PAGE.read_text(encoding="utf-8"))]
    speaking = [module.name for module in maker.modules() if next(module.messages(), None)]
    assert [name for name in speaking if not maker.section_of(name, sections)] == []
    assert len(speaking) > 40


def test_a_message_is_shown_with_its_parts_and_what_is_filled_in(maker, tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text(
        '_HOW = "write 2."\n'
        "def refuse(what, fix):\n"
        '    raise DimError(what, values="3", fix=fix)\n'
        "def read(size, names):\n"
        '    refuse(f"{size!r} is not {names[0]}.", _HOW)\n'
        '    raise ShapeError("a" if size else "b", rule=f"one of {names}.", fix=did_you_mean("x", names))\n'
    )
    assert list(maker.Module(path).messages()) == [
        maker.Message("DimError", "'<size>' is not <...>.", "", "write 2."),
        maker.Message("ShapeError", "a", "one of <names>.", "the nearest names are offered"),
        maker.Message("ShapeError", "b", "one of <names>.", "the nearest names are offered"),
    ]
