#!/usr/bin/env bash
# Every command of the start pages, in an empty environment: see first_half_hour.py beside this.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec .venv/bin/python scripts/first_half_hour.py "$@"
