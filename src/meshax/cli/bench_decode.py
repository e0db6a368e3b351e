"""`meshax bench decode`."""

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from ..errors import MeshaxError
from .beside import BesideOption, LimitOption, check_beside, listed, measured_beside, table
from .model_options import ModelGroup, ModelOptions, given_fields
from .options import Reporting, UsageError, same, usage, use_processors

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
    beside: BesideOption = ()
    limit: LimitOption = 0.0

    def run(self) -> None:
        """Measures and prints."""
        asked = self._asked()
        use_processors(self.mesh or "model:1")
        from ..bench.decode import FORMULA

        results: list[Measurement] = []
        failures = []
        for decoding in asked:
            several, failure = self._measured(decoding)
            results += several
            failures += [failure] if failure else []
        data = {"formula": FORMULA, "measurements": [one.as_dict() for one in results]}
        if results:
            self.report(data, as_text(results, FORMULA), folded=False)
        if failures:
            raise failures[0]

    def _measured(self, decoding: "Decoding") -> "tuple[list[Measurement], MeshaxError | None]":
        from ..bench.decode import measure
        from ..bench.decode_beside import in_turns, together

        measured, failure = measured_beside(
            self._beside,
            f"measuring {self.run_ or self.preset}, slots: {decoding.slots}",
            lambda say: measure(decoding, self.rounds, say=say),
            lambda programs, say: in_turns(programs, decoding, self.turns, self.rounds, True, say, self.limit),
        )
        return [together(several) for several in measured.values()], failure

    @property
    def _beside(self) -> tuple[str, ...]:
        return listed(self.beside)

    def _asked(self) -> "list[Decoding]":
        """Returns what to measure, for each number of slots."""
        for name in ("rounds", "turns"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} is {getattr(self, name)}.", fix="give a number, 1 or more.")
        check_beside(self._beside, self.mesh, self.limit)
        if wrong := [number for number in listed(self.slots) if not number.isdecimal()]:
            raise UsageError(f"{wrong[0]!r} is no number of slots.", fix="write for example --slots 1,8.")
        if not listed(self.slots):
            raise UsageError("there is no number of slots.", fix="write for example --slots 1,8.")
        from ..bench.decode import Decoding
        from ..bench.plain_jax_decode import decoder_like

        names = [one.name for one in fields(Decoding) if one.name not in ("fields", "run", "slots")]
        with usage():
            given = given_fields(self.model)
            asked = {name: getattr(self, name) for name in names}
            asked |= {name: same(name, asked[name], given[name]) for name in asked.keys() & given.keys()}
            first = Decoding(run=self.run_, fields=given, **asked)
            config = first.model()
            if self._beside:
                decoder_like(config)
            return [replace(first, slots=int(number)) for number in listed(self.slots)]


def as_text(results: "list[Measurement]", formula: str) -> str:
    """Returns measurements for reading: a line for each, then the time by kind of kernel."""
    first = results[0]
    lines = [f"{first.name}: {first.parameters:,} parameters, texts of {first.context:,} tokens, {first.device}", ""]
    columns = ["program", "slots", "a token", "bound", "share", "tokens/s", "first token", "peak memory"]
    lines += table([columns, *(_row(one) for one in results)])
    if spent := [one for one in results if one.kernels]:
        kinds = list(dict.fromkeys(kind for one in spent for kind in one.kernels))
        lines += ["", *table([["ms of a profiled token", "slots", *kinds], *(_kernels(one, kinds) for one in spent)])]
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
