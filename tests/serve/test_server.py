"""The queue before an engine: bounded, in order, free for others when somebody does not wait any more; the server."""

import http.client
import json
import threading

import jax
import pytest

import meshax as mx
from meshax.decode import Engine, Request
from meshax.errors import ArgumentError
from meshax.interrupts import Finishing
from meshax.models.decoder import Decoder, DecoderConfig
from meshax.serve.batching import Batcher, Text
from meshax.serve.metrics import Metrics
from meshax.serve.refusals import Refusal
from meshax.serve.server import ServerOptions, address_of, bound, serve, warm_up

CONFIG = DecoderConfig(d_model=8, heads=2, d_kv=4, d_ff=12, layers=1, vocab=21, dtype="float32", positions="rotary")


@pytest.fixture(scope="module")
def engine():
    model = Decoder.init(jax.random.key(0), CONFIG)
    return Engine(model, mx.Mesh("model:2"), "heads:model vocab:model", slots=2, places=32, page=16, chunk=4)


@pytest.fixture
def batcher(engine):
    one = Batcher(engine, 3, Metrics())
    yield one
    one.fail(Refusal("the test is over."))  # the engine is the next test's


def text(tokens, prompt=(3, 4), **options):
    news = []
    return Text(Request(prompt, tokens, **options), news.append), news


def test_texts_wait_for_a_slot_in_their_order(batcher, engine):
    """What is told is what is new, and all of it is what the engine writes alone."""
    wanted = [list(engine.generate([Request((3, 4), tokens)]))[0].tokens for tokens in (10, 3, 5, 0)]
    texts, news = zip(*(text(tokens) for tokens in (10, 3, 5, 0)), strict=True)
    batcher.submit(texts)
    assert (batcher.num_waiting, batcher.num_running) == (4, 0)
    batcher.work()
    assert (batcher.num_waiting, batcher.num_running) == (2, 1)
    assert [len(own) for own in news] == [1, 1, 0, 0] and [len(news[0][0].tokens), news[1][0].ended_by] == [4, "length"]
    while batcher.is_busy:
        batcher.work()
    assert [sum((part.tokens for part in own), []) for own in news] == wanted
    assert [own[-1].ended_by for own in news] == ["length"] * 4 and [len(own) for own in news] == [3, 1, 2, 1]
    for own, tokens in zip(news, wanted, strict=True):
        assert len(sum((part.log_probabilities for part in own), [])) == len(tokens)
    assert "meshax_generated_tokens_total 18" in batcher.metrics.text().splitlines()


def test_a_full_queue_takes_all_of_a_request_or_nothing(batcher):
    texts = [text(8)[0] for _ in range(5)]
    batcher.submit(texts[:4])
    with pytest.raises(Refusal) as refused:
        batcher.submit([*texts[4:], text(1)[0]])
    assert str(refused.value) == (
        "the queue is full.\n  values: 2 more, 4 of 3 waiting\n  fix: try again later."
    ) and refused.value.headers == {"Retry-After": "1"}
    batcher.submit(texts[4:])
    assert batcher.num_waiting == 5


def test_nobody_is_written_for_who_does_not_wait(batcher):
    (first, told_first), (second, told), (third, told_third) = (text(12) for _ in range(3))
    batcher.submit([first, second, third])
    batcher.work()
    batcher.cancel([first])
    batcher.work()
    assert (len(told_first), len(told), len(told_third)) == (1, 2, 1)  # its slot went to the one who waited
    batcher.cancel([second, third, first])
    batcher.work()
    assert not batcher.is_busy and not batcher.engine.is_busy


def test_who_waits_is_told_when_nothing_will_come(batcher):
    (running, told), (_, _), (waiting, told_waiting) = several = [text(12), text(12), text(12)]
    batcher.submit([one for one, _ in several])
    batcher.work()
    batcher.refuse_all()
    with pytest.raises(Refusal, match=r"^the server is stopping\.\n  fix: ask another one\.") as refused:
        batcher.submit([text(1)[0]])
    assert refused.value.status == 503
    batcher.fail(refused.value)
    assert told[-1].refusal is told_waiting[-1].refusal is refused.value and not batcher.is_busy


def test_the_one_who_works_is_woken(batcher):
    one, told = text(1)
    thread = threading.Timer(0.05, batcher.submit, [[one]])
    thread.start()
    batcher.work(idle=30)
    thread.join()
    assert told[-1].ended_by == "length"


@pytest.mark.exhaustive
def test_everything_is_compiled_before_somebody_waits(engine):
    def programs():
        every = (*engine.room.filling.items(), *engine.steps.items())
        return [(size, program._jitted._cache_size()) for size, program in every]

    warm_up(engine, everything=True)
    before = programs()
    assert set(engine.room.filling) == {(1, 16), (1, 32)} and set(engine.steps) == {1, 2}
    for length in range(1, 30, 3):
        list(engine.generate([Request((5,) * length, 2, temperature=0.5, seed=4)]))
    assert programs() == before


class Unreadable:
    """Words that cannot be made text of: what an engine that breaks looks like from outside."""

    begin, stops = 0, (1,)

    def encode(self, text):
        return [2] * len(text)

    def decode(self, tokens, after=()):
        raise RuntimeError("no such words")


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_fails_says_so(engine, monkeypatch, stream):
    """Whoever waits gets an answer, and whoever has started it the error."""
    monkeypatch.setattr(engine, "decode", Unreadable().decode)
    own, answers = bound("127.0.0.1", 0), []
    host, port = own.getsockname()

    def ask():
        connection = http.client.HTTPConnection(host, port, timeout=60)
        body = json.dumps({"prompt": "ab", "max_tokens": 20, "temperature": 0, "stop": "x", "stream": stream})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answers.append((answer.status, json.loads(answer.read().decode().removeprefix("data: "))))
        connection.close()

    client = threading.Thread(target=ask)
    with pytest.raises(RuntimeError, match="no such words"):
        serve(engine, Unreadable(), ServerOptions("x"), own, Finishing("finishing"), client.start)
    client.join()
    ((status, body),) = answers
    assert status == (200 if stream else 500) and body["error"]["type"] == "server_error"
    assert body["error"]["message"] == "the server has failed. values: RuntimeError fix: look at its log."


def test_addresses():
    with bound("127.0.0.1", 0) as own:
        assert address_of(own) == f"http://127.0.0.1:{own.getsockname()[1]}"
    with pytest.raises(ArgumentError, match=r"^port is 70000\.\n  fix: give a number, 0 to 65535\."):
        bound("127.0.0.1", 70000)
    with pytest.raises(ArgumentError, match=r"^the server cannot be there\.\n  values: 256\.0\.0\.1 port 0: "):
        bound("256.0.0.1", 0)
