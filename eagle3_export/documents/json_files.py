"""Writing and reading the JSON documents of an export and of a run: strict, bounded, and of a known schema."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from eagle3_export.documents.files import INDEX_FILE, MAX_DOCUMENT_BYTES, METADATA_FILE
from eagle3_export.documents.schema import SCHEMA_VERSION, ExportIndex, ExportMetadata
from eagle3_export.errors import ExportInvalidError
from eagle3_export.storage.faults import shown
from eagle3_export.storage.regular_file import read_json

# Python's stand-in for a byte of a path that is no UTF-8, and half of a character; no file can hold either.
_NO_CHARACTER = re.compile("[\ud800-\udfff]")
_Document = TypeVar("_Document", bound=BaseModel)


def to_json(document: BaseModel) -> bytes:
    """Returns the document as strict JSON: no NaN, no infinity, keys in the model's order, a newline at the end."""
    content = document.model_dump(mode="json")
    text = json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    return _NO_CHARACTER.sub(lambda found: "\\" + _escaped(found[0]), text).encode()


def printable(text: str) -> str:
    """Returns text that a file can hold: a byte of a path that is no UTF-8 is written as `\\xe9`."""
    return _NO_CHARACTER.sub(lambda found: _escaped(found[0]), text)


def _escaped(surrogate: str) -> str:
    code = ord(surrogate)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


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
    return _read(Path(path), METADATA_FILE, ExportMetadata)


def read_index(path: str | Path) -> ExportIndex:
    """Reads `index.json`, or that of a run's output directory.

    Raises:
        ExportInvalidError: the file is missing, is no strict JSON or does not follow the schema.
    """
    return _read(Path(path), INDEX_FILE, ExportIndex)


def _read(path: Path, name: str, model: type[_Document]) -> _Document:
    remedy = "Export the checkpoint again."
    try:
        if path.is_dir():
            path = path / name
        content = read_json(path, MAX_DOCUMENT_BYTES)
        version = content.get("schema_version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise ExportInvalidError(
                f"{shown(path)} follows schema_version {version}; this release knows {SCHEMA_VERSION}.",
                remedy="Update eagle3-export.",
            )
        return model.model_validate(content)
    except OSError as error:
        raise ExportInvalidError(
            f"{shown(path)} cannot be read: {error.strerror or error}.", remedy=remedy
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ExportInvalidError(f"{shown(path)}: {where}: {first['msg']}.", remedy=remedy) from error
    except ValueError as error:
        raise ExportInvalidError(f"{shown(path)} is not strict JSON: {error}.", remedy=remedy) from error


def utc_now() -> str:
    """Returns the current time in UTC, as the documents write it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
