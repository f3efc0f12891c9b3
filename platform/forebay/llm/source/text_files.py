"""Text files to train on, divided into spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import PurePosixPath
from typing import Literal

from forebay.data.manifest.manifest import Manifest
from forebay.data.sources.parquet_files import SUFFIXES, Uri, find_files, lists_folder
from forebay.data.sources.scan import scan
from forebay.errors import InvalidOption
from forebay.llm.source.hub_data import HUB, hub_files
from forebay.runtime.uris import split_options
from forebay.storage.filesystem import resolve
from forebay.storage.versions import FoundFile

SPAN_BYTES = 16 << 20
"""About 4 million tokens of English text: enough documents to fill rows well, few enough to hold them in memory."""

Format = Literal["parquet", "jsonl", "compressed", "arrow"]
FROM_ARROW = ("parquet", "arrow")
"""Formats whose structs have the fields of all structs of their column."""
_FORMATS: dict[str, Format] = {
    **dict.fromkeys(SUFFIXES, "parquet"),
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "compressed",
    ".jsonl.zst": "compressed",
    ".arrow": "arrow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFiles:
    """Files of one format, in the order of their URIs."""

    format: Format
    files: tuple[FoundFile, ...]

    @property
    def versions(self) -> dict[str, str]:
        """Version of each file, by URI."""
        return {file.uri: file.version for file in self.files}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpan:
    """Part of the source: rows `start` to `stop`.

    In the unit of the format.

    Parquet counts row groups of the manifest, and `uri` names the first one. JSON Lines count bytes: a line belongs to
    the span in which it begins. Compressed files and files of the `datasets` library are whole spans, without a `stop`.
    """

    uri: str
    start: int = 0
    stop: int | None = None


def find_text_files(data: Uri | Sequence[Uri]) -> TextFiles:
    """Find the text files that `data` names.

    Parquet, JSON Lines (also `.gz` and `.zst`), folders of `datasets.save_to_disk`, or datasets of the Hub (`hf:NAME`,
    `hf:NAME:SPLIT`).

    Raises `InvalidOption` for files of several formats or of another one, and as `find_files`.
    """
    named = [str(data)] if isinstance(data, str | PathLike) else [str(each) for each in data]
    if any(each.startswith(HUB) for each in named):
        data = [file for each in named for file in (hub_files(each) if each.startswith(HUB) else [each])]
    suffixes = tuple(_FORMATS)
    files = tuple(file for file in find_files(data, suffixes=suffixes).files if not _is_cache(file.uri))
    formats = {_format_of(file.uri): file.uri for file in files}
    if len(formats) > 1:
        examples = ", ".join(sorted(formats.values()))
        raise InvalidOption(f"data={data!r} has files of several formats: {examples}. Prepare each format by itself.")
    if "arrow" in formats:
        _refuse_splits(files)
    return TextFiles(format=next(iter(formats)), files=files)


def refuse_within(data: Uri | Sequence[Uri], option: str, folder: str) -> None:
    """Raise `InvalidOption` if what is written into `folder` would be read as `data`.

    `option` names the folder.
    """
    for each in [data] if isinstance(data, str | PathLike) else data:
        if lists_folder(each, folder):
            raise InvalidOption(
                f"{option}={folder!r} lies within data={str(each)!r}, so what is written there would be read too. "
                "Give a folder outside of the data, or one that begins with _, which is not read.",
                option=option,
            )


def scan_parquet(found: TextFiles) -> Manifest:
    """Manifest of Parquet files: reads their footers."""
    return scan([file.uri for file in found.files])


def cut_spans(found: TextFiles, manifest: Manifest | None, span_bytes: int | None = None) -> list[TextSpan]:
    """Cut files into spans of about `span_bytes` bytes.

    They depend on the files alone.

    Args:
        found: Files.
        manifest: Manifest of Parquet files, None for other formats.
        span_bytes: Uncompressed bytes of a span, `SPAN_BYTES` by default. A row group and a compressed file are never
            divided.
    """
    span_bytes = SPAN_BYTES if span_bytes is None else span_bytes
    if manifest is not None:
        return list(_row_group_spans(manifest, span_bytes))
    if found.format != "jsonl":
        return [TextSpan(uri=file.uri) for file in found.files]
    return [
        TextSpan(uri=file.uri, start=start, stop=min(start + span_bytes, file.size))
        for file in found.files
        for start in range(0, file.size, span_bytes)
    ]


def _row_group_spans(manifest: Manifest, span_bytes: int) -> Iterator[TextSpan]:
    start, num_bytes = 0, 0
    for index, size in enumerate(manifest.bytes.tolist()):
        num_bytes += size
        if num_bytes >= span_bytes or index == len(manifest) - 1:
            yield TextSpan(uri=manifest[start].uri, start=start, stop=index + 1)
            start, num_bytes = index + 1, 0


def _format_of(uri: str) -> Format:
    name = PurePosixPath(split_options(uri)[0]).name
    found = [kind for suffix, kind in _FORMATS.items() if name.endswith(suffix)]
    if not found:
        raise InvalidOption(
            f"{uri} has an unknown format. Give Parquet, JSON Lines or a folder of datasets.save_to_disk: "
            f"{', '.join(_FORMATS)}.",
            uri=uri,
        )
    return found[0]


def _is_cache(uri: str) -> bool:
    """Whether a file is a cache of the `datasets` library.

    Caches hold results of map and filter, which are not the data.
    """
    name = PurePosixPath(uri).name
    return name.startswith("cache-") and name.endswith(".arrow")


def _refuse_splits(files: Sequence[FoundFile]) -> None:
    """Refuse a `datasets` folder of several splits.

    A held-out split would be trained on.
    """
    folders = sorted({file.uri.rpartition("/")[0] for file in files})
    parents = {folder.rpartition("/")[0] for folder in folders}
    for parent in sorted(parents):
        location = resolve(f"{parent}/dataset_dict.json")
        if location.fs.get_file_info(location.path).type and len(folders) > 1:
            raise InvalidOption(
                f"{parent} holds the splits {', '.join(folder.rpartition('/')[2] for folder in folders)} of a "
                f"dataset. Name the one to train on: data={folders[0]!r}.",
                folders=folders,
            )
