"""Write the JSON Schemas of metadata.json and index.json into eagle3_export/documents/schemas/."""

from __future__ import annotations

import json
from pathlib import Path

from eagle3_export.documents.schema import ExportIndex, ExportMetadata

SCHEMAS = Path(__file__).resolve().parent.parent / "eagle3_export" / "documents" / "schemas"
MODELS = {"metadata.json": ExportMetadata, "index.json": ExportIndex}


def schema_text(name: str) -> str:
    """The JSON Schema (draft 2020-12) of one document, as it is checked in."""
    schema = MODELS[name].model_json_schema(mode="serialization")
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps({"$schema": dialect, **schema}, indent=2) + "\n"


if __name__ == "__main__":
    SCHEMAS.mkdir(exist_ok=True)
    for name in MODELS:
        target = SCHEMAS / name.replace(".json", ".schema.json")
        target.write_text(schema_text(name))
        print(target)
