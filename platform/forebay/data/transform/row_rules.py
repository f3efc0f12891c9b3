"""Rows accepted by a function or a transform.

All others are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from forebay.data.filters.filtering import Progress, judged, with_masks
from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.row_mask import KeptRows, RowMask
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.parquet.column_paths import read_paths, schema_with_paths
from forebay.data.parquet.decoded_table import as_table, with_paths
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.parquet.schemas import selected_columns
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.fingerprint.function import function_identity, function_name
from forebay.data.transform.fingerprint.values import canonical, digest
from forebay.data.transform.rejected_rows import accepted_rows, placed
from forebay.data.transform.transform import Transform, one_batch
from forebay.errors import InvalidOption, NoFiles, TransformFailed
from forebay.runtime.foreign_code import message_of, replaced_errors
from forebay.runtime.user_frames import with_traceback
from forebay.storage.retry import DEFAULT_POLICY, ReadPolicy

RowRule = Callable[[pa.RecordBatch], Any]
_SHOWN_DIGITS = 12


def keep_rows(
    manifest: Manifest,
    rule: RowRule | Transform,
    columns: Sequence[str] | None = None,
    *,
    version: str | None = None,
    policy: ReadPolicy = DEFAULT_POLICY,
    progress: Progress | None = None,
) -> Manifest:
    """Keep the rows that `rule` accepts.

    Reads its columns once, in this process, before any worker starts. So all counts are exact, and every accepted row
    comes once. `kept.rejected_rows` of the manifest counts the others, and `kept.rules` names the rule with its
    fingerprint. Rows that were left out before are not judged.

    Args:
        manifest: Rows to judge.
        rule: Function from a RecordBatch of `columns` to one bool for each row: a NumPy array, or one of Arrow, whose
            nulls count as False. It must judge each row by itself; several threads call it at once. Or an
            `fb.Transform`: rows that it rejects are left out, such as null labels and images that cannot be decoded.
        columns: Columns of the manifest, and paths into structs, that the function gets. By default all columns.
        version: Stands for what the function's fingerprint cannot see, as in `fb.Transform`.
        policy: Attempts, deadline and waits of each read.
        progress: Called with (row groups done, their number), from the calling thread.

    Raises:
        NoFiles: No row is left.
        TransformFailed: The function raised, or returned something else.
        Unfingerprintable: The function needs a `version`.
        InvalidOption: The rule is neither, or a transform is given with `columns` or `version`.
        MissingColumn, WrongType: A column does not exist, or does not suit the transform.
        CorruptFile, SourceChanged, ReadFailed: A row group cannot be read.
    """
    name, read, judge = _judge_of(rule, columns, version, manifest)
    before = [manifest.keeps(index) for index in range(len(manifest))]
    reader = RowGroupReader(manifest, policy)

    def mask_of(index: int) -> NDArray[np.bool_]:
        accepted = before[index].copy()
        table = reader.read(index, read)
        try:
            accepted[accepted] = judge(table)
        except TransformFailed as error:
            raise placed(error, manifest, index, before[index]) from error.__cause__
        return accepted

    masks = judged(before, mask_of, progress)
    num_left = sum(int(mask.sum()) for mask in masks)
    if not num_left:
        raise NoFiles(
            f"{manifest.root}: {name} accepts none of {manifest.num_rows} rows. Call it on some of them, and correct "
            "it."
        )
    kept = manifest.kept or KeptRows(mask=RowMask.of([]))
    rejected_rows = kept.rejected_rows + manifest.num_rows - num_left
    return with_masks(manifest, masks, replace(kept, rules=(*kept.rules, name), rejected_rows=rejected_rows))


def _judge_of(
    rule: RowRule | Transform, columns: Sequence[str] | None, version: str | None, manifest: Manifest
) -> tuple[str, tuple[str, ...], Callable[[pa.Table], NDArray[np.bool_]]]:
    """Name, columns and function of a rule.

    The columns are those to read. The function takes a table.
    """
    if not isinstance(manifest, Manifest):
        raise InvalidOption(f"keep_rows(manifest={manifest!r:.100}): give the manifest that fb.scan() returns.")
    if isinstance(rule, Transform):
        if columns is not None or version is not None:
            raise InvalidOption(
                f"keep_rows(rule=Transform, columns={columns!r}, version={version!r}): a transform has its own columns "
                "and version. Leave both out."
            )
        dataset = Dataset(manifest, rule)
        dataset.validate_columns()
        rule.validate_unchanged()
        return f"Transform {dataset.fingerprint[:_SHOWN_DIGITS]}", dataset.columns, partial(accepted_rows, rule)
    if not callable(rule):
        raise InvalidOption(f"keep_rows(rule={rule!r:.100}): give a function of a RecordBatch, or an fb.Transform.")
    names = selected_columns(columns) or manifest.columns
    types = {field.name: parse_type(field.type) for field in manifest.fields}
    schema_with_paths(types, names)
    fingerprint = digest(canonical([function_identity(rule, version), list(names)]).encode())
    name = f"{function_name(rule)} {fingerprint[:_SHOWN_DIGITS]}"
    return name, read_paths(names, types), partial(_accepted_by, rule, names)


def _accepted_by(rule: RowRule, names: tuple[str, ...], table: pa.Table) -> NDArray[np.bool_]:
    batch = one_batch(as_table(with_paths(table, names)).select(list(names)))
    with replaced_errors(partial(_raised, function_name(rule))):
        found = rule(batch)
    if isinstance(found, pa.Array | pa.ChunkedArray) and pa.types.is_boolean(found.type):
        found = pc.fill_null(found, False).to_numpy(
            **({"zero_copy_only": False} if isinstance(found, pa.Array) else {})
        )
    if not isinstance(found, np.ndarray) or found.dtype != np.bool_ or found.shape != (batch.num_rows,):
        got = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
        raise TransformFailed(
            f"Rule {function_name(rule)} returned {got} for {batch.num_rows} rows. Return one bool for each row, as an "
            "array of NumPy or Arrow.",
            function=function_name(rule),
        )
    return found


def _raised(name: str, error: Exception) -> TransformFailed:
    text = (
        f"Rule {name} raised {type(error).__name__}: {message_of(error)}. It must return False for a row that it "
        "rejects."
    )
    return TransformFailed(with_traceback(text, error), function=name)
