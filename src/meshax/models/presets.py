"""Models by name, of every kind."""

from collections.abc import Iterator
from importlib import import_module

from ..errors import ArgumentError, did_you_mean
from .contract import Preset

KINDS = ("decoder",)  # folders beside this file, each with its PRESETS


def _presets() -> Iterator[Preset]:
    for kind in KINDS:
        yield from import_module(f"{__package__}.{kind}").PRESETS


PRESETS: dict[str, Preset] = {preset.name: preset for preset in _presets()}


def show_parameters(count: int) -> str:
    """Returns a number of parameters for reading: in billions, as names have them, or in millions.

    >>> show_parameters(4_896_000_000), show_parameters(656_000)
    ('4.90 B', '0.66 M')
    """
    return f"{count / 1e9:.2f} B" if count >= 1e8 else f"{count / 1e6:.2f} M"


def preset(name: str) -> Preset:
    """Returns the preset of a name."""
    if name not in PRESETS:
        raise ArgumentError(f"there is no preset {name!r}.", fix=did_you_mean(name, PRESETS))
    return PRESETS[name]
