#!/usr/bin/env bash
# Install Forebay from this repository into an environment that has Python, such as an image of Ray.
#
#   deploy/docker/install.sh PYTHON [EXTRA,...]
#
# The extra `ray`, the platform, is always installed. Versions that the environment has stay as they are: an image of Ray brings the Ray and the CUDA that fit together.
set -euo pipefail

python="${1:?usage: install.sh PYTHON [EXTRA,...]}"
extras="${2:-}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"

kept="$(mktemp)"
trap 'rm -f "$kept"' EXIT
"$python" -m pip freeze --exclude-editable | grep -E '^(ray|torch|numpy|pyarrow)==' >"$kept" || true

"$python" -m pip install --no-cache-dir --disable-pip-version-check --constraint "$kept" "$root[ray${extras:+,$extras}]"
"$python" -m pip check
"$python" -c 'import forebay, ray; print(f"forebay {forebay.__version__} on ray {ray.__version__}")'
