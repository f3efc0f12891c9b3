"""Systems of the bench: the packages that each is installed from, and its measurements."""

from __future__ import annotations

from dataclasses import dataclass, field

TORCH = "torch==2.13.0"
OWN = ""
"""Name of Forebay's own environment: the interpreter that runs the bench."""

# Some need several steps because one resolution cannot hold all packages. An unpinned torch could bring gigabytes of
# CUDA.
VENVS: dict[str, list[list[str]]] = {
    "petastorm": [
        ["petastorm==0.13.1", "pyarrow==14.0.2", "numpy<2", "pandas<2.2", "setuptools<70"],
        ["sympy", "networkx", "jinja2", "fsspec", "filelock", "typing-extensions"],
        # torch requires a newer setuptools than petastorm runs with, and uses it only for compiling.
        ["--no-deps", TORCH],
    ],
    # For the sweep bench, which reads from S3.
    "petastorm-s3": [
        ["petastorm==0.13.1", "pyarrow==14.0.2", "numpy<2", "pandas<2.2", "setuptools<70", "s3fs"],
        ["sympy", "networkx", "jinja2", "fsspec", "filelock", "typing-extensions"],
        ["--no-deps", TORCH],
    ],
    "ray": [["ray[data,train]==2.60.0", TORCH, "pyarrow>=20", "aiohttp"]],
    "torch": [["numpy>=2", "pyarrow>=20", TORCH]],
    "streaming": [
        ["mosaicml-streaming==0.13.0", "pyarrow>=20", TORCH],
        # It imports torchvision but needs none of its operators. Newer versions refuse a torch they were not built for.
        ["--no-deps", "--force-reinstall", "torchvision==0.15.2"],
    ],
    "litdata": [["litdata==0.2.76", "polars", "pyarrow>=20", "numpy>=2", TORCH]],
    "grain": [["grain==0.2.18", "pyarrow>=20", "numpy>=2"]],
    "huggingface": [["datasets==5.2.0", "pyarrow>=20", "numpy>=2", TORCH]],
    "lancedb": [["lancedb==0.40.0", "pyarrow>=20", "numpy>=2", TORCH]],
    # For the bench of sequences.
    "pytorch-forecasting": [["pytorch-forecasting==1.8.0", "pyarrow>=20", TORCH]],
    "gluonts": [["gluonts[arrow]==0.17.0", "packaging", TORCH]],
    "neuralforecast": [["neuralforecast==3.3.0", "pyarrow>=20", TORCH]],
    # For the bench of language models. HF Trainer runs in the bench's own environment.
    "trl": [["trl==1.16.0", "transformers==5.19.0", "accelerate==1.15.0", "pyarrow>=20", TORCH]],
    # The last release. Newer versions of torchao lack what it imports.
    "torchtune": [["torchtune==0.6.1", "torchao==0.14.1", TORCH]],
    "llamafactory": [["llamafactory==0.9.5", TORCH], ["--no-deps", "--force-reinstall", "torchvision==0.15.2"]],
    "axolotl": [["axolotl==0.19.0", TORCH]],
}

Phase = tuple[str, int, str, int]
"""(name, first epoch, consumer, epochs on one clock)."""

_EPOCHS: tuple[Phase, ...] = (("first", 0, "touch", 1), ("later", 1, "touch", 1))
_STEP: Phase = ("step", 2, "step", 1)
_SEVERAL: Phase = ("several", 4, "touch", 5)


@dataclass(frozen=True)
class PeerRun:
    """Phases of one process. With `fresh` the cache is empty, otherwise it is the one that the previous run left."""

    phases: tuple[Phase, ...]
    fresh: bool = True


@dataclass(frozen=True)
class PeerEntry:
    """One row of the table. After the first repeat, the phases in `once` are left out."""

    name: str
    system: str
    venv: str = OWN
    variant: str = ""
    runs: tuple[PeerRun, ...] = field(default=(PeerRun(phases=(*_EPOCHS, _STEP)),))
    once: tuple[str, ...] = ("step",)


ENTRIES = (
    PeerEntry(
        name="Forebay",
        system="forebay_cached",
        runs=(
            PeerRun(phases=(*_EPOCHS, _STEP, ("count", 3, "count", 1), _SEVERAL)),
            PeerRun(phases=(("warm", 0, "touch", 1),), fresh=False),
            PeerRun(phases=(("cold step", 0, "step", 1),)),
        ),
        once=(),
    ),
    PeerEntry(
        name="limit: bare gather in memory",
        system="gather",
        runs=(
            PeerRun(phases=(("warm-up", 0, "touch", 1), ("later", 1, "touch", 1), ("count", 2, "count", 1), _SEVERAL)),
        ),
        once=(),
    ),
    PeerEntry(
        name="Forebay, all cores",
        system="forebay_cached",
        variant="all cores",
        runs=(PeerRun(phases=(("first", 0, "touch", 1),)),),
        once=(),
    ),
    PeerEntry(
        name="Forebay, no room in the cache",
        system="forebay_cached",
        variant="no room",
        runs=(PeerRun(phases=(_SEVERAL,)),),
        once=(),
    ),
    PeerEntry(
        name="limit: pyarrow decode alone, one thread",
        system="arrow",
        variant="one thread",
        runs=(PeerRun(phases=(("first", 0, "count", 1), ("touched", 0, "touch", 1))),),
        once=(),
    ),
    PeerEntry(
        name="limit: pyarrow decode alone",
        system="arrow",
        runs=(PeerRun(phases=(("first", 0, "count", 1), ("touched", 0, "touch", 1))),),
        once=(),
    ),
    PeerEntry(name="petastorm", system="petastorm_batched", venv="petastorm"),
    PeerEntry(name="petastorm, disk cache", system="petastorm_batched", venv="petastorm", variant="cache"),
    PeerEntry(name="Ray Data", system="ray_data", venv="ray"),
    PeerEntry(name="Ray Data, local shuffle", system="ray_data", venv="ray", variant="shuffle"),
    PeerEntry(name="Ray Data, materialized", system="ray_data", venv="ray", variant="materialized"),
    PeerEntry(name="torch DataLoader on Parquet", system="torch_dataloader", venv="torch"),
    PeerEntry(name="MosaicML Streaming (MDS)", system="mosaic_streaming", venv="streaming"),
    PeerEntry(name="litData, optimized", system="litdata_streaming", venv="litdata"),
    PeerEntry(name="litData, ParquetLoader", system="litdata_streaming", venv="litdata", variant="parquet"),
    PeerEntry(name="Grain on Parquet", system="grain_parquet", venv="grain"),
    PeerEntry(name="HF datasets, streaming", system="hf_datasets", venv="huggingface"),
    PeerEntry(
        name="HF datasets, streaming, local shuffle", system="hf_datasets", venv="huggingface", variant="shuffle"
    ),
    PeerEntry(name="HF datasets, map-style", system="hf_datasets", venv="huggingface", variant="map"),
    PeerEntry(
        name="HF datasets, map-style, shuffled", system="hf_datasets", venv="huggingface", variant="map shuffled"
    ),
    PeerEntry(
        name="HF datasets, map-style, local shuffle", system="hf_datasets", venv="huggingface", variant="map shuffle"
    ),
    PeerEntry(name="LanceDB StreamingDataset", system="lancedb_streaming", venv="lancedb"),
    PeerEntry(name="LanceDB StreamingDataset, clumps", system="lancedb_streaming", venv="lancedb", variant="clumps"),
    PeerEntry(name="FuxiCTR's HF loader", system="fuxictr_hf", venv="huggingface"),
)
