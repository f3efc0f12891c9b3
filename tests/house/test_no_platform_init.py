from __future__ import annotations

from pathlib import Path


def test_platform_is_a_folder_and_no_package(repository: Path) -> None:
    """With `platform/__init__.py`, `import platform` in the repository finds that folder, and `import ray` dies."""
    assert (repository / "platform" / "forebay" / "__init__.py").is_file()
    assert not (repository / "platform" / "__init__.py").exists()


def test_package_files_of_subpackages_are_empty(repository: Path) -> None:
    """Names are imported from the file that owns them. Only the package, `callbacks`, `llm` and `score` export them."""
    package = repository / "platform" / "forebay"
    filled = [str(path.relative_to(package)) for path in package.glob("*/**/__init__.py") if path.stat().st_size]
    assert sorted(filled) == ["llm/__init__.py", "llm/score/__init__.py", "training/callbacks/__init__.py"]
