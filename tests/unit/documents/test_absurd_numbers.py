"""Documents that somebody wrote by hand, with numbers that nothing could be drawn or decided by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from eagle3_export.documents.json_files import read_metadata
from eagle3_export.errors import ExportInvalidError
from eagle3_export.estimates.per_document import DocumentCounts
from tests.support.measuring import make_export


@pytest.mark.parametrize("length", [1e308, -1.0])
def test_a_length_that_no_server_could_reach_is_refused_by_name(tmp_path: Path, length: float) -> None:
    directory = make_export(tmp_path / "out", "0")
    content = json.loads((directory / "metadata.json").read_text())
    content["acceptance"]["per_depth"][0]["acceptance_length"] = length
    (directory / "metadata.json").write_text(json.dumps(content))
    with pytest.raises(ExportInvalidError, match=r"per_depth\.0\.acceptance_length"):
        read_metadata(directory)


@pytest.mark.parametrize("count", [10**400, -1])
def test_a_count_that_no_replay_could_make_is_refused_by_name(count: int) -> None:
    counts = {"num_steps": 3, "digest": "sha256:0", "verify_steps": [count], "accepted": [1]}
    with pytest.raises(ValidationError, match="verify_steps"):
        TypeAdapter(DocumentCounts).validate_python(counts)
