"""The application that a web server runs: what is answered at each address.

Nothing here touches a device: a request becomes texts in the queue, and what is new of them comes back through an
asyncio queue of its own. Whoever hangs up is not written for any longer.
"""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from ..extras import extra
from .batching import Batcher, News, Text, stopping
from .completions import Choice, Completion, Limits, Words, read_completion, usage_of
from .refusals import HUNG_UP, Refusal, error_body

with extra("serve", "servers"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.requests import Request as HttpRequest
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

_BODY_SECONDS = 30.0  # to send a body in
_Events = asyncio.Queue[tuple[int, News]]


class Application:
    """A model at `/v1/completions`, and what else a server says of itself."""

    def __init__(self, batcher: Batcher, words: Words, limits: Limits, max_bytes: int):
        """Prepares the answers.

        Args:
            batcher: takes the texts.
            words: the vocabulary.
            limits: of each request.
            max_bytes: of the body of one.
        """
        self.batcher, self.words, self.limits, self.max_bytes = batcher, words, limits, max_bytes
        self._created = int(time.time())

    def routes(self) -> Starlette:
        """Returns the application as ASGI has it."""
        return Starlette(
            routes=[
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={HTTPException: self._no_such_address},
        )

    async def _completions(self, request: HttpRequest) -> Response:
        status = 500
        try:
            body = await self._body(request)
            completion = await asyncio.to_thread(read_completion, body, self.words, self.limits)
            events: _Events = asyncio.Queue()
            loop = asyncio.get_running_loop()
            texts = [Text(one, partial(_post, loop, events, i)) for i, one in enumerate(completion.requests)]
            self.batcher.submit(texts)
            if completion.streams:
                status = 0  # is known when the stream has ended
                return self._stream(completion, texts, events)
            try:
                answer = await _unless_hung_up(request, self._answer(completion, events))
            finally:
                self.batcher.cancel(texts)
            status = HUNG_UP if answer is None else 200
            return Response(status_code=status) if answer is None else JSONResponse(answer)
        except Refusal as refusal:
            status = refusal.status
            return JSONResponse(refusal.body, status, refusal.headers)
        finally:
            if status:
                self.batcher.metrics.add_request(status)

    async def _body(self, request: HttpRequest) -> bytes:
        """Reads the body, no more of it than may be."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(
                "the body is not said to be JSON.", status=415, fix="send the header Content-Type: application/json."
            )
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for part in request.stream():
                    body += part
                    if len(body) > self.max_bytes:
                        raise Refusal(
                            "the body is too large.", status=413, values=f"{self.max_bytes} bytes at most",
                            fix="send several requests.",
                        )  # fmt: skip
        except TimeoutError:
            raise Refusal(
                "the body did not come.", status=408, values=f"{_BODY_SECONDS:g} seconds", fix="send it at once."
            ) from None
        except ClientDisconnect:
            raise Refusal("the client hung up.", status=HUNG_UP) from None
        return bytes(body)

    async def _answer(self, completion: Completion, events: _Events) -> dict[str, Any]:
        choices = self._choices(completion)
        async for _ in _taken(choices, events):
            pass
        told = [choice.read().answer(completion.tells_likely) for choice in choices]
        return self._head() | {"choices": told, "usage": usage_of(completion, choices)}

    def _stream(self, completion: Completion, texts: Sequence[Text], events: _Events) -> Response:
        application, choices, head = self, self._choices(completion), self._head()
        status = HUNG_UP

        async def parts() -> AsyncIterator[str]:
            nonlocal status
            try:
                async for choice in _taken(choices, events):
                    choice.read()
                    if choice.ended_by or len(choice.text) > choice.num_told:
                        yield _event(head | {"choices": [choice.answer(completion.tells_likely, streams=True)]})
            except Refusal as refusal:
                status = refusal.status
                yield _event(refusal.body)
                return
            if completion.counts_at_end:
                yield _event(head | {"choices": [], "usage": usage_of(completion, choices)})
            yield "data: [DONE]\n\n"
            status = 200

        class Stream(StreamingResponse):
            async def __call__(self, *arguments: Any) -> None:
                try:
                    await super().__call__(*arguments)
                finally:  # also where it is broken off while a part is on its way
                    application.batcher.cancel(texts)
                    application.batcher.metrics.add_request(status)

        return Stream(parts(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    def _choices(self, completion: Completion) -> list[Choice]:
        return [Choice(i, one, self.words) for i, one in enumerate(completion.requests)]

    def _head(self) -> dict[str, Any]:
        name = f"cmpl-{uuid.uuid4().hex}"
        return {"id": name, "object": "text_completion", "created": int(time.time()), "model": self.limits.name}

    async def _models(self, request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _model(self, request: HttpRequest) -> Response:
        name = request.path_params["name"]
        if name == self.limits.name:
            return JSONResponse(self._described())
        words = f"there is no model {name!r}."
        return JSONResponse(error_body(404, words, "model", "model_not_found"), 404)

    def _described(self) -> dict[str, Any]:
        longest = {"max_model_len": self.limits.places}
        return {"id": self.limits.name, "object": "model", "created": self._created, "owned_by": "meshax"} | longest

    async def _health(self, request: HttpRequest) -> Response:
        if self.batcher.is_stopping:
            refusal = stopping()
            return JSONResponse(refusal.body, refusal.status, refusal.headers)
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: HttpRequest) -> Response:
        batcher = self.batcher
        text = batcher.metrics.text(
            queue_length=batcher.num_waiting, queue_limit=batcher.limit, slots_busy=batcher.num_running,
            slots=batcher.slots,
        )  # fmt: skip
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _no_such_address(self, request: HttpRequest, error: Any) -> Response:
        words = {404: f"there is nothing at {request.url.path}.", 405: f"{request.method} is not for this address."}
        return JSONResponse(
            error_body(error.status_code, words.get(error.status_code, error.detail)), error.status_code
        )


async def _taken(choices: Sequence[Choice], events: _Events) -> AsyncIterator[Choice]:
    """Yields each choice that has something new, until all have ended."""
    while not all(choice.ended_by for choice in choices):
        index, news = await events.get()
        if news.refusal is not None:
            raise news.refusal
        choices[index].take(news)
        yield choices[index]


async def _unless_hung_up(request: HttpRequest, work: Any) -> Any:
    """Returns what the work gives, or None if the client does not wait for it."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()


async def _hung_up(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _post(loop: asyncio.AbstractEventLoop, events: _Events, index: int, news: News) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody listens
        loop.call_soon_threadsafe(events.put_nowait, (index, news))


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"
