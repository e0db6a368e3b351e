"""The same writing by other programs, measured as ours is: by hand in JAX, and in PyTorch.

Run as a program, this module measures one and prints JSON: each has a process, and the machine's memory, of its own.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from ..errors import ArgumentError
from ..models.contract import parameter_count
from ..plan.cost.hardware import bandwidth_of_device
from . import turns as turns_
from .decode import Decoding, Measurement, measure, with_profile
from .kernel_times import Took
from .plain_jax_decode import PlainDecoder, decoder_like
from .turns import Say, in_silence


def measure_program(program: str, decoding: Decoding, rounds: int, profile: bool, say: Say = in_silence) -> Measurement:
    """Measures one of `turns.PROGRAMS` in this process."""
    if program == "meshax":
        return measure(decoding, rounds, profile, say)
    return (measure_jax if program == "jax" else measure_torch)(decoding, rounds, profile, say)


def measure_jax(decoding: Decoding, rounds: int, profile: bool, say: Say = in_silence) -> Measurement:
    """Measures the program by hand."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    model, begin = decoder_like(decoding.model()), time.perf_counter()
    say("drawing the weights")
    w: Any = jax.jit(model.init)(jax.random.key(0))
    cache = jax.jit(partial(model.empty_cache, decoding.slots, decoding.places))()
    token, at = jnp.zeros(decoding.slots, jnp.int32), jnp.int32(decoding.context - 1)
    write = jax.jit(partial(model.write, tokens=decoding.tokens), donate_argnums=1)
    compiled = write.lower(w, cache, token, at).compile()

    def queue() -> Any:
        nonlocal cache
        cache, written = compiled(w, cache, token, at)
        return written

    queued = [queue()]

    def turn() -> None:  # the next one is queued before the last one is read, as by meshax
        queued.append(queue())
        np.asarray(queued.pop(0))

    timed, start = _timed(turn, begin, rounds, decoding.tokens, say)
    np.asarray(queued.pop())
    device = jax.devices()[0]
    peak = int((device.memory_stats() or {}).get("peak_bytes_in_use", 0))
    measured = _measurement("jax", decoding, model, timed, start, device.device_kind, peak)
    return with_profile(measured, lambda: np.asarray(queue()), compiled.as_text() or "") if profile else measured


def measure_torch(decoding: Decoding, rounds: int, profile: bool, say: Say = in_silence) -> Measurement:
    """Measures the PyTorch program on the first GPU; it has no profile."""
    try:
        import torch
    except ImportError:
        raise ArgumentError("PyTorch is not installed here.", fix="pip install torch, or leave it out.") from None
    if not torch.cuda.is_available():
        raise ArgumentError("PyTorch sees no GPU.", fix="leave it out.")
    from .plain_torch_decode import make_step

    model, begin = decoder_like(decoding.model()), time.perf_counter()
    with torch.inference_mode():
        step = make_step(torch, model, decoding.slots, decoding.places, "cuda")
        compiled: Any = torch.compile(step, mode="reduce-overhead", fullgraph=True)
        first = torch.zeros(decoding.slots, dtype=torch.long, device="cuda")
        places = [torch.tensor([decoding.context - 1 + number], device="cuda") for number in range(decoding.tokens)]

        def turn() -> None:
            token, written = first, []
            for at in places:
                torch.compiler.cudagraph_mark_step_begin()
                token = compiled(token, at).clone()
                written.append(token)
            torch.stack(written).cpu()

        timed, start = _timed(turn, begin, rounds, decoding.tokens, say)
    peak = int(torch.cuda.max_memory_allocated())
    return _measurement("torch", decoding, model, timed, start, torch.cuda.get_device_name(0), peak)


def _timed(
    turn: Callable[[], None], begin: float, rounds: int, tokens: int, say: Say
) -> tuple[tuple[float, ...], float]:
    """Returns the seconds of a token in each round, and those until two rounds before them are done."""
    say("compiling, and running twice")
    turn()
    turn()
    start, timed = time.perf_counter() - begin, []
    say(f"ran after {start:.1f} s, measuring")
    for _ in range(rounds):
        begin = time.perf_counter()
        turn()
        timed.append((time.perf_counter() - begin) / tokens)
    return tuple(timed), start


def _measurement(
    program: str,
    decoding: Decoding,
    model: PlainDecoder,
    timed: tuple[float, ...],
    start: float,
    device: str,
    peak: int,
) -> Measurement:
    config, width = decoding.model(), 2 if model.dtype in ("bfloat16", "float16") else 4
    parameters = parameter_count(config)
    weights = (parameters - model.vocab * model.d_model) * width
    cache = 2 * decoding.slots * model.layers * decoding.places * model.kv_heads * model.d_kv * width
    return Measurement(
        program, decoding.run or decoding.preset, parameters, decoding.slots, decoding.context, decoding.tokens,
        statistics.median(timed), timed, 0.0, start, float(weights), float(cache),
        bandwidth_of_device(device), peak, device,
    )  # fmt: skip


def in_turns(
    programs: Sequence[str],
    decoding: Decoding,
    turns: int,
    rounds: int,
    profile: bool,
    say: Say = in_silence,
    limit: float = 0.0,
) -> Iterator[Measurement]:
    """Measures programs one after the other, several times, each in a process of its own: see `turns.in_turns`."""
    asked = {"decoding": asdict(decoding), "rounds": rounds}
    for measured in turns_.in_turns(__name__, programs, asked, turns, profile, say, limit):
        yield read(measured)


def read(data: dict[str, Any]) -> Measurement:
    """Returns a measurement that another process has written."""
    took = tuple(Took(**one) for one in data["longest"])
    return Measurement(**{**data, "rounds": tuple(data["rounds"]), "longest": took})


def together(measurements: Sequence[Measurement]) -> Measurement:
    """Returns the measurements of one program as one: all rounds, and the first one's profile."""
    rounds = tuple(seconds for one in measurements for seconds in one.rounds)
    return replace(measurements[0], rounds=rounds, seconds=statistics.median(rounds))


def main() -> None:
    """Measures what standard input asks for, and prints it."""
    turns_.answer(
        lambda asked, say: measure_program(
            asked["program"], Decoding(**asked["decoding"]), asked["rounds"], asked["profile"], say
        )
    )


if __name__ == "__main__":
    main()
