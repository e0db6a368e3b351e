"""`meshax serve` in a real process, asked by real clients: many at once, some that hang up, some that ask nonsense."""

import itertools
import json
import random
import re
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from meshax.cli import main, written
from served import ROOT, SPLIT, serving, write_run

PROMPTS = ["the cat", "a", "", "then the dog sat under the tree and", "mat"]
DRAWN = dict(temperature=1.3, top_k=12, seed=5, max_tokens=24)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def server(run):
    with serving(
        run, *SPLIT, "--slots", "4", "--places", "512", "--chunk", "4", "--queue", "60", "--max-bytes", "4000"
    ) as server:
        yield server
        server.process.send_signal(signal.SIGTERM)
        status, said = server.ended()
        assert (status, said.splitlines()[-1]) == (143, "meshax: interrupted"), said


@pytest.fixture
def generated(run, capsys, monkeypatch, tmp_path):
    """What `meshax generate` writes for prompts: on one processor, whatever the server has."""
    monkeypatch.setattr(written, "use_processors", lambda mesh: None)  # the tests' own: JAX is in use already

    def texts(prompts, *options):
        (tmp_path / "prompts").write_text("".join(f"{prompt}\n" for prompt in prompts))
        command = ["generate", "--run", str(run), "--prompts", str(tmp_path / "prompts"), "--json", *options]
        capsys.readouterr()
        assert main([*command, "--mesh", "x:1", "--layout", "none"]) == 0, capsys.readouterr().err
        results = json.loads(capsys.readouterr().out)["results"]
        return [[output["text"] for output in result["outputs"]] for result in results]

    return texts


def test_64_at_once_get_what_the_command_line_writes(server, generated):
    """Four slots, texts of several lengths, drawn and not: each answer follows from its own question alone."""
    drawn = ["--temperature", "1.3", "--top-k", "12", "--seed", "5", "--tokens", "24"]
    wanted = {prompt: texts for prompt, (texts,) in zip(PROMPTS, generated(PROMPTS, *drawn), strict=True)}
    before = server.metrics()
    questions = [{"prompt": PROMPTS[i % 5], **DRAWN, "stream": i % 3 == 0} for i in range(64)]

    def ask(question):
        if question["stream"]:
            return "".join(event["choices"][0]["text"] for event in server.streamed(**question))
        return server.text(**question)

    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(ask, questions))
    assert answers == [wanted[question["prompt"]] for question in questions]
    name = 'meshax_requests_total{status="200"}'  # a stream is counted when it is closed
    wait_until(lambda: server.metrics()[name] - before.get(name, 0) == 64)
    after = server.metrics()
    assert after["meshax_slots_busy"] == after["meshax_queue_length"] == 0
    assert after["meshax_generated_tokens_total"] > before["meshax_generated_tokens_total"]
    assert after["meshax_time_to_first_token_seconds_count"] >= after["meshax_seconds_per_token_count"] >= 64


