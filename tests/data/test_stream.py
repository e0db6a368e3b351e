"""The stream of batches: the same for every number of processes, and after every interruption."""

import json
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

from meshax import ArgumentError, DataError
from meshax.data import Batches, Text, Vocabulary, evaluation, tokenize
from messages import pinned

LENGTH, BATCH = 7, 6
TEXTS = [f"document {n} " * (n % 13 + 1) for n in range(60)]
VOCABULARY = Vocabulary.train(TEXTS, size=300)
SHARED = {}


@pytest.fixture(autouse=True, scope="module")
def tokens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "text.txt").write_text("\n".join(TEXTS))
    text = Text.find(folder / "text.txt", per="line")
    SHARED["tokens"] = tokenize(text, VOCABULARY, folder / "tokens")
    return SHARED["tokens"]


def same(a, b):
    return a.keys() == b.keys() and all(
        np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a
    )


def rows(batches):
    """What tells rows apart."""
    return [tuple(row) for batch in batches for row in batch["targets"].tolist()]


def test_a_pass_has_every_window_once(tokens):
    batches = Batches(tokens, LENGTH, batch=1, seed=3)
    first, second = (rows(islice(batches, batches.num_windows)) for _ in range(2))
    in_order = rows(islice(Batches(tokens, LENGTH, batch=1, shuffle=False), batches.num_windows))

    assert sorted(first) == sorted(second) == sorted(in_order)
    assert first != second and first != in_order
    assert sum((row for row in in_order), ())[: len(tokens)] == tuple(tokens.tokens.tolist())


def test_the_seed_decides_the_order(tokens):
    orders = {seed: rows(islice(Batches(tokens, LENGTH, BATCH, seed=seed), 5)) for seed in (1, 2)}
    assert orders[1] != orders[2]
    assert orders[1] == rows(islice(Batches(tokens, LENGTH, BATCH, seed=1), 5))


@pytest.mark.parametrize("shuffle", [True, False])
def test_resuming_at_any_step_is_as_if_nothing_had_happened(tokens, shuffle):
    options = {"seed": 5, "shuffle": shuffle}
    num_steps = 2 * Batches(tokens, LENGTH, BATCH).num_windows // BATCH + 3  # into the third pass
    whole = list(islice(Batches(tokens, LENGTH, BATCH, **options), num_steps + 2))
    batches = Batches(tokens, LENGTH, BATCH, **options)
    for step in range(num_steps):
        state = json.loads(json.dumps(batches.state()))
        resumed = Batches(tokens, LENGTH, BATCH, **options)
        resumed.restore(state)
        assert resumed.position == batches.position == step
        assert all(same(a, b) for a, b in zip(islice(resumed, 2), whole[step : step + 2], strict=True))
        assert same(next(batches), whole[step])
    batches.restore({**state, "position": Batches(tokens, LENGTH, BATCH).state()["position"]})
    assert same(next(batches), whole[0])


@pytest.mark.parametrize("rows", [range(BATCH), [0, 1, 2], [3, 5], [4], []])
def test_some_rows_are_those_of_the_whole_batch(tokens, rows):
    whole, part = (Batches(tokens, LENGTH, BATCH, seed=1, rows=which) for which in (None, rows))
    for _ in range(20):
        assert same(next(part), {name: array[list(rows)] for name, array in next(whole).items()})
    assert part.state() == whole.state()


