#!/usr/bin/env bash
# Install Forebay from this repository into an environment that has Python 3.11, such as an image of Ray.
#
#   deploy/docker/install.sh PYTHON [EXTRA,...]
#
# The extra `ray`, the platform, is always installed. Versions are those of requirements.lock, each file by its hash. Ray
# and PyTorch of the environment stay as they are: an image brings those that fit its CUDA. An extra that is not locked
# gets versions of the package index, without hashes, and this is said.
set -euo pipefail

python="${1:?usage: install.sh PYTHON [EXTRA,...]}"
extras="${2:-}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$here/../.."
lock="$here/requirements.lock"

"$python" -c 'import sys; v = sys.version_info[:2]; v == (3, 11) or sys.exit(f"requirements.lock is for Python 3.11, and this is {v[0]}.{v[1]}. Choose an image with 3.11, or write another lock: scripts/lock_image.py.")'
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# Beside a PyTorch that is there, its CUDA libraries are not installed either.
"$python" -m pip list --format freeze | grep -oE '^(ray|torch)==' | sed 's/==//; s/^torch$/torch\ntriton\nnvidia-[a-z0-9-]*\ncuda-[a-z0-9-]*/' >"$work/kept" || true
awk -v kept="$(paste -sd'|' "$work/kept")" '
  /^[a-z0-9]/ { is_kept = kept != "" && match($1, "^(" kept ")(\\[.*\\])?==") }
  !is_kept' "$lock" >"$work/requirements"
pip=("$python" -m pip --disable-pip-version-check install --no-cache-dir)
"${pip[@]}" --require-hashes --no-deps --requirement "$work/requirements"

locked=",$(sed -n 's/^# extras: //p' "$lock"),"
how=(--no-index --no-deps)
for extra in ${extras//,/ }; do
  if [[ "$locked" != *",$extra,"* ]]; then
    echo "$extra is not in requirements.lock: its packages come from the index, without hashes" >&2
    how=(--constraint "$work/versions")
  fi
done
sed -n 's/^\([a-z0-9][^ ;]*==[^ ;]*\).*/\1/p' "$work/requirements" >"$work/versions"
"${pip[@]}" --no-build-isolation "${how[@]}" "$root[ray${extras:+,$extras}]"
"$python" -m pip check
"$python" -c 'import forebay, ray; print(f"forebay {forebay.__version__} on ray {ray.__version__}")'
