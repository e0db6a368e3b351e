"""Files of tensors: byte for byte those of the library, mapped and not read, and nothing of a header believed."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshax import CheckpointError
from meshax.weights.safetensors import DTYPES, Entry, File, write_file
from messages import pinned

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face"
FILES = sorted(GOLDEN.glob("*/*.safetensors"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_the_library_wrote_is_written_again_byte_for_byte(path, tmp_path):
    file = File(path)
    write_file(tmp_path / "again", file.tensors, file.array, file.metadata)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_values_and_dtypes(tmp_path):
    arrays = {name: (np.arange(6).reshape(2, 3) - 2).astype(dtype) for name, dtype in DTYPES.items()} | {
        "none": np.zeros((0, 3), np.float32),
        "one": np.float32(7.5).reshape(()),
    }
    names = {str(dtype): name for name, dtype in DTYPES.items()}
    entries = {name: Entry(names[str(array.dtype)], array.shape) for name, array in arrays.items()}
    write_file(tmp_path / "file", entries, lambda name: arrays[name], {"about": "all dtypes"})
    file = File(tmp_path / "file")
    assert file.tensors == entries and file.metadata == {"about": "all dtypes"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(file.array(name), array)
        assert file.array(name).dtype == array.dtype
    assert file.array("BF16").dtype == ml_dtypes.bfloat16


def test_a_tensor_is_a_view_that_cannot_be_changed():
    array = File(FILES[-1]).array(next(iter(File(FILES[-1]).tensors)))
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 0


def raw(header, data=b"", length=None):
    """The bytes of a file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(begin, end, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


BROKEN = {
    "empty": b"",
    "no header": b"\x00" * 8,
    "a header longer than the file": raw({}, length=1 << 40),
    "a header as long as can be": raw({}, length=(1 << 64) - 1),
    "not JSON": raw(b"{{{{"),
    "a list": raw(b"[1,2]"),
    "a name twice": raw(b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{}}'),
    "a gap": raw({"a": entry(0, 8), "b": entry(12, 20)}, b"0" * 20),
    "an overlap": raw({"a": entry(0, 8), "b": entry(4, 12)}, b"0" * 12),
    "too short for its shape": raw({"a": entry(0, 8, (3,))}, b"0" * 8),
    "beyond the end": raw({"a": entry(0, 8)}, b"0" * 4),
    "bytes of nobody": raw({"a": entry(0, 8)}, b"0" * 9),
    "a negative size": raw({"a": entry(0, 8, (-2, -1))}, b"0" * 8),
    "a size beyond all memory": raw({"a": entry(0, 8, (1 << 62, 4))}, b"0" * 8),
    "places that are words": raw({"a": {"dtype": "F32", "shape": [2], "data_offsets": ["0", "8"]}}, b"0" * 8),
    "a place that is missing": raw({"a": {"dtype": "F32", "shape": [2]}}, b"0" * 8),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_file_is_refused(name, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(BROKEN[name])
    with pytest.raises(CheckpointError, match="a file of tensors is damaged, or is no such file"):
        File(path)


@given(st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_whatever_is_overwritten_is_read_or_refused(tmp_path_factory, place, noise):
    """No damage of a header makes anything but our error, or a file that is whole."""
    content = bytearray(raw({"a": entry(0, 8), "b": entry(8, 20, (3, 1))}, b"0" * 20))
    content[place : place + len(noise)] = noise
    path = tmp_path_factory.mktemp("noise") / "file"
    path.write_bytes(content)
    try:
        file = File(path)
    except CheckpointError:
        return
    assert all(file.array(name).nbytes == one.num_bytes for name, one in file.tensors.items())


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("long").write_bytes(BROKEN["a header longer than the file"])
    Path("gap").write_bytes(BROKEN["a gap"])
    Path("quantized").write_bytes(raw({"a": entry(0, 2, dtype="F8_E4M3")}, b"00"))


test_messages = pinned(
    {
        "too long": (
            CheckpointError,
            lambda: File(Path("long")),
            """
            a file of tensors is damaged, or is no such file.
              values: long: its header would have 1099511627776 bytes, and may have 2
              rule: a safetensors file has a header that describes all of it.
              fix: fetch the file again.
            """,
        ),
        "quantized": (
            CheckpointError,
            lambda: File(Path("quantized")),
            """
            a file of tensors has one of the dtype 'F8_E4M3'.
              values: quantized: 'a'
              rule: the dtypes are BOOL, U8, I8, I16, F16, BF16, I32, F32, F64, I64.
              fix: take the model as it was before it was quantized.
            """,
        ),
        "gap": (
            CheckpointError,
            lambda: File(Path("gap")),
            """
            a file of tensors is damaged, or is no such file.
              values: gap: 'b' is F32 [2] at bytes 12 to 20, after 8 bytes of others
              rule: a safetensors file has a header that describes all of it.
              fix: fetch the file again.
            """,
        ),
    }
)
