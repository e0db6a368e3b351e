"""Text that cannot be trained on is found before the first step."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import meshax as mx
from meshax.data import Vocabulary
from meshax.data.text import WHOLE, hash_of
from meshax.train.loop import Run
from meshax.train.options import DataOptions
from runs import small, write_text


def run(folder, *text, **options):
    return Run(small(folder, data=DataOptions(text=text, **options)), Console(quiet=True))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "a file of text does not exist."),
        (b"", "is empty"),
        (b"\x7fELF\x00\x01\x02\x00" * 99, "holds binary data"),
        ("æøå ".encode("latin-1") * 99, "UTF-8"),
    ],
    ids=["missing", "empty", "binary", "latin-1"],
)
def test_files_that_are_no_text(tmp_path, content, words):
    write_text(tmp_path / "text")
    path = tmp_path / "wrong.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(mx.MeshaxError, match=words) as raised:
        run(tmp_path, str(tmp_path / "text" / "*.txt"), str(path), errors="strict")
    assert str(path) in str(raised.value) and "fix: " in str(raised.value)


def test_one_file(tmp_path):
    write_text(tmp_path / "text", files=1)
    path = str(tmp_path / "text" / "0.txt")
    with pytest.raises(mx.MeshaxError) as raised:
        run(tmp_path, path)
    assert str(raised.value) == (
        "one document cannot be both trained on and held out.\n"
        f"  values: {path}\n"
        "  fix: pass data.validation=FILE, or data.lines=True to make each line a document."
    )
    assert len(run(tmp_path, path, lines=True).examples.held_out) < len(run(tmp_path, path, lines=True).examples.train)


def test_all_documents_are_held_out(tmp_path):
    """By their words: of a few documents that may be all."""
    words = (f"word {number}" for number in range(10_000))
    held_out = [word for word in words if hash_of(word) < WHOLE // 20][:2]
    path = tmp_path / "few.txt"
    path.write_text("\n".join(held_out), encoding="utf-8")
    with pytest.raises(mx.MeshaxError) as raised:
        run(tmp_path, str(path), lines=True)
    assert str(raised.value) == (
        "the text is too short to hold some of it out.\n"
        "  values: no document is left to train on\n"
        "  rule: about a twentieth of the documents is held out, chosen by their words.\n"
        "  fix: give more text, or pass data.validation=FILE."
    )


def shown(folder, **changes):
    """What preparing a run says, a line for each thing."""
    console = Console(file=io.StringIO(), width=200)
    run = Run(small(folder, **changes), console)
    return run, console.file.getvalue().splitlines()


def test_a_text_with_fewer_subwords_than_there_is_room_for(tmp_path):
    write_text(tmp_path / "text")
    run, lines = shown(tmp_path, vocab=1024)
    size = run.examples.vocabulary.size
    assert size < 1024
    line = f"vocabulary: {size} subwords, as many as the text gives; the model has room for 1024"
    assert line in lines
    assert not [line for line in shown(tmp_path, out="full", vocab=size)[1] if line.startswith("vocabulary")]


def test_a_tokenizer_from_elsewhere(tmp_path):
    text, path = write_text(tmp_path / "text"), Path(__file__).parents[1] / "golden/hugging_face/llama/tokenizer.json"
    examples = run(tmp_path, text, tokenizer=str(path)).examples
    assert (examples.vocabulary.begin, examples.vocabulary.end) == (1, 2)
    wanted = examples.vocabulary.encode((tmp_path / "text" / "0.txt").read_text())
    assert examples.train.document(0).tolist() == [*wanted, 2]
    assert examples.train.manifest["vocabulary"] == Vocabulary.from_tokenizer(path).fingerprint


def test_less_text_than_a_batch(tmp_path):
    write_text(tmp_path / "text", lines=2)
    with pytest.raises(mx.MeshaxError, match="there is less text than one batch"):
        run(tmp_path, str(tmp_path / "text" / "*.txt"))


def test_a_directory_that_cannot_be_written_to(tmp_path):
    write_text(tmp_path / "text")
    (tmp_path / "run").write_text("a file")
    with pytest.raises(mx.MeshaxError) as raised:
        run(tmp_path, str(tmp_path / "text" / "*.txt"))
    assert str(raised.value) == (
        "the directory of a run cannot be written to.\n"
        f"  values: {tmp_path}/run: File exists\n"
        "  fix: choose another out=."
    )


def test_a_file_is_not_held_out_and_trained_on(tmp_path):
    text = write_text(tmp_path / "text")
    with pytest.raises(mx.MeshaxError) as raised:
        run(tmp_path, text, validation=(str(tmp_path / "text" / "2.txt"),))
    assert str(raised.value) == (
        "a file is both trained on and held out.\n"
        f"  values: {tmp_path / 'text' / '2.txt'}\n"
        "  fix: leave it out of data.text=, or of data.validation=."
    )


@pytest.mark.parametrize("place", ["cache", "out"])
def test_a_file_in_the_place_of_a_folder(tmp_path, place):
    text, wrong = write_text(tmp_path / "text"), tmp_path / "wrong"
    wrong.touch()
    config = small(tmp_path, data=DataOptions(text=(text,), cache=str(wrong) if place == "cache" else ""))
    with pytest.raises(mx.MeshaxError, match="cannot be"):
        Run(replace(config, out=str(wrong)) if place == "out" else config, Console(quiet=True))


def test_the_line_of_what_is_left_out(tmp_path):
    write_text(tmp_path / "text")
    for name, content in (
        ("e1.txt", b""),
        ("e2.txt", b" \n"),
        ("b.txt", b"GIF\0"),
        ("w.txt", b"caf\xe9"),
        ("x.gz", b"x"),
    ):
        (tmp_path / "text" / name).write_bytes(content)
    validation = tmp_path / "validation.jsonl"
    validation.write_text('{"text": "the cat sat"}\n{"text": "the dog ran"}\n{"txt": "lost"}\n')
    data = DataOptions(text=(str(tmp_path / "text"),), validation=(str(validation),))
    run, lines = shown(tmp_path, data=data)
    text = tmp_path / "text"
    assert [line for line in lines if line.startswith("left out")] == [
        f"left out of the text: 1 binary file ({text}/b.txt: a zero byte at byte 3), "
        f"2 empty files (first: {text}/e1.txt), 1 document with undecodable bytes ({text}/w.txt), "
        f"1 broken file ({text}/x.gz: after 0 bytes of text: Not a gzipped file (b'x'))",
        f"left out of the text: 1 record without the field ({validation}, line 3)",
    ]
    assert (run.examples.train.num_documents, run.examples.held_out.num_documents) == (4, 2)
    words = run.examples.vocabulary
    assert [words.decode(run.examples.held_out.document(number)) for number in range(2)] == [
        "the cat sat",
        "the dog ran",
    ]
    trained = {words.decode(run.examples.train.document(number)) for number in range(4)}
    assert trained == {(text / f"{number}.txt").read_text() for number in range(4)}  # all of it, nothing else


def test_a_validation_set_is_what_is_evaluated_on(tmp_path):
    write_text(tmp_path / "text")
    write_text(tmp_path / "other", files=1, lines=3)
    data = DataOptions(text=(str(tmp_path / "text"),), validation=(str(tmp_path / "other"),), lines=True)
    run, _ = shown(tmp_path, data=data)
    batches = list(run.examples.held_out_batches({"batch": 8, "length": 32}))
    targets = [token for batch in batches for token in batch["targets"][batch["weights"] == 1]]
    assert run.examples.vocabulary.decode(targets) == (tmp_path / "other" / "0.txt").read_text().replace("\n", "")
    assert run.examples.train.num_documents == 480


def mixture(folder, *text, **options):
    return run(folder, *text, weights=(2.0, 1.0), **options)


def test_a_mixture_of_one_file_and_many(tmp_path):
    """Of a source of one file nothing is held out, of the other a file; a line says how they are mixed."""
    write_text(tmp_path / "many")
    write_text(tmp_path / "one", files=1)
    text = (str(tmp_path / "one"), str(tmp_path / "many" / "*.txt"))
    made, lines = shown(tmp_path, data=DataOptions(text=text, weights=(2.0, 1.0)))
    first, second = made.examples.train.files
    assert (first.num_documents, second.num_documents, made.examples.held_out.num_documents) == (1, 3, 1)
    assert lines[-2:] == [
        f"66.7% of the examples from {text[0]}: {first.num_tokens:,} tokens",
        f"33.3% of the examples from {text[1]}: {second.num_tokens:,} tokens",
    ]


def test_a_file_in_two_sources(tmp_path):
    text = write_text(tmp_path / "text")
    with pytest.raises(mx.MeshaxError) as raised:
        mixture(tmp_path, text, str(tmp_path / "text" / ".." / "text" / "1.txt"))
    assert str(raised.value) == (
        "a file is in two sources of a mixture.\n"
        f"  values: {tmp_path}/text/../text/1.txt\n"
        "  fix: leave it out of one of the patterns in data.text=."
    )


def test_limits_of_a_run(tmp_path):
    text = write_text(tmp_path / "text", lines=600)
    examples = run(tmp_path, text, lines=True, max_documents=100).examples
    assert (examples.train.num_documents, examples.held_out.num_documents) == (100, 100)
    examples = run(tmp_path, text, lines=True, max_bytes=20_000).examples
    assert examples.train.num_bytes == 20_000 and examples.held_out.num_bytes < 20_000
