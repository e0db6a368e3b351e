"""`meshax serve`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from .options import UsageError, usage
from .written import OnTrained


@dataclass(kw_only=True)
class Serve(OnTrained):
    """Writes for whoever asks over HTTP, with a trained model: OpenAI's /v1/completions.

    meshax serve --run runs/tiny --port 8000
    """

    host: Annotated[str, arg(metavar="ADDRESS", help="Where to listen; 0.0.0.0: for other machines too.")] = "127.0.0.1"
    port: Annotated[int, arg(metavar="N", help="On which port; 0: on one that is free.")] = 8000
    name: Annotated[
        str, arg(metavar="NAME", help="What the model is called.", help_behavior_hint="(default: the directory's name)")
    ] = ""
    slots: Annotated[int, arg(metavar="N", help="How many texts to write at once.")] = 8
    places: Annotated[
        int,
        arg(
            metavar="N",
            help="How many tokens a text has at most, its prompt included.",
            help_behavior_hint="(default: 1024, or as many as there are learned positions)",
        ),
    ] = 0
    chunk: Annotated[int, arg(metavar="N", help="How many tokens to write before they are sent.")] = 16
    queue: Annotated[int, arg(metavar="N", help="How many texts may wait for a slot.")] = 64
    max_prompt: Annotated[int, arg(metavar="N", help="Tokens of a prompt; 0: as there is room.")] = 0
    max_tokens: Annotated[int, arg(metavar="N", help="Tokens to write for a request; 0: as there is room.")] = 0
    max_bytes: Annotated[int, arg(metavar="N", help="Bytes of a request.")] = 4 << 20
    grace: Annotated[float, arg(metavar="SECONDS", help="To finish in what runs, when told to stop.")] = 30.0
    warm: Annotated[bool, arg(help="Compile for texts of every length before listening.", help_behavior_hint="")] = (
        False
    )

    def run(self) -> None:
        """Restores and serves until Ctrl-C or SIGTERM."""
        from ..serve.server import ServerOptions, address_of, bound, check_port, serve, warm_up

        for name, least in (("slots", 1), ("places", 0), ("chunk", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}.", fix="give a number, 1 or more.")
        name = self.name or Path(self.run_).resolve().name
        with usage():
            options = ServerOptions(name, self.queue, self.max_prompt, self.max_tokens, self.max_bytes, self.grace)
            check_port(self.port)
        own = bound(self.host, self.port)
        with self.restored() as run:
            from ..decode import Engine
            from ..decode.planning import usual_context

            places = self.places or usual_context(run.model.config)
            engine = Engine(
                run.model, run.mesh, run.layout, slots=self.slots, places=places,
                chunk=self.chunk, decode=run.words.decode,
            )  # fmt: skip
            with run.console.status("compiling"):
                warm_up(engine, self.warm)
            url = address_of(own)
            serve(engine, run.words, options, own, run.work, lambda: self._say(url, name))

    def _say(self, url: str, name: str) -> None:
        """Says where it is: whoever starts it with --port 0 reads it here."""
        self.report(
            {"url": url, "model": name}, f"{name} is served at {url}/v1/completions; Ctrl-C stops", folded=False
        )
        sys.stdout.flush()
