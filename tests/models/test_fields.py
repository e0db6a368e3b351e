"""The fields of every kind of model, as options: read from the source as they are, and settable from text."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import meshax as mx
from meshax.models.decoder import DecoderConfig
from meshax.models.fields import fields_by_kind, with_fields
from meshax.models.presets import KINDS, preset
from messages import pinned

# Another value than the default: by type, but for words, which the configuration knows, and what has a range.
BY_TYPE = {int: 7, float: 0.125, int | None: 2, float | None: 0.5}
BY_NAME = {"activation": "silu", "norm": "layer", "positions": "learned", "keep": "products", "layers_as": "unrolled"}
BY_NAME |= {"dtype": "float16", "biases": "qkv", "rope_scaling": "linear", "rope_theta": 500.0, "rope_factor": 8.0}
BY_NAME |= {"dropout_shared": "length"}


@dataclass(frozen=True)
class Config:
    """A configuration of no model, with types that the decoder's has not."""

    glossary: ClassVar[dict[str, str]] = {}

    widths: tuple[int, ...] = (1,)
    range: tuple[float, float] = (0.0, 1.0)
    scale: float | None = None
    flag: bool = True


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_there_is(kind):
    written = {field.name: field for field in fields_by_kind()[kind]}
    real = {field.name: field for field in dataclasses.fields(preset(kind).model)}
    assert list(written) == list(real)
    assert {name: eval(field.default) for name, field in written.items()} == {n: f.default for n, f in real.items()}
    assert {name: eval(field.kind) for name, field in written.items()} == {n: f.type for n, f in real.items()}
    assert not [name for name, field in written.items() if not field.about]


@pytest.mark.parametrize("field", dataclasses.fields(DecoderConfig), ids=lambda field: field.name)
def test_every_field_of_the_decoder_is_settable(field):
    """From text, as a command line gives it, and from the value itself, as a file does."""
    value: Any = not field.default if field.type is bool else BY_NAME.get(field.name, BY_TYPE.get(field.type))
    changed = with_fields(DecoderConfig(), {field.name: value})
    assert changed == dataclasses.replace(DecoderConfig(), **{field.name: value}) != DecoderConfig()
    assert with_fields(DecoderConfig(), {field.name: str(value)}) == changed


def test_other_types():
    changed = with_fields(Config(), {"widths": "3, 4 5", "range": [1, 2], "scale": "none", "flag": "False"})
    assert changed == Config((3, 4, 5), (1.0, 2.0), None, False)
    assert with_fields(Config(), {"widths": [7], "scale": 2}) == Config((7,), scale=2.0)


def test_what_runs_of_before_have_written_down():
    assert with_fields(DecoderConfig(), {"layers_at_once": 1, "layers": 3}) == DecoderConfig(layers=3)


test_messages = pinned(
    {
        "no such field": (
            mx.ArgumentError,
            lambda: with_fields(DecoderConfig(), {"d_modle": 4}),
            """
            the model has no field 'd_modle'.
              fix: did you mean "d_model"?
            """,
        ),
        "a word for a number": (
            mx.ArgumentError,
            lambda: with_fields(DecoderConfig(), {"d_model": "wide"}),
            """
            the field 'd_model' of the model cannot be 'wide'.
              rule: it is a whole number.
              fix: correct it, or leave it out.
            """,
        ),
        "a switch for a number": (
            mx.ArgumentError,
            lambda: with_fields(DecoderConfig(), {"kv_heads": True}),
            """
            the field 'kv_heads' of the model cannot be True.
              rule: it is a whole number or none.
              fix: correct it, or leave it out.
            """,
        ),
        "a number for a switch": (
            mx.ArgumentError,
            lambda: with_fields(DecoderConfig(), {"tied": 1}),
            """
            the field 'tied' of the model cannot be 1.
              rule: it is true or false.
              fix: correct it, or leave it out.
            """,
        ),
        "too few": (
            mx.ArgumentError,
            lambda: with_fields(Config(), {"range": [1]}),
            """
            the field 'range' of the model cannot be [1].
              rule: it is tuple[float, float].
              fix: correct it, or leave it out.
            """,
        ),
    }
)
