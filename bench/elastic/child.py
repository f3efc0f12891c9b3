"""One run of one system of the elastic bench in this process. Started by the bench.

python -m bench.elastic.child SYSTEM '{"scenario": "changes", "log": "...", "folder": "..."}'
"""

from __future__ import annotations

import importlib
import json
import sys

from bench.elastic.setting import ElasticSetting


def main() -> None:
    system, setting = sys.argv[1:]
    importlib.import_module(f"bench.elastic.systems.{system}").run(ElasticSetting(**json.loads(setting)))


if __name__ == "__main__":
    main()
