#!/usr/bin/env bash
# Builds the environment in which real SGLang runs on this CPU, without a GPU (docs/bridge.md).
# Usage: scripts/engine-env.sh [SGLANG_VERSION [VENV]]
# Defaults: 0.5.23 into .venv-engine; another version goes to .venv-engine-VERSION. Does nothing where it is up to date.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
newest=0.5.23
version="${1:-$newest}"
default_venv="$root/.venv-engine"
[ "$version" = "$newest" ] || default_venv="$root/.venv-engine-$version"
venv="${2:-$default_venv}"
python="${PYTHON:-python3}"
stamp="$venv/.topas-engine"
base="$version $(sha256sum "$root/scripts/engine-env.sh" | cut -c1-16)"
key="$base $(sha256sum "$root/pyproject.toml" | cut -c1-16)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then
  echo "engine environment is up to date: $venv (SGLang $version)"
  exit 0
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
install_engine() {
# One torch for all versions: SGLang pins 2.13 or 2.14, and every supported version runs on 2.13.
"${pip[@]}" torch==2.13.0
"${pip[@]}" --no-deps "sglang==$version"
# These must be the versions that the SGLang wheel itself names.
pins="$("$venv/bin/python" - <<'PY'
import importlib.metadata as metadata
import re

wanted = {"transformers", "xgrammar", "apache-tvm-ffi", "openai", "compressed-tensors"}
for line in metadata.requires("sglang") or []:
    found = re.match(r"([A-Za-z0-9_.-]+)\s*(==[0-9][^;\s]*)?", line)
    if found and found[1] in wanted and found[2] and "extra ==" not in line:
        wanted.discard(found[1])
        print(found[1] + found[2])
for name in sorted(wanted):
    print(name)
PY
)"
# Without dependencies: theirs would pull CUDA packages.
nodeps="$(grep -E '^(xgrammar|apache-tvm-ffi|compressed-tensors)' <<<"$pins")"
"${pip[@]}" --no-deps $nodeps gguf
"${pip[@]}" $(grep -E '^(transformers|openai)' <<<"$pins") \
  aiohttp fastapi 'uvicorn>=0.51' uvloop orjson msgspec numpy packaging pillow prometheus-client psutil pybase64 pydantic \
  python-multipart pyzmq requests setproctitle tqdm xxhash einops partial_json_parser IPython zstandard dill sentencepiece \
  jsonschema soundfile pyyaml loguru 'llguidance' \
  numba==0.68.1 gymnasium==1.4.0 typer rich scipy pytest hypothesis safetensors 2> >(grep -v 'requires\|resolver' >&2 || true)
}
# For examples and checks of docs/bridge.md; none changes a package that SGLang needs. The Agents SDK is the newest that
# takes SGLang's `openai`.
install_extras() {
  "${pip[@]}" -c <("$venv/bin/python" -m pip freeze --exclude-editable) langgraph==1.2.24 'openai-agents<=0.6.2'
  "${pip[@]}" --no-deps sglang-router==0.3.2
}
# What SGLang needs changes with the version alone; our own package is installed again whenever its metadata changes.
[ -f "$stamp" ] && [[ "$(cat "$stamp")" == "$base "* ]] || { install_engine && install_extras; }
"${pip[@]}" hatchling editables
"${pip[@]}" --no-deps --no-build-isolation -e "$root"
echo "$key" >"$stamp"
echo "engine environment is ready: $venv (SGLang $version)"
