"""Models by name, of every kind."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from ..errors import ArgumentError, did_you_mean
from .contract import Preset

KINDS = ("decoder", "encoder_decoder", "unet", "resnet", "encoder", "prefix_decoder")  # folders beside this file


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
    """Returns the preset of a name; a kind of model is one with the defaults of its fields, and no sizes of a batch."""
    if name in KINDS:
        first = next(p for p in import_module(f"{__package__}.{name}").PRESETS)
        return Preset(name, "", type(first.model)(), dict.fromkeys(first.batch, 0), 0.0, "to be given its sizes")
    if name not in PRESETS:
        raise ArgumentError(f"there is no preset {name!r}.", fix=did_you_mean(name, (*PRESETS, *KINDS)))
    return PRESETS[name]


def batch_sizes(chosen: Preset, asked: Mapping[str, int]) -> dict[str, int]:
    """Returns the sizes of the dims of a batch, by name: the preset's, with those asked for (and not 0) instead."""
    changes = {name: size for name, size in asked.items() if size}
    for name, size in changes.items():
        if name not in chosen.batch:
            raise ArgumentError(
                f"{name} is {size!r}, and the model of the preset {chosen.name!r} has none.",
                fix="leave it out, or choose another preset.",
            )
    sizes = {**chosen.batch, **changes}
    if open_ := [name for name, size in sizes.items() if not size]:
        raise ArgumentError(
            f"nothing says the {' and the '.join(open_)} of a step.",
            rule=f"{chosen.name!r} is a kind of model, and has no sizes of its own.",
            fix=f"give {' and '.join(f'{name}=' for name in open_)}, or start from a preset.",
        )
    return sizes
