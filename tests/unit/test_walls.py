"""The walls of the house: what imports what, lazy imports and those for typing included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "eagle3_export"

# Modules that everybody may import, and what they import themselves.
LEAVES: dict[str, set[str]] = {
    "compatibility.findings": set(),
    "compatibility.text_rules": {"compatibility.findings"},
    "errors": {"compatibility.findings"},
    "_version": set(),
}

# Each room imports rooms after it, and leaves. Files at the top level count as rooms.
ORDER = [
    # Ways in.
    "__main__",
    "cli",
    "train",
    "callback",
    "estimate",
    "training",
    "watch",
    "convert",
    "verify",
    "verify_report",
    "report",
    "measure",
    "launch",
    "dashboards",
    "numeric",
    "serving",
    # The way of one export, its last step first: nothing imports a step that comes after it.
    "export",
    "late_numbers",
    "output_directory",
    "description",
    "locate",
    "run_identity",
    "published",
    "config",
    "compatibility",
    "sglang",
    "speculators_format",
    "documents",
    "estimates",
    "storage",
    "ports",
]


def module_name(path: Path) -> str:
    """`storage/copy.py` is `storage.copy`; the package itself is the empty name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported_by(module: str) -> Iterator[str]:
    """Yields what a module imports of this package, wherever in the file that stands."""
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if _inside(name) in FILES else f"{node.module}" for name in whole]
        for name in names:
            if name.partition(".")[0] == PACKAGE.name and _inside(name) != module:
                yield _inside(name)


def _inside(name: str) -> str:
    return name.removeprefix(PACKAGE.name).removeprefix(".")


IMPORTS = {module: set(imported_by(module)) for module in FILES}


def test_no_circle_of_imports() -> None:
    """`graphlib` raises CycleError and names the circle."""
    assert set(TopologicalSorter(IMPORTS).static_order()) == set(FILES)


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaves_import_nothing(leaf: str) -> None:
    assert IMPORTS[leaf] <= LEAVES[leaf]


def room(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("module", [module for module in FILES if module])
def test_imports_go_down(module: str) -> None:
    assert room(module) in ORDER or module in LEAVES, f"a new room: give {module} its place in ORDER"
    if module in LEAVES:
        return
    upwards = [
        found
        for found in IMPORTS[module] - set(LEAVES)
        if room(found) != room(module) and ORDER.index(room(found)) < ORDER.index(room(module))
    ]
    assert upwards == []


def test_every_room_is_there() -> None:
    assert {room(module) for module in FILES if module} - set(ORDER) == {"errors", "_version"}
    assert set(ORDER) <= {room(module) for module in FILES}
