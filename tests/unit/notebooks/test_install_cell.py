"""Every notebook installs Forebay where it is missing, as on Colab, and is committed without outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from tests.notebook import FOLDER, INSTALL, read

ROOT = FOLDER.parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_first_cell_is_the_same_and_outputs_are_not_committed(name: str) -> None:
    code = [cell for cell in read(name).cells if cell.cell_type == "code"]
    begin, _, packages = code[0].source.partition(INSTALL)
    assert (begin, packages.startswith(' "forebay')) == ("", True)
    assert not any(cell.outputs or cell.execution_count for cell in code), "outputs go stale"


@pytest.mark.variation("installs a package")
@pytest.mark.timeout(300)
def test_first_cell_installs_a_wheel_beside_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment that has all packages but Forebay."""
    work, source = tmp_path / "work", tmp_path / "source"
    subprocess.run(
        ["cp", "-r", "--parents", "platform", "pyproject.toml", "README.md", "LICENSE", _made(source)],
        cwd=ROOT,
        check=True,
    )
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    # Their own .pth files are not read, so that an editable Forebay among them is not found.
    (own / "below.pth").write_text("".join(f"{path}\n" for path in packages()))
    kernel = _made(tmp_path / "jupyter" / "kernels" / "python3")
    words = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    Path(kernel, "kernel.json").write_text(json.dumps({"argv": words, "display_name": "empty", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    where_from = nbformat.v4.new_code_cell("import forebay as installed; print(installed.__file__)")
    notebook = nbformat.v4.new_notebook(cells=[read("quickstart").cells[1], where_from])
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(work)}}).execute()
    assert notebook.cells[1].outputs[0].text.startswith(f"{own}{os.sep}forebay")


def packages() -> list[str]:
    """Folders that this process imports installed packages from."""
    return [
        path for path in dict.fromkeys([sysconfig.get_path("purelib"), *sys.path]) if path.endswith("site-packages")
    ]


def _made(folder: Path) -> str:
    folder.mkdir(parents=True)
    return str(folder)