def test_an_answer(server):
    answer = server.completion(prompt=["the cat", "a"], n=2, max_tokens=6, seed=7, logprobs=0, model="run")
    assert answer["object"] == "text_completion" and answer["model"] == "run" and answer["id"].startswith("cmpl-")
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["seed"] for choice in answer["choices"]] == [7, 8, 7, 8]
    for choice in answer["choices"]:
        assert choice["finish_reason"] in ("stop", "length") and len(choice["tokens"]) <= 6
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["tokens"])
        assert all(number < 0 for number in choice["logprobs"]["token_logprobs"])
    usage = answer["usage"]
    assert usage["completion_tokens"] == sum(len(choice["tokens"]) for choice in answer["choices"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_tokens_are_prompts_too(server):
    """Those of a text come after the token that begins a document."""
    one = server.completion(prompt="the cat", max_tokens=5, temperature=0)
    tokens = [1] + [choice for choice in one["choices"][0]["tokens"]]
    several = server.completion(prompt=[tokens, tokens[:2]], max_tokens=3, temperature=0)
    single = server.completion(prompt=tokens, max_tokens=3, temperature=0)
    assert several["choices"][0] == single["choices"][0] | {"seed": several["choices"][0]["seed"]}


def test_without_a_seed_every_answer_is_another_draw(server):
    answers = [server.completion(prompt="the", max_tokens=12, temperature=2)["choices"][0] for _ in range(3)]
    assert len({answer["seed"] for answer in answers}) == 3 == len({tuple(answer["tokens"]) for answer in answers})
    again = server.text(prompt="the", max_tokens=12, temperature=2, seed=answers[0]["seed"])
    assert again == answers[0]["text"]


def test_a_string_stops_a_text_also_where_it_streams(server):
    """However the string lies in the chunks of tokens, nothing of it is ever told."""
    whole = server.text(prompt="the cat", **DRAWN)
    for start in range(1, len(whole) - 3, 3):
        stop = whole[start : start + 3]
        cut = whole[: whole.index(stop)]
        (choice,) = server.completion(prompt="the cat", **DRAWN, stop=[stop, "never"])["choices"]
        assert (choice["text"], choice["finish_reason"]) == (cut, "stop")
        events = server.streamed(prompt="the cat", **DRAWN, stop=stop, stream_options={"include_usage": True})
        assert "".join(event["choices"][0]["text"] for event in events[:-1]) == cut
        assert events[-2]["choices"][0]["finish_reason"] == "stop" and events[-1]["usage"]["completion_tokens"] > 0


def wait_until(true, seconds=60):
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
def test_who_hangs_up_frees_the_slot(server, stream):
    body = json.dumps({"prompt": "a", "max_tokens": 500, "temperature": 0, "stream": stream, "n": 4}).encode()
    counted = server.metrics().get('meshax_requests_total{status="499"}', 0)
    ended = server.metrics()["meshax_text_seconds_count"]
    with server.connect() as connection:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        wait_until(lambda: server.metrics()["meshax_slots_busy"] == 4)
    wait_until(lambda: server.metrics()["meshax_slots_busy"] == 0)
    wait_until(lambda: server.metrics().get('meshax_requests_total{status="499"}') == counted + 1)
    assert server.metrics()["meshax_text_seconds_count"] == ended  # none was written to its end
    assert server.text(prompt="a", max_tokens=3, temperature=0)


def test_a_full_queue_is_said_at_once(server):
    """Four texts are written, sixty wait: the next is sent away, and told when to come again."""
    stays = {"prompt": "a", "max_tokens": 500, "temperature": 0, "n": 64}
    with server.connect() as connection:
        connection.request("POST", "/v1/completions", json.dumps(stays), {"Content-Type": "application/json"})
        wait_until(lambda: server.metrics()["meshax_queue_length"] >= 40)
        status, headers, body = server.ask({"prompt": ["a", "b", "c", "d"] * 8})
        assert status == 429 and 1 <= int(headers["Retry-After"]) <= 60
        error = json.loads(body)["error"]
        assert error["type"] == "rate_limit_error" and error["code"] == "queue_full"
        assert re.fullmatch(
            r"the queue is full\. values: 32 more, \d+ of 60 waiting fix: try again later\.", error["message"]
        )
    wait_until(lambda: server.metrics()["meshax_slots_busy"] == server.metrics()["meshax_queue_length"] == 0)


def test_addresses(server):
    assert json.loads(server.ask(None, "/health", "GET")[2]) == {"status": "ok"}
    (model,) = json.loads(server.ask(None, "/v1/models", "GET")[2])["data"]
    assert model["id"] == "run" and model["max_model_len"] == 512
    assert json.loads(server.ask(None, "/v1/models/run", "GET")[2]) == model
    for path, method, status, words in (
        ("/v1/models/tea", "GET", 404, "there is no model 'tea'."),
        ("/tea", "GET", 404, "there is nothing at /tea."),
        ("/v1/completions", "GET", 405, "GET is not for this address."),
    ):
        got, _, body = server.ask(None, path, method)
        assert (got, json.loads(body)["error"]["message"]) == (status, words)
    assert server.ask(None, "/metrics", "GET")[1]["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"{", {}, 400, "the body is not JSON. values: Expecting property name"),
        (b"\xff", {}, 400, "the body is not JSON."),
        (b"[" * 3000, {}, 400, "the body is not JSON."),
        (b'{"prompt": "a", "temperature": NaN}', {}, 400, "the body is not JSON. values: NaN is no number"),
        ({"prompt": "a" * 4000}, {}, 413, "the body is too large. values: 4000 bytes at most"),
        ({"prompt": "a"}, {"Content-Type": "text/plain"}, 415, "the body is not said to be JSON."),
        ({"prompt": "a", "model": "tea"}, {}, 404, "there is no model 'tea'. fix: name 'run', or none."),
        ({"prompt": "the cat " * 400}, {}, 400, "a prompt of "),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_what_is_refused(server, body, headers, status, words):
    got, _, answer = server.ask(body, **headers)
    error = json.loads(answer)["error"]
    assert got == status and error["message"].startswith(words) and error["type"] == "invalid_request_error"


def test_noise_is_not_heard(server):
    """Bytes that are no HTTP, and a body that never comes whole: others are answered."""
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))) as noise:
        noise.sendall(b"\x16\x03\x01 tea please\r\n\r\n")
        assert noise.recv(100).startswith(b"HTTP/1.1 400")
    half = socket.create_connection((host, int(port)))
    half.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    assert server.text(prompt="a", max_tokens=3, temperature=0)
    half.close()
    assert server.text(prompt="a", max_tokens=3, temperature=0)


LONG = {"prompt": "a", "seed": 3, "n": 4, "logit_bias": {"2": -100}}  # without the token that ends a text


def long_ones(server, count, tokens):
    """Asks for texts, and returns where their answers will be."""

    def num_taken():
        numbers = server.metrics()
        names = ("text_seconds_count", "slots_busy", "queue_length")
        return sum(numbers[f"meshax_{name}"] for name in names)

    answers, before = [], num_taken()

    def ask(stream):
        answers.append(server.ask({**LONG, "max_tokens": tokens, "stream": stream}))

    threads = [threading.Thread(target=ask, args=(bool(i % 2),)) for i in range(count)]
    for thread in threads:
        thread.start()
    wait_until(lambda: num_taken() == before + 4 * count)
    return answers, threads


def texts_of(headers, body):
    """The texts of an answer, streamed or not, by their numbers."""
    if "event-stream" not in headers["content-type"]:
        return [choice["text"] for choice in json.loads(body)["choices"]]
    texts = [""] * 4
    for event in body.decode().split("\n\n")[:-2]:
        (choice,) = json.loads(event.removeprefix("data: "))["choices"]
        texts[choice["index"]] += choice["text"]
    return texts


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive), signal.SIGTERM])
def test_a_stop_finishes_what_runs(run, number):
    alone = ["--mesh", "x:1", "--layout", "none"]
    with serving(run, "--slots", "2", "--chunk", "1", *alone) as server:
        wanted = [choice["text"] for choice in server.completion(**LONG, max_tokens=240)["choices"]]
        answers, threads = long_ones(server, 4, 240)
        server.process.send_signal(number)
        wait_until(lambda: server.ask(None, "/health", "GET")[0] == 503)
        refused, headers, body = server.ask({"prompt": "a"})
        assert (refused, headers["Retry-After"]) == (503, "10")
        assert json.loads(body)["error"]["code"] == "stopping"
        for thread in threads:
            thread.join()
        status, said = server.ended()
    assert [status for status, _, _ in answers] == [200] * 4
    assert [texts_of(headers, body) for _, headers, body in answers] == [wanted] * 4
    assert status == 128 + number
    assert said.splitlines()[-2:] == [
        "meshax: finishing what is being written; again, and it leaves at once", "meshax: interrupted",
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_a_stop_does_not_wait_for_ever(run):
    """What has not ended within the grace is told so."""
    alone = ["--mesh", "x:1", "--layout", "none", "--grace", "0"]
    with serving(run, "--slots", "2", "--places", "4096", "--chunk", "2", *alone) as server:
        answers, threads = long_ones(server, 4, 4000)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        status, _ = server.ended()
    assert status == 143 and len(answers) == 4
    for status, headers, body in answers:
        if "event-stream" in headers["content-type"]:
            last = body.decode().split("\n\n")[-2]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stopping"
        else:
            assert status == 503 and json.loads(body)["error"]["message"] == (
                "the server is stopping. fix: ask another one."
            )


@pytest.mark.exhaustive
def test_200_requests_of_random_lengths(run, generated):
    """Every answer equals the command line's, none is lost; some clients hang up between them."""
    draw = random.Random(0)
    words = ["the", "a", "cat", "dog", "sat", "on", "mat", "and"]
    options = [
        {"temperature": 0},
        {"temperature": 0.9, "top_p": 0.8, "seed": 11},
        {"temperature": 1.4, "top_k": 9, "repetition_penalty": 1.2, "seed": 12},
        {"temperature": 1.1, "min_p": 0.05, "seed": 13},
    ]
    questions = []
    for number in range(200):
        prompt = " ".join(draw.choices(words, k=draw.randint(0, 20)))
        questions.append((number % 4, draw.choice([1, 7, 16, 40]), prompt))
    wanted = {}
    for kind in range(4):
        for tokens in (1, 7, 16, 40):
            prompts = sorted({prompt for k, t, prompt in questions if (k, t) == (kind, tokens)})
            if prompts:
                asked = {"top_k": 0} | options[kind] | {"tokens": tokens}
                words_of = [(f"--{name.replace('_', '-')}", str(value)) for name, value in asked.items()]
                texts = generated(prompts, *itertools.chain(*words_of))
                wanted |= {(kind, tokens, prompt): text for prompt, (text,) in zip(prompts, texts, strict=True)}
    sizes = ["--slots", "8", "--places", "256", "--queue", "200"]
    with serving(run, *SPLIT, *sizes) as server:

        def ask(numbered):
            number, (kind, tokens, prompt) = numbered
            if number % 10 == 0:  # one more, that nobody waits for
                with server.connect() as connection:
                    body = json.dumps({"prompt": prompt, "max_tokens": 100, "stream": number % 20 == 0})
                    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            return server.text(prompt=prompt, max_tokens=tokens, **options[kind])

        with ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(ask, enumerate(questions)))
        wait_until(lambda: server.metrics()["meshax_slots_busy"] == 0)
        numbers = server.metrics()
    assert answers == [wanted[question] for question in questions]
    assert numbers['meshax_requests_total{status="200"}'] >= 200 and numbers["meshax_queue_length"] == 0


