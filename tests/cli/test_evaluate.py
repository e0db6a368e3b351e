"""`meshax eval` on any text: what it says is what an independent computation says."""

import json
import math
import random
import shutil

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import meshax as mx
from meshax.cli import evaluate, main
from meshax.data import END
from meshax.train.loop import Run, run_config
from runs import WORDS, small, write_text

LENGTH = 32


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch):
    """The tests' own: JAX is in use already."""
    monkeypatch.setattr(evaluate, "use_processors", lambda mesh: None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps, whose text is gone."""
    folder = tmp_path_factory.mktemp("evaluate")
    write_text(folder / "text")
    options = dict(steps=2, save_every=2, eval_every=2, length=LENGTH, dropout=0.0, mesh="x:1", layout="none")
    Run(small(folder, dtype="float32", **options), Console(quiet=True)).train()
    shutil.rmtree(folder / "text")
    return folder / "run"


def answer(capsys, *arguments):
    assert main(["eval", *arguments, "--json"]) == 0, capsys.readouterr().err
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


def documents(number, count=30):
    draw = random.Random(number)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 40))) for _ in range(count)]


def perplexity(run, texts):
    """By whole documents one at a time: no packing, no padding, the softmax in double precision.

    A window of the packed text begins anew with position 0, so documents are cut where windows end.
    """
    opened = Run(run_config(run), Console(quiet=True), read_only=True)
    model, vocabulary = opened.restored()[0].model, opened.examples.vocabulary
    logits_of = jax.jit(lambda tokens: mx.spmd(lambda model, t: model(t), mx.Mesh("x:1"), "")(model, tokens).array)
    nats, place, num_tokens = 0.0, 0, 0
    for text in texts:
        tokens = [END, *vocabulary.encode(text), END]
        begin = 0
        while begin < len(tokens) - 1:
            end = min(len(tokens) - 1, begin + LENGTH - place % LENGTH)
            seen = np.full(LENGTH, 5, np.int32)  # what comes after has no say
            seen[: end - begin] = tokens[begin:end]
            batch, length = mx.dims(batch=1, length=LENGTH)
            logits = np.asarray(logits_of(mx.tensor(seen[None], (batch, length))), np.float64)[0, : end - begin]
            chosen = logits[np.arange(end - begin), tokens[begin + 1 : end + 1]]
            nats += float((np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1) - chosen).sum())
            place, begin = place + end - begin, end
        num_tokens += len(tokens) - 1
    size = sum(len(text.encode()) for text in texts)
    return math.exp(nats / num_tokens), nats / math.log(2) / size, num_tokens


def test_other_text_has_the_perplexity_that_it_has(run, tmp_path, capsys):
    texts = documents(1)
    (tmp_path / "other.txt").write_text("\n".join(texts))
    before = sorted(path for path in run.rglob("*"))
    data, err = answer(capsys, "--run", str(run), "--data.text", str(tmp_path / "other.txt"), "--data.lines")
    expected = perplexity(run, texts)
    assert (data["perplexity"], data["bits_per_byte"]) == pytest.approx(expected[:2], rel=1e-5)
    assert data["tokens"] == expected[2] and "left out" not in err
    assert sorted(path for path in run.rglob("*")) == before  # nothing of the run has changed


def test_other_text_of_every_kind(run, tmp_path, capsys):
    """The same documents in three forms, some of them damaged, have one perplexity."""
    texts = documents(2)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n{broken\n" for text in texts))
    pq.write_table(pa.table({"body": texts + ["beyond the limit"]}), tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_bytes("\n".join(texts).encode() + b"\n\xff\n")
    options = {
        "a.jsonl": ["--data.field", "text", "body"],
        "a.parquet": ["--data.field", "body", "--data.max-documents", str(len(texts))],
        "a.txt": ["--data.lines", "--data.errors", "skip", "--data.cache", str(tmp_path / "cache")],
    }
    seen, said = zip(
        *(answer(capsys, "--run", str(run), "--data.text", str(tmp_path / name), *o) for name, o in options.items()),
        strict=True,
    )
    assert seen[0] == seen[1] == seen[2]
    where = f"(first: {tmp_path}/a.jsonl, line 2: Expecting property name"
    assert f"left out of the text: 30 lines that are not JSON {where}" in said[0]
    assert "1 document with undecodable bytes" in said[2]
    assert len(list((tmp_path / "cache").iterdir())) == 1
    own, _ = answer(capsys, "--run", str(run))  # which needs no text
    assert own["tokens"] != seen[0]["tokens"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (
            ["--data.errors", "loose"],
            2,
            "meshax: --data.errors is 'loose'.\n  fix: known names: replace, skip, strict.",
        ),
        (["--data.text", "none.txt"], 1, "meshax: a file of text does not exist.\n  values: none.txt"),
    ],
)
def test_what_is_wrong(run, arguments, status, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "--run", str(run), *arguments]) == status
    assert words in capsys.readouterr().err


def test_the_fixes_that_are_offered_are_options(run, tmp_path, capsys):
    """Each fix of a message, taken as it is written, helps."""
    (tmp_path / "latin.txt").write_bytes("th\u00e9 caf\u00e9\n".encode("latin-1") * 40)
    (tmp_path / "a.jsonl").write_text('{"body": "the cat sat"}\n' * 40)
    latin = ["eval", "--run", str(run), "--data.text", str(tmp_path / "latin.txt")]
    assert main([*latin, "--data.errors", "strict"]) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "--data.encoding latin-1, or do without such bytes: --data.errors replace or --data.errors skip." in err
    assert main([*latin, "--data.encoding", "latin-1"]) == 0
    assert main([*latin, "--data.errors", "replace"]) == 0
    assert main(["eval", "--run", str(run), "--data.text", str(tmp_path / "a.jsonl")]) == 1
    assert "name the field: --data.field ...; known names: body." in capsys.readouterr().err
    assert main(["eval", "--run", str(run), "--data.text", str(tmp_path / "a.jsonl"), "--data.field", "body"]) == 0
