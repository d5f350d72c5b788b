"""What the verifier (the target model) is, as far as exporting a draft for it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3_export.errors import CheckpointError
from eagle3_export.speculators_format.run_files import CONFIG_FILE, cached_snapshot, is_hub_id, places_of
from eagle3_export.storage.regular_file import read_json_object


@dataclass(frozen=True, slots=True)
class Verifier:
    """The served target model; None: its config does not say.

    Attributes:
        architectures: class names of its config.json; SGLang picks the model class by them.
        quantization: method name of its quantization_config ("fp8", "awq", ...), None when unquantised.
        dtype: of its weights, as the config spells it ("bfloat16").
        config: the decoded config of its text model.
    """

    architectures: tuple[str, ...] = ()
    num_hidden_layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    quantization: str | None = None
    dtype: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class VerifierSearch:
    """What came of looking for a verifier's config.json.

    Attributes:
        name: what the draft or the user calls the model, None where nobody named one.
        verifier: None where no readable config was found.
        tried: the places where it was looked for, in words.
        directory: where it was found.
    """

    name: str | None
    verifier: Verifier | None = None
    tried: tuple[str, ...] = ()
    directory: Path | None = None


def find_verifier(name_or_path: str | None, *, checkpoint: Path | None = None) -> VerifierSearch:
    """Looks for the verifier's config.json on this machine: in a directory, or in the local Hugging Face cache.

    Never the network. A config that cannot be read counts as not found: then the checks that need it say so.

    Args:
        name_or_path: a directory or a hub id.
        checkpoint: the draft's checkpoint. A relative path is then also tried from there and from its run.
    """
    if not name_or_path:
        return VerifierSearch(None)
    tried: dict[str, None] = {}
    for place, directory in _places(name_or_path, checkpoint):
        verifier = _read(directory) if directory is not None else None
        if verifier is not None:
            return VerifierSearch(name_or_path, verifier, directory=directory)
        tried[place] = None
    return VerifierSearch(name_or_path, None, tuple(tried))


def read_verifier(name_or_path: str | None, *, checkpoint: Path | None = None) -> Verifier | None:
    """The verifier that `find_verifier` finds, None where it finds none."""
    return find_verifier(name_or_path, checkpoint=checkpoint).verifier


def _places(name: str, checkpoint: Path | None) -> Iterator[tuple[str, Path | None]]:
    """Where the model may lie: in words, and the directory; None where the cache does not hold it."""
    yield str(Path(name).absolute()), Path(name)
    if is_hub_id(name):
        yield "the local Hugging Face cache", cached_snapshot(name)
    if checkpoint is not None:
        for place in (checkpoint / name, *places_of(name, checkpoint.parent)):
            yield str(place.absolute()), place


def _read(directory: Path) -> Verifier | None:
    try:
        if not (directory / CONFIG_FILE).is_file():
            return None
        return parse_verifier(read_json_object(directory / CONFIG_FILE))
    except (CheckpointError, OSError, ValueError):
        return None


def parse_verifier(config: Mapping[str, Any]) -> Verifier:
    """Reads a target model's config.json.

    A multimodal config keeps the sizes under `text_config`, as speculators reads it (`get_verifier_config`).
    """
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
        architectures=tuple(a for a in architectures if isinstance(a, str))
        if isinstance(architectures, list)
        else (),
        num_hidden_layers=size("num_hidden_layers"),
        hidden_size=size("hidden_size"),
        vocab_size=size("vocab_size"),
        quantization=(str(method) if method else "unknown") if quantization else None,
        dtype=dtype.removeprefix("torch.") if isinstance(dtype, str) else None,
        config=text,
    )