def parts_of(batch, count):
    """The rows of a batch, as so many processes may read them."""
    return [range(batch)[i * batch // count : (i + 1) * batch // count] for i in range(count)]


def test_a_stream_of_other_rows_continues(tokens):
    whole = Batches(tokens, LENGTH, BATCH)
    for _ in range(4):
        next(whole)
    part = Batches(tokens, LENGTH, BATCH, rows=range(BATCH // 2, BATCH))
    part.restore(whole.state())
    assert np.array_equal(next(part)["tokens"], next(whole)["tokens"][BATCH // 2 :])


@pytest.mark.parametrize("count", [1, 2])
def test_evaluation_is_one_pass_in_order(tokens, count):
    parts = [list(evaluation(tokens, LENGTH, 4, rows=rows)) for rows in parts_of(4, count)]
    batches = [
        {name: np.concatenate([part[name] for part in step]) for name in step[0]} for step in zip(*parts, strict=True)
    ]

    assert {batch["tokens"].shape for batch in batches} == {(4, LENGTH)}
    targets, weights = (np.concatenate([batch[name].ravel() for batch in batches]) for name in ("targets", "weights"))
    assert targets[weights == 1].tolist() == tokens.tokens.tolist()
    assert weights.sum() == len(tokens) and len(weights) - len(tokens) < 4 * LENGTH


WEIGHTS = [5, 3, 2]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Three texts in whose rows the same word comes again and again, and three sizes."""
    folder, files = tmp_path_factory.mktemp("sources"), []
    for number, (word, size) in enumerate([("document", 42_702), ("1", 7_093), ("2", 21_333)]):
        (folder / f"{number}.txt").write_text(f"{word} " * size)
        files.append(tokenize(Text.find(folder / f"{number}.txt"), VOCABULARY, folder / f"tokens{number}"))
    return files


def usual(sources):
    """The token of each text that only this text has, and mostly."""
    return [np.bincount(source.tokens).argmax() for source in sources]


def test_a_mixture_is_exact_after_every_example(sources):
    """10,000 examples of 5:3:2, over processes of any number, and resumed in the middle."""
    batch, steps = 20, 500
    whole = Batches(sources, LENGTH, batch, weights=WEIGHTS)
    counts, middle, seen, words = np.zeros(3), None, [], usual(sources)
    for step in range(steps):
        if step == 217:
            middle = json.loads(json.dumps(whole.state()))
        targets = next(whole)["targets"]
        seen.append(targets)
        for row, target in enumerate(targets):
            counts += [word in target for word in words]
            exact = (step * batch + row + 1) * np.array([0.5, 0.3, 0.2])
            assert np.all(np.abs(counts - exact) < 1)
    assert counts.tolist() == [5000, 3000, 2000]

    for count in (1, 2, 5):
        parts = [Batches(sources, LENGTH, batch, weights=WEIGHTS, rows=rows) for rows in parts_of(batch, count)]
        for step in range(30):
            assert np.array_equal(np.concatenate([next(part)["targets"] for part in parts]), seen[step])
        for part in parts:
            part.restore(middle)
        for step in range(217, 260):
            assert np.array_equal(np.concatenate([next(part)["targets"] for part in parts]), seen[step])


PART = """
import json, sys
from meshax.data import Batches, TokenFile
folders, options, state, steps = json.load(sys.stdin)
batches = Batches([TokenFile(folder) for folder in folders], **options)
if state:
    batches.restore(state)
print(json.dumps([next(batches)["targets"].tolist() for _ in range(steps)]))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [1, 2])
def test_processes_of_their_own_read_the_parts_of_a_mixture(sources, count):
    options = {"length": LENGTH, "batch": 4, "weights": WEIGHTS}
    whole = Batches(sources, **options)
    for _ in range(7):
        next(whole)
    state, folders = whole.state(), [str(source.folder) for source in sources]
    parts = []
    for rows in parts_of(options["batch"], count):
        words = [folders, {**options, "rows": list(rows)}, state, 5]
        done = subprocess.run(
            [sys.executable, "-c", PART], input=json.dumps(words), capture_output=True, text=True, check=True
        )
        parts.append(json.loads(done.stdout))
    for step in range(5):
        assert [row for part in parts for row in part[step]] == next(whole)["targets"].tolist()


def test_each_source_of_a_mixture_has_passes_of_its_own(sources):
    stream = Batches(sources, LENGTH, 1, weights=WEIGHTS, seed=4)
    alone = [Batches([source], LENGTH, 1, seed=4 + number) for number, source in enumerate(sources)]
    words = usual(sources)
    for _ in range(300):
        batch = next(stream)
        (source,) = [number for number, word in enumerate(words) if word in batch["targets"]]
        assert same(batch, next(alone[source]))


def mixed(files, weights):
    Batches([SHARED["tokens"]] * files, LENGTH, BATCH, weights=weights)


def restore_mixture(weights, other):
    files = [SHARED["tokens"]] * 2
    Batches(files, LENGTH, BATCH, weights=weights).restore(Batches(files, LENGTH, BATCH, weights=other).state())


def restore(**other):
    state = Batches(SHARED["tokens"], LENGTH, BATCH).state()
    Batches(SHARED["tokens"], LENGTH, BATCH).restore({**state, **other})


test_messages = pinned(
    {
        "too little text": (
            DataError,
            lambda: Batches(SHARED["tokens"], 1000, 64),
            """
            there is less text than one batch.
              values: 1,012 tokens make 2 sequences of 1,000, not 64
              fix: choose a smaller batch or shorter sequences, or name more text.
            """,
        ),
        "a row that there is not": (
            ArgumentError,
            lambda: Batches(SHARED["tokens"], LENGTH, 6, rows=[4, 5, 6]),
            """
            a batch of 6 sequences has no row 6.
              rule: rows are counted from 0, over all processes.
              fix: take those of meshax.processes.LocalRows.
            """,
        ),
        "a batch of nothing": (
            ArgumentError,
            lambda: Batches(SHARED["tokens"], LENGTH, 0),
            """
            a batch of 0 sequences holds nothing.
              fix: choose a batch of 1 or more.
            """,
        ),
        "weights": (
            ArgumentError,
            lambda: mixed(2, [1, 2, 3]),
            """
            a mixture has 2 texts and 3 weights.
              fix: give one weight for each text.
            """,
        ),
        "another mixture": (
            DataError,
            lambda: restore_mixture([5, 3], [10, 7]),
            """
            this state is of another stream.
              values: weights was [10, 7], is [5, 3]
              rule: a stream continues with the same text, weights, vocabulary, length, batch, seed and shuffle.
              fix: make the stream as it was, or begin a new one.
            """,
        ),
        "another stream": (
            DataError,
            lambda: restore(seed=7, length=8),
            """
            this state is of another stream.
              values: length was 8, is 7, seed was 7, is 0
              rule: a stream continues with the same text, weights, vocabulary, length, batch, seed and shuffle.
              fix: make the stream as it was, or begin a new one.
            """,
        ),
    }
)
