"""What the verifier (the target model) is, as far as exporting a draft for it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3_export.errors import CheckpointError
from eagle3_export.speculators_format.fields import read_json_object
from eagle3_export.speculators_format.run_files import CONFIG_FILE, cached_snapshot


@dataclass(frozen=True, slots=True)
class Verifier:
    """The served target model; None: its config does not say.

    Attributes:
        architectures: class names of its config.json; SGLang picks the model class by them.
        quantization: method name of its quantization_config ("fp8", "awq", ...), None when unquantised.
        config: the decoded config of its text model.
    """

    name: str
    architectures: tuple[str, ...] = ()
    num_hidden_layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    quantization: str | None = None
    dtype: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


def read_verifier(name_or_path: str | None) -> Verifier | None:
    """Reads the verifier's config.json from a local directory or the local Hugging Face cache.

    Never the network. None when it is not there, or cannot be read: then the checks that need it say so.
    """
    if not name_or_path:
        return None
    try:
        directory = Path(name_or_path) if Path(name_or_path).is_dir() else cached_snapshot(name_or_path)
        if directory is None or not (directory / CONFIG_FILE).is_file():
            return None
        return parse_verifier(read_json_object(directory / CONFIG_FILE), name_or_path)
    except (CheckpointError, OSError, ValueError):
        return None


def parse_verifier(config: Mapping[str, Any], name: str) -> Verifier:
    """A multimodal config keeps the sizes under `text_config`, as speculators reads it (`get_verifier_config`)."""
    nested = config.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, Mapping) else config

    def size(key: str) -> int | None:
        value = text.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    architectures = config.get("architectures")
    quantization = config.get("quantization_config") or text.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    dtype = next((d for key in ("dtype", "torch_dtype") for d in (text.get(key), config.get(key)) if d), None)
    return Verifier(
        name=name,
        architectures=tuple(a for a in architectures if isinstance(a, str))
        if isinstance(architectures, list)
        else (),
        num_hidden_layers=size("num_hidden_layers"),
        hidden_size=size("hidden_size"),
        vocab_size=size("vocab_size"),
        max_position_embeddings=size("max_position_embeddings"),
        quantization=(str(method) if method else "unknown") if quantization else None,
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) else None,
        config=text,
    )
