"""`meshax generate`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from ..interrupts import Stopped
from .options import UsageError, usage
from .written import OnTrained, Restored, read_lines

if TYPE_CHECKING:
    from ..decode import Request, Written


@dataclass(kw_only=True)
class Generate(OnTrained):
    """Writes on from beginnings, with a trained model.

    meshax generate --run runs/tiny --prompt "def "
    """

    prompt: Annotated[tuple[str, ...], arg(metavar="TEXT ...", help="The beginnings.", help_behavior_hint="")] = ()
    prompts: Annotated[
        str,
        arg(metavar="FILE", help="A file with a beginning on each line; - is standard input.", help_behavior_hint=""),
    ] = ""
    tokens: Annotated[
        str,
        arg(metavar="N", help="How many tokens to write at most: a number, or 1.5x+10 for a beginning of x tokens."),
    ] = "100"
    temperature: Annotated[float, arg(metavar="T", help="Below 1 the likely become likelier; 0: the likeliest.")] = 0.8
    top_k: Annotated[int, arg(metavar="K", help="Draw among so many of the likeliest; 0: among all.")] = 40
    top_p: Annotated[float, arg(metavar="P", help="Draw among the likeliest that have this probability together.")] = (
        1.0
    )
    min_p: Annotated[float, arg(metavar="P", help="Draw among those with this share of the likeliest's.")] = 0.0
    repetition_penalty: Annotated[float, arg(metavar="X", help="Above 1 what is there is not repeated.")] = 1.0
    stop: Annotated[
        tuple[str, ...],
        arg(metavar="TEXT ...", help="Strings that end a text, beside its own end.", help_behavior_hint=""),
    ] = ()
    beam: Annotated[int, arg(metavar="B", help="Search with so many beams in place of drawing; 0: draw.")] = 0
    length_penalty: Annotated[float, arg(metavar="A", help="Of a search: the exponent; 0: lengths do not count.")] = 0.6
    length_penalty_by: Annotated[
        str, arg(metavar="NAME", help="Of a search: paper, ((5+n)/6)^A, or power, n^A, for n tokens.")
    ] = "paper"
    nbest: Annotated[int, arg(metavar="N", help="How many texts for each beginning, the likeliest first.")] = 1
    seed: Annotated[int, arg(metavar="N", help="Chooses the draws.")] = 0
    slots: Annotated[int, arg(metavar="N", help="How many texts to write at once.")] = 8
    logprobs: Annotated[
        int,
        arg(
            metavar="N",
            help="With --json: how likely each token was, and the N likeliest in its place, 5 at most.",
            help_behavior_hint="(default: nothing)",
        ),
    ] = -1

    def run(self) -> None:
        """Restores and writes; after Ctrl-C what is done is printed."""
        prompts = self._prompts()
        self._check()
        results: list[dict[str, Any]] = []
        streams = len(prompts) == self.nbest == 1 and not self.json and not self.beam
        try:
            with self.restored() as run:
                if self.json or self.prompts:
                    run.work.begin()  # what is done is printed, whatever comes
                for result in self._written(run, prompts, streams):
                    results.append(result)
                    if not self.json and not streams:
                        self._show(result, is_first=len(results) == 1)
        finally:
            if self.json and results:
                self.report({"results": results}, "")

    def _check(self) -> None:
        """Raises if nobody can do what is asked."""
        from ..decode.requests import MAX_CANDIDATES

        if not -1 <= self.logprobs <= MAX_CANDIDATES:
            raise UsageError(f"logprobs is {self.logprobs}.", fix=f"give a number, 0 to {MAX_CANDIDATES}.")
        self._request((0,), self.seed, (0,))
        for name, least in (("nbest", 1), ("slots", 1), ("beam", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}.", fix=f"give a number, {least} or more.")
        if self.beam and (self.nbest > self.beam or self.stop):
            raise UsageError(
                "a search gives at most as many texts as it has beams, and no string stops it.",
                values=f"{self.beam} beams, the best {self.nbest}" + (f", stop {self.stop[0]!r}" if self.stop else ""),
                fix="give more beams, or draw: --beam 0.",
            )
        if self.logprobs >= 0 and (self.beam or not self.json):
            raise UsageError(
                "log-probabilities of tokens are told with --json, of texts that are drawn.",
                fix="add --json, and leave out --beam, or leave out --logprobs.",
            )

    def _written(self, run: Restored, prompts: list[str], streams: bool) -> Iterator[dict[str, Any]]:
        """Yields what is written for each prompt, in their order; after Ctrl-C without those that are not done."""
        from rich.progress import track

        encoded = [(run.words.begin, *tokens) for tokens in run.words.encode_batch(prompts)]
        texts = (
            self._searched(run, encoded) if self.beam else self._drawn(run, encoded, prompts[0] if streams else None)
        )
        for number, outputs in track(
            texts, "writing", len(prompts), console=run.console, disable=not self.prompts, auto_refresh=False
        ):
            yield {"prompt": prompts[number], "outputs": outputs}

    def _drawn(
        self, run: Restored, encoded: list[tuple[int, ...]], shown: str | None
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yields the texts drawn for each prompt, by its number; one that is shown as it comes is shown with it."""
        from ..decode import Engine

        places = max(len(tokens) + self._longest(tokens) for tokens in encoded)
        engine = Engine(
            run.model, run.mesh, run.layout, slots=min(self.slots, len(encoded) * self.nbest), places=places,
            decode=run.words.decode,
        )  # fmt: skip
        numbers = [
            [engine.submit(self._request(tokens, self.seed + i, run.words.stops)) for i in range(self.nbest)]
            for tokens in encoded
        ]
        if shown is not None:
            print(shown, end="", flush=True)
            shown = ""
        done: dict[int, Any] = {}

        def is_whole(prompt: int) -> bool:
            return all(number in done for number in numbers[prompt])

        def outputs(prompt: int) -> list[dict[str, Any]]:
            each = [self._output(run, done.pop(number), encoded[prompt]) for number in numbers[prompt]]
            return sorted(each, key=lambda output: -output["score"])

        for prompt in range(len(encoded)):
            while not is_whole(prompt):
                try:
                    run.work.check()
                except Stopped:
                    yield from ((later, outputs(later)) for later in range(prompt, len(encoded)) if is_whole(later))
                    raise
                for number, written in engine.turn():
                    if shown is not None:
                        shown = self._print_on(shown, written, run.words.decode(written.tokens, encoded[0]))
                    if written.ended_by:
                        done[number] = written
            yield prompt, outputs(prompt)
        if shown is not None and not shown.endswith("\n"):
            print()

    def _output(self, run: Restored, written: "Written", prompt: tuple[int, ...]) -> dict[str, Any]:
        from ..decode.likelihoods import logprobs_of
        from ..decode.texts import Spelling

        text = run.words.decode(written.tokens, prompt) if written.text is None else written.text
        output = {"text": text, "tokens": written.tokens, "score": written.log_probability}
        if self.logprobs < 0:
            return output
        rivals = written.candidates if self.logprobs else None
        likely = written.log_probabilities[: len(written.tokens)]
        spelling = Spelling(run.words.decode, prompt)
        return output | {"logprobs": logprobs_of(written.tokens, likely, rivals, spelling, run.words.name_of)}

    def _searched(self, run: Restored, encoded: list[tuple[int, ...]]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yields the best texts found for each prompt, by its number."""
        from ..decode.beams import BeamSearch

        places = max(len(tokens) + self._longest(tokens) for tokens in encoded)
        with usage():
            search = BeamSearch(
                run.model, run.mesh, run.layout, beams=self.beam, length_penalty=self.length_penalty_by,
                alpha=self.length_penalty, slots=min(self.slots, len(encoded)), places=places,
            )  # fmt: skip
        requests = [self._request(tokens, self.seed, run.words.stops) for tokens in encoded]
        for prompt, texts in enumerate(search.search(requests)):
            each = [(text, run.words.decode(text.tokens, encoded[prompt])) for text in texts[: self.nbest]]
            yield prompt, [{"text": shown, "tokens": text.tokens, "score": text.score} for text, shown in each]
            if (prompt + 1) % search.batch.size == 0:  # those that were searched for together are all there
                run.work.check()

    def _print_on(self, shown: str, written: "Written", text: str) -> str:
        """Prints what is new of a text, and sure to stay."""
        from ..decode.texts import sure_part

        whole = text if written.text is None else written.text
        new = whole if written.ended_by else sure_part(whole, self.stop)
        print(new[len(shown) :], end="", flush=True)
        return new

    def _show(self, result: dict[str, Any], is_first: bool) -> None:
        if not is_first:
            print()
        for output in result["outputs"]:
            print(result["prompt"] + output["text"].rstrip("\n"), flush=True)

    def _request(self, tokens: tuple[int, ...], seed: int, ends: tuple[int, ...]) -> "Request":
        from ..decode import Request

        with usage():
            return Request(
                tokens, self._longest(tokens), self.temperature, self.top_k, self.top_p, self.min_p,
                self.repetition_penalty, stop=ends, stop_strings=self.stop, seed=seed,
                candidates=max(self.logprobs, 0), log_probabilities=self.json,
            )  # fmt: skip

    def _longest(self, tokens: tuple[int, ...]) -> int:
        from ..decode import Longest

        with usage():
            return Longest.read(self.tokens).of(len(tokens))

    def _prompts(self) -> list[str]:
        if self.prompts and self.prompt:
            raise UsageError("there are prompts and a file of prompts.", fix="give one of the two.")
        prompts = read_lines(self.prompts, "prompts") if self.prompts else list(self.prompt or ("def ",))
        if not prompts:
            raise UsageError("there is no prompt.", values=self.prompts, fix="write one on each line of the file.")
        return prompts
