"""Writing and reading the JSON documents of an export and of a run: strict, bounded, and of a known schema."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from eagle3_export.documents.schema import SCHEMA_VERSION, ExportIndex, ExportMetadata
from eagle3_export.errors import ExportInvalidError
from eagle3_export.storage.regular_file import read_regular_file

MAX_DOCUMENT_BYTES = 16 << 20

_Document = TypeVar("_Document", bound=BaseModel)


def to_json(document: BaseModel) -> bytes:
    """Returns the document as strict JSON: no NaN, no infinity, keys in the model's order, a newline at the end."""
    content = document.model_dump(mode="json")
    return (json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def read_metadata(path: str | Path) -> ExportMetadata:
    """Reads `metadata.json`, or that of an export directory.

    Args:
        path: the file, or the export's directory.

    Raises:
        ExportInvalidError: the file is missing, is no strict JSON or does not follow the schema.

    Example:
        >>> read_metadata("output/sglang/3").epoch
        3
    """
    return _read(Path(path), "metadata.json", ExportMetadata)


def read_index(path: str | Path) -> ExportIndex:
    """Reads `index.json`, or that of a run's output directory.

    Raises:
        ExportInvalidError: the file is missing, is no strict JSON or does not follow the schema.
    """
    return _read(Path(path), "index.json", ExportIndex)


def _read(path: Path, name: str, model: type[_Document]) -> _Document:
    remedy = "Export the checkpoint again."
    try:
        if path.is_dir():
            path = path / name
        written = read_regular_file(path, MAX_DOCUMENT_BYTES + 1)
        if len(written) > MAX_DOCUMENT_BYTES:
            raise ExportInvalidError(f"{path} has more than {MAX_DOCUMENT_BYTES} bytes.", remedy=remedy)
        content = json.loads(written, parse_constant=_refuse_constant)
        if rb"\ud" in written.lower():
            json.dumps(
                content, ensure_ascii=False
            ).encode()  # half a surrogate pair is no text: UnicodeEncodeError
        version = content.get("schema_version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise ExportInvalidError(
                f"{path} follows schema_version {version}; this release knows {SCHEMA_VERSION}.",
                remedy="Update eagle3-export.",
            )
        return model.model_validate(content)
    except OSError as error:
        raise ExportInvalidError(f"{path} cannot be read: {error.strerror}.", remedy=remedy) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ExportInvalidError(f"{path}: {where}: {first['msg']}.", remedy=remedy) from error
    except (ValueError, RecursionError) as error:
        raise ExportInvalidError(f"{path} is not strict JSON: {error}.", remedy=remedy) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def utc_now() -> str:
    """Returns the current time in UTC, as the documents write it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
