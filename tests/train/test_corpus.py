"""Text that cannot be trained on is found before the first step."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import meshax as mx
from meshax.data import Vocabulary
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
