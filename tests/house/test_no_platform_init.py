from __future__ import annotations

from pathlib import Path


def test_platform_is_a_folder_and_no_package(repository: Path) -> None:
    """With `platform/__init__.py`, `import platform` in the repository finds that folder, and `import ray` dies."""
    assert (repository / "platform" / "forebay" / "__init__.py").is_file()
    assert not (repository / "platform" / "__init__.py").exists()


def test_package_files_of_subpackages_hold_names_only(repository: Path) -> None:
    """Names are imported from the file that owns them. Packages that are public as a whole have a table of theirs."""
    package = repository / "platform" / "forebay"
    filled = [path for path in package.glob("*/**/__init__.py") if path.stat().st_size]
    assert len(filled) > 5
    others = [path.parent.name for path in filled if "lazy_names(" not in path.read_text()]
    assert others == ["testing"]
