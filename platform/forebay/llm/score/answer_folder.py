"""Output folder of a scoring run.

One Parquet file per shard, named by its number.
"""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from pyarrow import fs

from forebay.errors import ScoringFailed
from forebay.llm.score.shards import Piece
from forebay.storage.atomic import write_atomically, write_failed
from forebay.storage.filesystem import Location, below, resolve
from forebay.storage.globs import children

_NAME = re.compile(r"shard-(\d{8})\.parquet")
_DIGEST, _PLAN = b"forebay.digest", b"forebay.data.plan"
_OBJECT_STORES = ("s3://", "gs://", "gcs://", "abfs://", "abfss://")
"""Stores in which a file appears when it is closed, and whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFolder:
    """Output folder of one plan.

    Any number of processes may write to it.

    Attributes:
        uri: Folder.
        plan: Fingerprint of the plan.
        is_exact: Whether every process that answers a shard gives equal bytes.
    """

    uri: str
    plan: str
    is_exact: bool = True

    def existing(self) -> set[int]:
        """Numbers of the shards that are written.

        Only complete files have such a name.
        """
        location = resolve(self.uri)
        if not location.fs.get_file_info(location.path).type:
            return set()
        names = (info.base_name for info in children(location.fs, location.path))
        return {int(found[1]) for name in names if (found := _NAME.fullmatch(name))}

    def write(self, shard: int, table: pa.Table) -> bool:
        """Write a shard, unless it exists.

        Returns whether it was missing.

        The file gets its name last, so that a process that is killed leaves none, or a whole one.

        Raises:
            WriteFailed: The storage refuses.
            ScoringFailed: The shard is there with other answers, and the engine's are exact.
        """
        uri = below(self.uri, shard_name(shard))
        digest = _digest(table)
        if (found := _found_digest(uri)) is not None:
            self._compare(uri, found, digest)
            return False
        content = io.BytesIO()
        facts = {_DIGEST: digest.encode(), _PLAN: self.plan.encode()}
        with pq.ParquetWriter(content, table.schema.with_metadata(facts), compression="zstd") as writer:
            writer.write_table(table.replace_schema_metadata(facts))
        try:
            _write_whole(uri, content.getvalue())
        except OSError as error:
            raise write_failed(f"Shard {shard} of the answers", uri, error) from error
        return True

    def read(self) -> Iterator[pa.Table]:
        """Tables of all written shards, in source order."""
        for shard in sorted(self.existing()):
            location = resolve(below(self.uri, shard_name(shard)))
            with location.fs.open_input_file(location.path) as file:
                yield pq.read_table(file)

    def _compare(self, uri: str, found: str, digest: str) -> None:
        if self.is_exact and found != digest:
            raise ScoringFailed(
                f"{uri} is there with answers of digest {found}, and this process has digest {digest} for the same "
                "rows of the same plan. Another process of this run changed its software or its device: remove the "
                "folder, and score again with equal machines.",
                found=found,
                digest=digest,
            )


def shard_name(shard: int) -> str:
    """File name of a shard."""
    return f"shard-{shard:08d}.parquet"


def _write_whole(uri: str, content: bytes) -> None:
    """Write a file atomically."""
    location = resolve(uri)
    if location.is_local or location.uri.startswith(_OBJECT_STORES):
        write_atomically(uri, content)
        return
    folder, _, name = location.path.rpartition("/")
    draft = f"{folder}/.{name}.{uuid.uuid4().hex}"
    location.fs.create_dir(folder, recursive=True)
    with location.fs.open_output_stream(draft) as stream:
        stream.write(content)
    _rename(location, draft)


def _rename(location: Location, draft: str) -> None:
    try:
        location.fs.move(draft, location.path)
    except OSError:
        # HDFS refuses to replace a file: another process was first.
        if not location.fs.get_file_info(location.path).type == fs.FileType.File:
            raise
        location.fs.delete_file(draft)


def _found_digest(uri: str) -> str | None:
    location = resolve(uri)
    try:
        with location.fs.open_input_file(location.path) as file:
            facts = pq.read_schema(file).metadata or {}
    except FileNotFoundError:
        return None
    return str(facts.get(_DIGEST, b"").decode())


def _digest(table: pa.Table) -> str:
    """Hash of names, types and values."""
    state = xxhash.xxh3_128(str(table.schema.remove_metadata()).encode())
    for column in table.columns:
        # In one chunk: equal values in other chunks have other bytes.
        whole = pa.RecordBatch.from_arrays([column.combine_chunks()], names=["column"])
        state.update(whole.serialize())
    return state.hexdigest()


class CutShards:
    """Tables of partial shards, held until a shard is complete.

    In the memory of the driver: one shard for each that was cut.
    """

    def __init__(self, folder: AnswerFolder) -> None:
        self._folder = folder
        self._tables: dict[int, dict[int, pa.Table]] = {}

    def keep(self, piece: Piece, table: pa.Table, *, ends_shard: bool) -> None:
        """Keep the table of a piece.

        The last one writes the shard. Raises as `AnswerFolder.write`.
        """
        self._tables.setdefault(piece.shard, {})[piece.start] = table
        if ends_shard:
            tables = self._tables.pop(piece.shard)
            self._folder.write(piece.shard, pa.concat_tables([tables[start] for start in sorted(tables)]))
