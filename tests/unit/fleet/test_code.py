"""Archives of code: equal for equal files."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from forebay.errors import InvalidOption
from forebay.fleet import code as archives
from forebay.fleet.code import CodeArchive, fetch_code, pack, store_code, unpack


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_equal_files_have_equal_archives(tmp_path: Path) -> None:
    first = write(tmp_path / "a", job_py="x = 1", jobs__more_py="y = 2")
    second = write(tmp_path / "b", jobs__more_py="y = 2", job_py="x = 1")
    os.utime(second / "job.py", (0, 0))
    assert pack(first) == pack(second)
    write(second, job_py="x = 2")
    assert pack(first).digest != pack(second).digest


def test_code_is_stored_once_and_comes_back(tmp_path: Path) -> None:
    folder = write(tmp_path / "code", job_py="x = 1", sub__tool="#!/bin/sh")
    (folder / "sub" / "tool").chmod(0o755)
    archive = pack(folder)
    storage = str(tmp_path / "runs")
    uri = store_code(storage, archive)
    before = Path(uri).stat().st_mtime_ns
    assert store_code(storage, archive) == uri
    assert Path(uri).stat().st_mtime_ns == before
    fetch_code(storage, archive.digest, tmp_path / "pod")
    assert (tmp_path / "pod" / "job.py").read_text() == "x = 1"
    assert os.access(tmp_path / "pod" / "sub" / "tool", os.X_OK)


def test_half_an_archive_is_written_again(tmp_path: Path) -> None:
    archive = pack(write(tmp_path / "code", job_py="x = 1"))
    uri = store_code(str(tmp_path), archive)
    Path(uri).write_bytes(archive.content[:10])
    with pytest.raises(InvalidOption, match="Submit it again"):
        fetch_code(str(tmp_path), archive.digest, tmp_path / "pod")
    store_code(str(tmp_path), archive)
    fetch_code(str(tmp_path), archive.digest, tmp_path / "pod")


def test_a_folder_of_code_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a shared cluster use one folder, and one may begin while another fetches."""
    storage, pod = str(tmp_path / "runs"), tmp_path / "work" / "code"
    archive = pack(write(tmp_path / "code", job_py="x = 1", more_py="y = 2"))
    store_code(storage, archive)
    words, found = [storage, archive.digest, str(pod)], list[bool]()
    write_bytes = Path.write_bytes

    def watched(path: Path, content: bytes) -> int:
        found.append(pod.exists())
        if len(found) == 2:
            raise OSError(28, "No space left on device")
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", watched)
    with pytest.raises(OSError, match="No space left"):
        archives.main(words)
    archives.main(words)
    archives.main(words)
    assert found == [False] * 4
    assert sorted(each.name for each in pod.iterdir()) == ["job.py", "more.py"]
    assert list(pod.parent.iterdir()) == [pod]


def test_what_git_ignores_stays_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "code", job_py="x = 1", data__big="0" * 100, sub__notes="n")
    (folder / ".gitignore").write_text("data/\n")
    subprocess.run(["git", "init", "-q", folder], check=True)
    assert names(pack(folder)) == [".gitignore", "job.py", "sub/notes"]
    assert names(pack(folder / "sub")) == ["notes"]


def test_the_storage_of_runs_stays_out(tmp_path: Path) -> None:
    for name in ("job.py", "runs/a/result.json", "runs/code/old.zip", "runs.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    with zipfile.ZipFile(io.BytesIO(pack(tmp_path, str(tmp_path / "runs")).content)) as archive:
        assert archive.namelist() == ["job.py", "runs.py"]
    whole = pack(tmp_path).digest
    assert [pack(tmp_path, each).digest for each in (str(tmp_path), str(tmp_path.parent), "memory://runs")] == [
        whole
    ] * 3


def test_folders_of_tools_stay_out_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    folder = write(tmp_path / "code", job_py="x = 1", __pycache__x="0")
    write(folder / ".venv", python="0")
    write(folder / "__pycache__", job="0")
    found = names(pack(folder))
    assert "job.py" in found
    assert not [each for each in found if each.startswith((".venv", "__pycache__/"))]


def test_link_that_leads_outside_stays_out(tmp_path: Path) -> None:
    write(tmp_path / "other", secret="s")
    folder = write(tmp_path / "code", job_py="x = 1")
    (folder / "link").symlink_to(tmp_path / "other" / "secret")
    assert names(pack(folder)) == ["job.py"]


@pytest.mark.parametrize("has_git", [True, False])
def test_folders_behind_links_belong_to_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_git: bool
) -> None:
    folder = write(tmp_path / "code", job_py="x = 1", lib__more_py="y = 2", lib__deep__n_py="n = 3")
    write(tmp_path / "other", secret="s")
    for link, to in (
        ("linked", "lib"),
        ("lib/deep/up", "../../lib"),
        ("here", "."),
        ("out", "../other"),
        ("own", "own"),
    ):
        (folder / link).symlink_to(to)
    if has_git:
        subprocess.run(["git", "init", "-q", folder], check=True)
    else:
        monkeypatch.setenv("PATH", "")
    found = names(pack(folder))
    assert {"job.py", "lib/more.py", "linked/more.py", "linked/deep/n.py"} <= set(found)
    assert not [each for each in found if each.startswith(("out", "here"))]


def test_submodules_and_repositories_in_the_folder_belong_to_the_code(tmp_path: Path) -> None:
    def git(folder: Path, *words: str) -> None:
        own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
        subprocess.run(["git", "-C", folder, *own, *words], check=True, capture_output=True)

    library = write(tmp_path / "library", more_py="y = 2")
    folder = write(tmp_path / "code", job_py="x = 1", nested__n_py="n = 3")
    for each in (library, folder, folder / "nested"):
        git(each, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-qm", "a")
    git(folder, "submodule", "--quiet", "add", str(library), "library")
    assert names(pack(folder)) == [".gitmodules", "job.py", "library/more.py", "nested/n.py"]


def test_a_file_that_cannot_be_named_or_read_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "code", job_py="x = 1")
    strange = folder / os.fsdecode(b"b\xff.txt")
    strange.touch()
    with pytest.raises(InvalidOption, match=r"b\\xff.txt' is not UTF-8. Rename the file"):
        pack(folder)
    strange.unlink()

    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InvalidOption, match=r"job.py belongs to the code of the job and cannot be read"):
        pack(folder)


def test_too_much_is_refused_with_the_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LARGEST_BYTES", 1000)
    folder = write(tmp_path / "code", job_py="x = 1", weights="0" * 5000, more="0" * 400)
    with pytest.raises(InvalidOption, match=r"The largest files: weights .*, more"):
        pack(folder)


@pytest.mark.parametrize("folder", ["nothing", "empty"])
def test_folder_without_files_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidOption, match="Give the folder of the job file"):
        pack(tmp_path / folder)


def test_archive_that_names_a_file_outside_writes_nothing_there(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../outside.py", "x")
    content = buffer.getvalue()
    from hashlib import sha256

    with pytest.raises(InvalidOption, match="outside of its folder"):
        unpack(content, sha256(content).hexdigest(), tmp_path / "pod")
    assert not (tmp_path / "outside.py").exists()


def test_code_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="Submit the job again"):
        fetch_code(str(tmp_path), "0" * 64, tmp_path / "pod")


def names(archive: CodeArchive) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(archive.content)) as found:
        return found.namelist()