def test_the_example_of_the_page(server):
    """As it is shown, but for the port."""
    page = (ROOT / "docs" / "decode.md").read_text(encoding="utf-8")
    examples = re.findall(r"^\$ (curl (?:.*\\\n)*.*)$", page, re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        assert "http://127.0.0.1:8000/" in example
        command = example.replace("http://127.0.0.1:8000", server.url)
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=True)
        assert "error" not in done.stdout and ("choices" in done.stdout or "data: " in done.stdout), done.stdout


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--slots", "0"], "slots is 0.\n  fix: give a number, 1 or more."),
        (["--queue", "-1"], "queue is -1.\n  fix: give a number, 0 or more."),
        (["--port", "99999"], "port is 99999.\n  fix: give a number, 0 to 65535."),
        (["--grace", "nan"], "grace is nan.\n  fix: give a number, 0 or more."),
    ],
)
def test_wrong_options(option, words, capsys):
    assert main(["serve", *option]) == 2
    assert capsys.readouterr().err == f"meshax: {words}\n"


def test_a_port_that_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    assert capsys.readouterr().err == (
        f"meshax: the server cannot be there.\n  values: 127.0.0.1 port {port}: Address already in use\n"
        "  fix: choose another port, or 0 for one that is free; hosts are this machine's own.\n"
    )


