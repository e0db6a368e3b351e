"""The paper's parameter counts, to the printed digits, without making a parameter."""

import pytest

import meshax as mx
from meshax.models.contract import parameter_count
from meshax.models.presets import PRESETS, preset


@pytest.mark.parametrize("name", [name for name, p in PRESETS.items() if p.family == "paper"])
def test_the_papers_parameter_counts(name):
    assert f"lm-{parameter_count(preset(name).model) / 1e9:.2f}b" == name


@pytest.mark.parametrize(("name", "billions"), [("modern-0.1b", 0.13), ("modern-1b", 1.1), ("modern-7b", 7.1)])
def test_modern_sizes(name, billions):
    assert parameter_count(preset(name).model) / 1e9 == pytest.approx(billions, rel=0.1)


def test_a_wrong_name():
    with pytest.raises(mx.ArgumentError, match='did you mean "lm-4.90b"'):
        preset("lm-4.9b")
