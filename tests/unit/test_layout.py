"""How the tests are laid out: helpers are in `tests/support`, tests are in test modules, and neither in the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MODULES = sorted(path.relative_to(TESTS.parent).as_posix() for path in TESTS.rglob("*.py"))


def imported(module: str) -> Iterator[str]:
    """Every module that this one imports by its full name, wherever the import stands."""
    for node in ast.walk(ast.parse((TESTS.parent / module).read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} line {node.lineno}: relative import"
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("module", MODULES)
def test_no_test_module_is_imported(module: str) -> None:
    assert [name for name in imported(module) if name.startswith(("tests.unit", "tests.system"))] == []


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("tests/support/")])
def test_no_test_hides_among_the_helpers(module: str) -> None:
    assert not Path(module).name.startswith("test_")
    tree = ast.parse((TESTS.parent / module).read_text())
    defined = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert [name for name in defined if name.startswith(("test_", "Test"))] == []


def test_unit_tests_mirror_the_package() -> None:
    """Every directory of unit tests is named after a package of ours."""
    package = TESTS.parent / "eagle3_export"
    folders = {path.parent.relative_to(TESTS / "unit") for path in (TESTS / "unit").rglob("test_*.py")}
    assert [folder for folder in folders if not (package / folder).is_dir()] == []