def test_the_likeliest_tokens_are_those_of_the_command_line(server, run, capsys, monkeypatch):
    """Last, since the server compiles for it: by then somebody has asked for candidates."""
    asked = server.completion(prompt="the cat", max_tokens=6, seed=7, temperature=1.3, top_k=12, logprobs=3)
    monkeypatch.setattr(written, "use_processors", lambda mesh: None)
    options = ["--prompt", "the cat", "--tokens", "6", "--seed", "7", "--temperature", "1.3", "--top-k", "12", "--json"]
    alone = ["--logprobs", "3", "--mesh", "x:1", "--layout", "none"]
    assert main(["generate", "--run", str(run), *options, *alone]) == 0
    ((output,),) = [result["outputs"] for result in json.loads(capsys.readouterr().out)["results"]]
    (choice,) = asked["choices"]
    assert output["text"] == choice["text"] == "".join(output["logprobs"]["tokens"])
    for ours, others in zip(output["logprobs"]["top_logprobs"], choice["logprobs"]["top_logprobs"], strict=True):
        assert [*ours] == [*others] and 3 <= len(ours) <= 4 and [*ours.values()] == sorted(ours.values())[::-1]
        assert [*ours.values()] == pytest.approx([*others.values()], abs=1e-4)
    assert all(
        piece in told for piece, told in zip(*(output["logprobs"][x] for x in ("tokens", "top_logprobs")), strict=True)
    )

    assert main(["generate", "--run", str(run), *options, "--logprobs", "6"]) == 2
    assert "logprobs is 6.\n  fix: give a number, 0 to 5." in capsys.readouterr().err
    assert main(["generate", "--run", str(run), "--prompt", "a", "--logprobs", "1"]) == 2
    assert "log-probabilities of tokens are told with --json, of texts that are drawn." in capsys.readouterr().err
