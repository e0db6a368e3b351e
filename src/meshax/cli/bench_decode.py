"""`meshax bench decode`."""

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from .bench_step import table
from .model_options import ModelGroup, ModelOptions, given_fields
from .options import Reporting, UsageError, progress_console, usage, use_processors

if TYPE_CHECKING:
    from ..bench.decode import Decoding, Measurement


@dataclass(kw_only=True)
class BenchDecode(Reporting):
    """Measures how fast a model writes: milliseconds a token, and what share of the memory's bandwidth that is.

    meshax bench decode --preset lm-1.28b --slots 1,8 --context 1024 --beside jax torch
    """

    preset: Annotated[str, arg(metavar="NAME", help="The model, with random weights (see meshax presets).")] = "tiny"
    run_: Annotated[str, arg(name="run", metavar="DIR", help="In place of a preset: a run.", help_behavior_hint="")] = (
        ""
    )
    model: ModelGroup = field(default_factory=ModelOptions)
    slots: Annotated[
        tuple[str, ...], arg(metavar="N,N...", help="How many texts to write at once; several are measured each.")
    ] = ("1",)
    context: Annotated[int, arg(metavar="N", help="How long the texts are.")] = 1024
    tokens: Annotated[int, arg(metavar="N", help="Tokens written in a round, by one program.")] = 64
    page: Annotated[int, arg(metavar="N", help="How many tokens a page of the cache holds.")] = 64
    mesh: Annotated[str, arg(metavar="AXES", help="The processors; none: all there are, or one of a CPU.")] = ""
    layout: Annotated[str, arg(metavar="RULES", help="Rules, or a name: see meshax train.")] = "model"
    layers_as: Annotated[str, arg(metavar="HOW", help="loop, unrolled or auto; none: the preset's.")] = ""
    dtype: Annotated[str, arg(metavar="DTYPE", help="Of weights and products; none: the preset's.")] = ""
    rounds: Annotated[int, arg(metavar="N", help="Rounds of which the median counts.")] = 5
    turns: Annotated[int, arg(metavar="N", help="With --beside: how often each program has its rounds.")] = 2
    beside: Annotated[
        tuple[str, ...],
        arg(metavar="PROGRAM", help="Measure in turns with the same model by hand: jax, torch, or both."),
    ] = ()

    def run(self) -> None:
        """Measures and prints."""
        asked = self._asked()
        use_processors(self.mesh or "model:1")
        from ..bench.decode import FORMULA

        results = [one for decoding in asked for one in self._measured(decoding)]
        data = {"formula": FORMULA, "measurements": [one.as_dict() for one in results]}
        self.report(data, as_text(results, FORMULA), folded=False)

    def _measured(self, decoding: "Decoding") -> "list[Measurement]":
        from ..bench.decode import measure
        from ..bench.decode_beside import in_turns, together

        console, what = progress_console(), f"measuring {self.run_ or self.preset}, slots: {decoding.slots}"
        if not self._beside:
            with console.status(what):
                return [measure(decoding, self.rounds)]
        programs = ("meshax", *self._beside)
        measured: dict[str, list[Measurement]] = {program: [] for program in programs}
        with console.status(f"{what}, each program in a process of its own") as status:
            for one in in_turns(programs, decoding, self.turns, self.rounds, profile=True):
                measured[one.program].append(one)
                status.update(f"{what}. {one.program}: {one.seconds * 1e3:.3f} ms a token")
        return [together(several) for several in measured.values()]

    @property
    def _beside(self) -> tuple[str, ...]:
        return _listed(self.beside)

    def _asked(self) -> "list[Decoding]":
        """Returns what to measure, for each number of slots."""
        for name in ("rounds", "turns"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}.", fix="give a number, 1 or more.")
        if unknown := [name for name in self._beside if name not in ("jax", "torch")]:
            raise UsageError(f"there is no program {unknown[0]!r}.", fix="choose jax, torch, or both.")
        if self._beside and self.mesh:
            raise UsageError("programs by hand run on one processor.", fix="leave out --mesh, or --beside.")
        if wrong := [number for number in _listed(self.slots) if not number.isdecimal()]:
            raise UsageError(f"{wrong[0]!r} is no number of slots.", fix="write for example --slots 1,8.")
        if not _listed(self.slots):
            raise UsageError("there is no number of slots.", fix="write for example --slots 1,8.")
        from ..bench.decode import Decoding
        from ..bench.plain_jax_decode import decoder_like

        names = [one.name for one in fields(Decoding) if one.name not in ("fields", "run", "slots")]
        with usage():
            first = Decoding(
                run=self.run_, fields=given_fields(self.model), **{name: getattr(self, name) for name in names}
            )
            config = first.model()
            if self._beside:
                decoder_like(config)
            return [replace(first, slots=int(number)) for number in _listed(self.slots)]


def _listed(words: tuple[str, ...]) -> tuple[str, ...]:
    """Returns words that stand beside each other, or between commas."""
    return tuple(part for word in words for part in word.split(",") if part)


def as_text(results: "list[Measurement]", formula: str) -> str:
    """Returns measurements for reading: a line for each, then the time by kind of kernel."""
    first = results[0]
    lines = [f"{first.name}: {first.parameters:,} parameters, texts of {first.context:,} tokens, {first.device}", ""]
    columns = ["program", "slots", "a token", "bound", "share", "tokens/s", "first token", "peak memory"]
    lines += table([columns, *(_row(one) for one in results)])
    if spent := [one for one in results if one.kernels]:
        kinds = list(dict.fromkeys(kind for one in spent for kind in one.kernels))
        lines += ["", *table([["ms of a token", "slots", *kinds], *(_kernels(one, kinds) for one in spent)])]
    speed = f"{first.bandwidth / 1e12:g} TB/s" if first.bandwidth else "unknown here"
    return "\n".join([*lines, "", f"bound: {formula} ({speed})"])


def _row(one: "Measurement") -> list[str]:
    return [
        one.program,
        str(one.slots),
        f"{one.seconds * 1e3:.3f} ms",
        "unknown" if one.bound is None else f"{one.bound * 1e3:.3f} ms",
        "unknown" if one.share is None else f"{one.share:.1%}",
        f"{one.slots / one.seconds:,.0f}",
        f"{one.first_token_seconds * 1e3:.1f} ms" if one.first_token_seconds else "",
        f"{one.peak_bytes / 2**30:.1f} GiB" if one.peak_bytes else "unknown",
    ]


def _kernels(one: "Measurement", kinds: list[str]) -> list[str]:
    return [one.program, str(one.slots), *(f"{one.kernels.get(kind, 0.0) * 1e3:.3f}" for kind in kinds)]
