"""One manner of writing in every docstring and comment of the package."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "eagle3_export"
FILES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def parsed(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def prose(name: str) -> Iterator[str]:
    """Yields the docstrings and the comments of a file, and the strings that document attributes."""
    text = FILES[name].read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(parsed(name)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value


def section(docstring: str, title: str) -> list[str]:
    """Returns the names that a section such as `Args:` explains."""
    found = re.search(rf"^{title}:\n((?:[ \t]+.*\n?|\n)*)", docstring, flags=re.MULTILINE)
    return re.findall(r"^    \*{0,2}(\w+):", found[1], flags=re.MULTILINE) if found else []


def public_functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, list[str]]]:
    """Yields the public functions and methods of a file, each with the names of its arguments."""
    owners: list[ast.Module | ast.ClassDef] = [tree]
    owners += [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for owner in owners:
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                given = node.args
                every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
                names = [argument.arg for argument in every if argument is not None]
                yield node, [name for name in names if name not in ("self", "cls")]


@pytest.mark.parametrize("name", FILES)
def test_code_is_quoted_by_single_backticks(name: str) -> None:
    assert [text for text in prose(name) if re.search(r"(?<!`)``(?!`)", text)] == []


@pytest.mark.parametrize("name", FILES)
def test_arguments_are_documented_all_or_none(name: str) -> None:
    for function, names in public_functions(parsed(name)):
        explained = section(ast.get_docstring(function) or "", "Args")
        assert explained in ([], names), f"{name}: {function.name}"


@pytest.mark.parametrize("name", FILES)
def test_classes_document_attributes(name: str) -> None:
    """Callers read attributes; arguments of the same names need no second explanation."""
    for node in ast.walk(parsed(name)):
        if isinstance(node, ast.ClassDef):
            assert section(ast.get_docstring(node) or "", "Args") == [], f"{name}: {node.name}"


@pytest.mark.parametrize("name", FILES)
def test_every_public_thing_is_documented(name: str) -> None:
    tree = parsed(name)
    assert ast.get_docstring(tree) or name.endswith("__init__.py"), name
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{name}: {node.name}"
