"""The rows of a Parquet file: one column, a group of rows at a time, so that memory does not grow with the file.

It needs pyarrow, which `pip install 'meshax[parquet]'` brings.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import did_you_mean
from .compression import pyarrow_for, readable, stat
from .left_out import FileError

_ROWS = 1024  # at a time


def rows(path: Path, fields: Sequence[str], start: int = 0) -> Iterator[tuple[bytes | None, int, int]]:
    """Yields the text of each row (None: it has none), its number from 1, and about how many bytes are read so far.

    Args:
        path: the file.
        fields: names of the column; the first that there is.
        start: a byte of the file: begins with the group of rows that is about there.
    """
    arrow = pyarrow_for("Parquet files")
    size = stat(path).st_size
    with readable(path), open(path, "rb") as raw:
        try:
            file = arrow.parquet.ParquetFile(raw)
            column = _column(arrow, file.schema_arrow, fields, path)
            groups = range(start * file.num_row_groups // max(size, 1), file.num_row_groups)
            before = sum(file.metadata.row_group(group).num_rows for group in range(groups.start))
            number, total = before, max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(_ROWS, row_groups=list(groups), columns=[column], use_threads=False):
                values = batch.column(0)
                if arrow.types.is_dictionary(values.type):
                    values = values.dictionary_decode()
                for value in values.cast(arrow.large_binary()):
                    number += 1
                    yield value.as_py(), number, size * number // total
        except (arrow.ArrowException, OSError) as error:
            raise FileError(
                "a Parquet file is broken.",
                kind="broken",
                values=f"{path}: {str(error).strip().splitlines()[0]}",
                fix="fetch or make it again.",
            ) from None


def _column(arrow: Any, schema: Any, fields: Sequence[str], path: Path) -> str:
    """Returns the first column of some names that holds text."""
    texts = [column.name for column in schema if _is_text(arrow.types, column.type)]
    for name in fields:
        if name in texts:
            return name
    raise FileError(
        f"a Parquet file has no text in the column {' or '.join(map(repr, fields))}.",
        kind="no column",
        values=str(path),
        rule="one column, the same in all files, is the text of documents.",
        fix=f'name the column: field="..."; {did_you_mean(fields[0], texts)}',
    )


def _is_text(types: Any, kind: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)
