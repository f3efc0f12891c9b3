"""Entry of a container: fetch the code of a job, and run a command in it.

python -m forebay.fleet.code.fetch STORAGE DIGEST FOLDER [-- COMMAND...]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from forebay.fleet.code.stored_code import fetch_code


def main(words: Sequence[str]) -> None:
    """Fetch the code, unless the folder is there, and become the command."""
    storage, digest, folder, *rest = words
    if not Path(folder).exists():
        fetch_code(storage, digest, folder)
    if rest:
        os.chdir(folder)
        os.execvp(rest[1], rest[1:])  # noqa: S606 - the user's own command


if __name__ == "__main__":
    main(sys.argv[1:])
