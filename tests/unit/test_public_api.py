"""What users import: names, where they come from, what is documented, and that the examples run."""

from __future__ import annotations

import doctest
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import eagle3_export
from eagle3_export import errors
from eagle3_export.export import export_checkpoint
from tests.support.drafts import write_checkpoint

NAMES = [name for name in eagle3_export.__all__ if name != "__version__"]
SUBCLASSES = [
    name
    for name, thing in inspect.getmembers(errors, inspect.isclass)
    if issubclass(thing, errors.Eagle3ExportError) and thing is not errors.Eagle3ExportError
]
# Need a trainer.
NOT_RUN = ["CheckpointEstimate", "SGLangExportCallback", "estimate_checkpoint"]
# Their docstrings stand in the JSON Schema; the functions that return them have the examples.
DOCUMENTS = ["AcceptanceEstimate", "ExportMetadata"]


def test_every_error_can_be_imported_from_the_top() -> None:
    assert {*SUBCLASSES, "Eagle3ExportError"} <= set(NAMES)


def test_every_name_is_there_and_listed() -> None:
    assert set(eagle3_export.__all__) <= set(dir(eagle3_export))
    assert eagle3_export.__all__ == sorted(eagle3_export.__all__)
    for name in NAMES:
        assert getattr(eagle3_export, name).__name__ == name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = eagle3_export.no_such_name


def test_importing_the_package_imports_nothing_else() -> None:
    """SGLang's processes load it for the plugin alone; the other names come when they are used."""
    program = (
        "import sys, eagle3_export; dir(eagle3_export);"
        "print(sorted(name for name in sys.modules if name.startswith('eagle3_export')), 'pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['eagle3_export', 'eagle3_export._version'] False\n"


def test_types_are_seen_by_those_who_import_it() -> None:
    assert (Path(eagle3_export.__file__).parent / "py.typed").is_file()


@pytest.fixture
def finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The places that the examples name: a checkpoint of epoch 3 and its export, in a working directory of its own."""
    metrics = {"full_acc_0": 0.8, "full_acc_1": 0.6, "full_acc_2": 0.5}
    state = {"epoch": 3, "global_step": 400, "local_step": 0}
    checkpoint = write_checkpoint(
        tmp_path / "output" / "checkpoints" / "3", training_state=state, val_metrics=metrics
    )
    sglang = tmp_path / "output" / "sglang"
    export_checkpoint(checkpoint, sglang / "3")
    for pointer in ("latest", "best"):
        (sglang / pointer).symlink_to("3")
    (tmp_path / "run.yaml").write_text(json.dumps({"train": {}, "sglang_export": {"keep_last": 5}}))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*SUBCLASSES, *NOT_RUN, *DOCUMENTS)])
@pytest.mark.usefixtures("finished_run")
def test_the_example_runs(name: str) -> None:
    documented = inspect.getdoc(getattr(eagle3_export, name)) or ""
    known = {other: getattr(eagle3_export, other) for other in NAMES}
    example = doctest.DocTestParser().get_doctest(documented, known, name, None, None)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("name", NOT_RUN)
def test_what_cannot_run_here_has_an_example_too(name: str) -> None:
    assert "Example:" in (inspect.getdoc(getattr(eagle3_export, name)) or "")


FUNCTIONS = [name for name in NAMES if inspect.isfunction(getattr(eagle3_export, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_document_every_argument_and_what_they_raise(name: str) -> None:
    function = getattr(eagle3_export, name)
    documented = inspect.getdoc(function) or ""
    for argument in inspect.signature(function).parameters:
        assert f"\n    {argument}: " in documented
    assert "\nRaises:\n" in documented
