"""How the forward pass of an SGLang model captures aux hidden states, read off its syntax tree."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

LIST, MARK = "layers_to_capture", "_is_layer_to_capture"
_COUNTERS = ("i", "layer_idx", "layer_id")
_FINAL = {"self.end_layer", "num_layers", "len(self.layers)", "self.config.num_hidden_layers"}


@dataclass(frozen=True)
class ClassSource:
    """A class definition and the file that holds it."""

    file: str
    node: ast.ClassDef


@dataclass(frozen=True)
class Loop:
    """How the loop over the layers captures.

    Attributes:
        by_mark: it looks at a mark on the layer, not at the list.
        embedding: layer 0's input can be captured (no residual exists there yet); final: the last output can.
    """

    by_mark: bool
    embedding: bool
    final: bool


@functools.cache
def read_loop(kind: type) -> Loop | None:
    """Reads the capturing loop of the nearest class that has one; None where none captures."""
    for base in kind.__mro__:
        source: ClassSource | None = base.__dict__.get("source")
        if source is None:
            continue
        functions = [f for f in source.node.body if isinstance(f, ast.FunctionDef)]
        forward = next((f for f in functions if f.name == "forward"), None)
        if forward is None:
            continue
        loops = [
            loop
            for function in functions
            if function.name.startswith("forward")
            for loop in ast.walk(function)
            if isinstance(loop, ast.For) and _mentions(loop, (LIST, MARK))
        ]
        if not loops:
            return None
        inside = {id(node) for loop in loops for node in ast.walk(loop)}
        outside = [node for function in functions for node in ast.walk(function) if id(node) not in inside]
        tested = {ast.unparse(node.left) for node in outside if _tests_list(node)}
        tests = [node.left for loop in loops for node in ast.walk(loop) if _tests_list(node)]
        by_output = {isinstance(left, ast.BinOp) for left in tests}
        if len(by_output) > 1 or any(
            ast.unparse(left).removesuffix(" + 1") not in _COUNTERS for left in tests
        ):
            raise ValueError(f"{source.file}: the loop asks for {[ast.unparse(left) for left in tests]}")
        after_the_layer = by_output == {True}  # `if i + 1 in self.layers_to_capture` behind the layer's call
        return Loop(
            by_mark=not tests,
            embedding=bool(tested & {"self.start_layer", "0"})
            if after_the_layer
            else not any(_adds_unguarded(loop) for loop in loops),
            final=after_the_layer or bool(tested & _FINAL),
        )
    return None


def _mentions(node: ast.AST, names: Sequence[str]) -> bool:
    return any(
        (isinstance(child, ast.Attribute) and child.attr in names)
        or (isinstance(child, ast.Constant) and child.value in names)
        for child in ast.walk(node)
    )


def _tests_list(node: ast.AST) -> TypeGuard[ast.Compare]:
    """`... in self.layers_to_capture`."""
    return (
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.ops[0], ast.In)
        and _mentions(node.comparators[0], (LIST,))
    )


def _adds_unguarded(loop: ast.For) -> bool:
    """Whether the loop captures `hidden_states + residual` without asking if there is a residual."""
    for node in ast.walk(loop):
        if isinstance(node, ast.If) and _mentions(node.test, (LIST,)):
            body = ast.unparse(ast.Module(node.body, []))
            if "hidden_states + residual" in body and "residual is" not in body:
                return True
    return False
