"""Files in archives are found and read as if the archive were a folder, and never unpacked."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from meshax.data.archives import Place, find
from meshax.data.left_out import FileError
from meshax.errors import DataError
from messages import pinned

CONTENT = b"".join(b"%d\n" % (number * 7919) for number in range(50_000))


def archive(path, mode, **members):
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    members = {"un/a.en": b"first\n", "un/b.fr": CONTENT, "un/b.en.gz": gzip.compress(CONTENT), "un/c.en": b"last"}
    archive("un.tar", "w", **members)
    archive("un.tgz", "w:gz", **members)
    Path("d.en").write_bytes(CONTENT)


def read(place):
    return b"".join(chunk for chunk, _ in place.chunks())


@pytest.mark.parametrize("name", ["un.tar", "un.tgz"])
def test_members(name):
    assert find(f"{name}/un/b.fr") == [Place(Path(name), "un/b.fr")]
    assert read(*find(f"{name}/un/b.fr")) == read(*find(f"{name}/un/b.en.gz")) == CONTENT
    assert [place.member for place in find(f"{name}/un/*.en")] == ["un/a.en", "un/c.en"]
    assert str(*find(f"{name}/un/a.en")) == f"{name}/un/a.en"
    assert find(f"{name}/un/a.en")[0].status()[0] == Path(name).stat().st_size


def test_files():
    assert find("d.en") == find("*.en") == [Place(Path("d.en"))] and read(*find("d.en")) == CONTENT
    assert [Place(Path("a.sgm.gz")).kind, Place(Path("x.tar"), "b/c.tsv").kind] == [".sgm", ".tsv"]


def test_a_broken_archive_is_an_error():
    Path("cut.tgz").write_bytes(Path("un.tgz").read_bytes()[:20_000])
    Path("none.tar").write_bytes(b"plain text, nothing else")
    with pytest.raises(FileError, match="an archive is broken"):
        find("cut.tgz/un/a.en")
    with pytest.raises(FileError, match="an archive is broken"):
        read(Place(Path("cut.tgz"), "un/b.fr"))
    with pytest.raises(FileError, match="an archive is broken"):
        find("none.tar/a")


test_messages = pinned(
    {
        "no such member": (
            DataError,
            lambda: find("un.tar/un/a.fr"),
            """
            an archive has no such file.
              values: un.tar/un/a.fr
              rule: a file in an archive is named as if the archive were a folder.
              fix: in un.tar: did you mean "un/b.fr" or "un/a.en"?
            """,
        ),
        "an archive alone": (
            DataError,
            lambda: find("un.tar"),
            """
            an archive has no such file.
              values: un.tar/
              rule: a file in an archive is named as if the archive were a folder.
              fix: in un.tar: known names: un/a.en, un/b.en.gz, un/b.fr, un/c.en.
            """,
        ),
        "a member that is gone": (
            FileError,
            lambda: read(Place(Path("un.tar"), "gone")),
            """
            an archive has no such file.
              values: un.tar/gone
              fix: name one that it has.
            """,
        ),
        "no such file": (
            DataError,
            lambda: find("d.fr"),
            """
            a file of text does not exist.
              values: d.fr
              fix: in ./: known names: d.en, un.tar, un.tgz.
            """,
        ),
        "a folder": (
            DataError,
            lambda: Path("e").mkdir() or find("e"),
            """
            a folder is no file of text.
              values: e
              fix: name files in it: e/*.en.
            """,
        ),
        "no match": (
            DataError,
            lambda: find("*.de"),
            """
            no file matches a pattern.
              values: *.de
              fix: in ./: known names: d.en, un.tar, un.tgz.
            """,
        ),
    }
)
