"""Files of a streamed dataset that are finished so far: one small record each, written after its file.

Records stay until the dataset is removed. A preparation that was killed and started over writes the same files, so
readers need not wait for those that have a record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from forebay.data.manifest.manifest import Field, Manifest
from forebay.data.manifest.prepared import PreparedFile, find_prepared, manifest_of, prepared_file
from forebay.data.manifest.streamed import STREAM_VERSION, StreamedManifest, StreamLayout
from forebay.errors import InvalidOption, PreparationFailed, SourceChanged
from forebay.storage.credentials import Access
from forebay.storage.filesystem import below
from forebay.storage.json_file import from_json, read_json_file, to_json, write_json_file

RECORDS = "_stream"
"""Folder of the records, within that of the dataset."""
_LAYOUT = "layout.json"
_OWNER = "prepared dataset"


class StreamFiles:
    """Records of one streamed dataset, in its `folder`.

    Two processes may prepare it, one after the other. `attempt` names the call whose end concerns the readers.
    """

    def __init__(self, folder: str, *, attempt: str) -> None:
        self.folder, self._attempt = folder, attempt
        self._failure = f"failed-{attempt}.json"
        self._records = below(folder, RECORDS)

    def write_layout(self, layout: StreamLayout, fields: Sequence[Field]) -> None:
        """Write the layout, after the first file. Raises `OSError`."""
        facts = {"version": STREAM_VERSION, "fields": [asdict(field) for field in fields], "layout": asdict(layout)}
        write_json_file(self._records, _LAYOUT, to_json(facts))

    def find_manifest(self) -> StreamedManifest | None:
        """Manifest of the whole dataset. None before its first file is finished."""
        text = read_json_file(self._records, _LAYOUT, _OWNER)
        if not text:  # HDFS shows a file before its content
            return None
        return from_json(text, self._manifest, version=STREAM_VERSION, owner=_OWNER, file_name=_LAYOUT)

    def write(self, number: int, file: PreparedFile) -> None:
        """Record file `number`. Raises `InvalidOption` if another one was recorded before, and `OSError`."""
        before = self.find(number)
        if before is not None and before.content_hash != file.content_hash:
            raise InvalidOption(
                f"File {number} of {self.folder} has other rows than when it was prepared before, and a run may have "
                "trained on those. Let the function give the same rows each time. Remove the dataset with `forebay "
                "prepare rm`, and give the run a new name.",
                path=self.folder,
            )
        write_json_file(self._records, f"{number:06d}.json", to_json(asdict(file)))

    def find(self, number: int) -> PreparedFile | None:
        """Record of file `number`. None if it is not finished."""
        text = read_json_file(self._records, f"{number:06d}.json", _OWNER)
        return prepared_file(json.loads(text)) if text else None

    def finished(self, known: Sequence[PreparedFile]) -> Sequence[PreparedFile]:
        """Files that are finished, from the first on without a gap. `known` are those that were found before.

        Raises `PreparationFailed` if the attempt has ended.
        """
        sealed = find_prepared(self.folder)
        if sealed is not None:
            return sealed.files
        found = list(known)
        while (file := self.find(len(found))) is not None:
            found.append(file)
        if len(found) == len(known) and (text := read_json_file(self._records, self._failure, _OWNER)) is not None:
            raise PreparationFailed(
                f"The preparation of {self.folder} has ended, and file {len(found)} is missing: "
                f"{json.loads(text)['error']}"
            )
        return found

    def prefix(self, fields: Sequence[Field], files: Sequence[PreparedFile]) -> Manifest:
        """Manifest of the first files, which are finished."""
        return manifest_of(self.folder, fields, files)

    def write_failure(self, error: str) -> None:
        """Record that this attempt will write no further file. Raises `OSError`."""
        write_json_file(self._records, self._failure, to_json({"error": error}))

    def manifest(self, layout: StreamLayout, fields: Sequence[Field]) -> StreamedManifest:
        """Manifest of the whole dataset."""
        return layout.manifest(self.folder, fields, Access([self.folder]), attempt=self._attempt)

    def _manifest(self, facts: dict[str, Any]) -> StreamedManifest:
        layout = facts["layout"]
        fields = tuple(Field(**each) for each in facts["fields"])
        made = StreamLayout(**layout | {"row_group_bytes": tuple(layout["row_group_bytes"])})
        return self.manifest(made, fields)


def finished_manifest(manifest: Manifest) -> Manifest:
    """Manifest whose row groups can be read: of a stream, that of the first files, which are finished.

    Raises `SourceChanged` if the stream has no file, and `PreparationFailed` if it ended without one.
    """
    if not isinstance(manifest, StreamedManifest):
        return manifest
    files = StreamFiles(manifest.root, attempt=manifest.attempt)
    found = files.finished(())
    if not found:
        raise SourceChanged(
            f"{manifest.root} has no finished file of this stream. Prepare the data again: the same function and data "
            "give the same rows.",
            uri=manifest.root,
        )
    return replace(files.prefix(manifest.fields, found), columns=manifest.columns)
