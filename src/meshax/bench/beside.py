"""The same step by other programs, measured as ours is: by hand in JAX, and in PyTorch.

Run as a program, this module measures one and prints JSON: each has a process, and the machine's memory, of its own.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import ArgumentError
from ..train.options import AUTO
from . import plain_jax
from . import turns as turns_
from .step import Measurement, Step, measure, needed_flops, timed_rounds
from .turns import Say, in_silence


def measure_jax(step: Step, rounds: int, steps: int, profile: bool, say: Say = in_silence) -> Measurement:
    """Measures the program by hand."""
    import jax
    import jax.numpy as jnp

    from ..mesh import Mesh
    from ..models.contract import parameter_count
    from ..plan.cost.hardware import peak_of_device
    from ..train.step import compiler_options

    mesh, (batch, length) = Mesh("device:1"), step.sizes().values()
    config = step.fitted(mesh, step.placed(mesh))
    if config.keep not in plain_jax.REMAT:  # chosen here, where memory is short
        raise ArgumentError(f"no program by hand keeps {config.keep!r}.", fix=f"choose {', '.join(plain_jax.REMAT)}.")
    attention: Any = "cudnn" if jax.default_backend() == "gpu" else "xla"
    model = plain_jax.like(config, keep=config.keep, attention=attention)
    say("drawing the parameters")
    w: Any = jax.jit(model.init)(jax.random.key(0))
    state = plain_jax.adafactor_state(w)
    tokens = jax.random.randint(jax.random.key(1), (batch, length), 2, config.vocab)
    flags = compiler_options(mesh, step.compiler_options)
    jitted = jax.jit(plain_jax.train_step(model), donate_argnums=(0, 1), compiler_options=flags or None)
    jax.block_until_ready((w, state, tokens))
    say("tracing")
    begin = time.perf_counter()
    traced = jitted.trace(w, state, 0, tokens, tokens)
    middle = time.perf_counter()
    say(f"traced in {middle - begin:.1f} s, compiling")
    compiled = traced.lower().compile()
    end = time.perf_counter()
    say(f"compiled in {end - middle:.1f} s, running")
    w, state, value = compiled(w, state, 0, tokens, tokens)
    loss = float(value)

    def run() -> Any:
        nonlocal w, state, value
        for _ in range(steps):
            w, state, value = compiled(w, state, 1, tokens, tokens)
        return value

    timed, kernels = timed_rounds(run, rounds, steps, compiled.as_text() or "" if profile else "")
    device = jax.devices()[0]
    return Measurement(
        "jax", parameter_count(config), batch * length, statistics.median(timed), timed, end - middle, middle - begin,
        int((device.memory_stats() or {}).get("peak_bytes_in_use", 0)), needed_flops(config, batch, length),
        peak_of_device(device.device_kind, jnp.dtype(config.dtype)), loss, device.device_kind, kernels,
        config.keep,
    )  # fmt: skip


def check(step: Step, beside: Sequence[str]) -> None:
    """Raises unless the programs by hand compute the same as ours."""
    config, keep = step.model(), step.keep or step.fields.get("keep", "")
    plain_jax.like(config)
    problems = [f"--optimizer {step.optimizer} (they have adafactor)"] if step.optimizer != "adafactor" else []
    problems += [f"--{name}" for name in ("packed", "overlap") if getattr(step, name)]
    problems += [f"--layout {step.layout}"] if step.layout != "none" else []
    if "jax" in beside and keep not in ("", AUTO, *plain_jax.REMAT):
        problems.append(f"--keep {keep} (it has {', '.join(plain_jax.REMAT)})")
    if "torch" in beside:
        problems += [f"--dtype {config.dtype} (torch has bfloat16)"] if config.dtype != "bfloat16" else []
    if problems:
        raise ArgumentError(
            "no program by hand does that.", values="; ".join(problems), fix="leave that out, or the others."
        )


def measure_program(
    program: str, step: Step, rounds: int, steps: int, profile: bool, say: Say = in_silence
) -> Measurement:
    """Measures one of `turns.PROGRAMS` in this process."""
    if program == "meshax":
        return measure(step, rounds, steps, profile, say)
    if program == "jax":
        return measure_jax(step, rounds, steps, profile, say)
    from .plain_torch import measure_torch

    return measure_torch(step, rounds, steps, say)


def in_turns(
    programs: Sequence[str],
    step: Step,
    turns: int,
    steps: int,
    profile: bool,
    say: Say = in_silence,
    limit: float = 0.0,
) -> Iterator[Measurement]:
    """Measures programs one after the other, several times, each in a process of its own: see `turns.in_turns`."""
    asked = {"step": dataclasses.asdict(step), "steps": steps}
    for measured in turns_.in_turns(__name__, programs, asked, turns, profile, say, limit):
        yield Measurement(**measured)


def together(measurements: Sequence[Measurement]) -> Measurement:
    """Returns the measurements of one program as one: all rounds, the median of compiling, and the first one's profile.

    The first process on a machine compiles longer, whichever program it has: what it reads is not in memory yet.
    """
    rounds = tuple(seconds for m in measurements for seconds in m.rounds)
    return dataclasses.replace(
        measurements[0],
        rounds=rounds,
        seconds=statistics.median(rounds),
        compile_seconds=statistics.median(m.compile_seconds for m in measurements),
        trace_seconds=statistics.median(m.trace_seconds for m in measurements),
        peak_bytes=max(m.peak_bytes for m in measurements),
    )


def main() -> None:
    """Measures what standard input asks for, and prints it."""
    turns_.answer(
        lambda asked, say: measure_program(
            asked["program"], Step(**asked["step"]), 1, asked["steps"], asked["profile"], say
        )
    )


if __name__ == "__main__":
    main()
