"""A command line that cannot be read: what is nearest to what it says."""

import pytest

from meshax.cli import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("trian", "there is no command 'trian'.\n  fix: did you mean \"train\"?"),
        ("bench calibrat", "there is no command 'bench calibrat'.\n  fix: did you mean \"calibrate\"?"),
        (
            "train --stpes 3",
            "there is no option --stpes.\n  fix: did you mean --steps? meshax train --help lists them all.",
        ),
        (
            "train --stpes=3",
            "there is no option --stpes.\n  fix: did you mean --steps? meshax train --help lists them all.",
        ),
        (
            "train --text a.txt",
            "there is no option --text.\n  fix: did you mean --data.text? meshax train --help lists them all.",
        ),
        ("train --lr 3", "there is no option --lr.\n  fix: meshax train --help lists them all."),
        (
            "explain a.py:b --messh data:2",
            "there is no option --messh.\n  fix: did you mean --mesh? meshax explain --help lists them all.",
        ),
        (
            "bench calibrate --device 3",
            "there is no option --device.\n"
            "  fix: did you mean --devices? meshax bench calibrate --help lists them all.",
        ),
    ],
    ids=lambda value: value.partition("\n")[0],
)
def test_unknown_names(arguments, words, capsys):
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == f"meshax: {words}\n"


def test_underscores_are_as_good(capsys, monkeypatch):
    monkeypatch.setattr("meshax.cli.train.Train.run", lambda self: print(self.run_.eval_every))
    assert main(["train", "--eval_every", "7"]) == 0
    assert capsys.readouterr().out == "7\n"


@pytest.mark.parametrize("arguments", ["", "bench", "train --steps many", "plan a.py:b --mesh data:2", "--json"])
def test_what_else_is_wrong_is_told_by_the_parser(arguments, capsys):
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and "full helptext" in err


def test_a_word_of_keep_that_there_is_not_lists_all(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("meshax.cli.joining.use_processors", lambda *_: None)
    assert main(["train", "--keep", "most", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == (
        "meshax: --keep is 'most'.\n"
        '  fix: choose "nothing", "collectives", "products", "all products", "everything" or "auto".\n'
    )


@pytest.mark.parametrize(
    "arguments",
    [["bench", "step", "--limit", "abc"], ["explain", "--preset", "tiny", "--overlap", "yes"]],
    ids=" ".join,
)
def test_what_cannot_be_read_is_said_once(arguments, capsys):
    try:
        status = main(arguments)
    except SystemExit as stopped:
        status = stopped.code
    heard = capsys.readouterr()
    assert status == 2 and (heard.out + heard.err).count("Error parsing") == 1
