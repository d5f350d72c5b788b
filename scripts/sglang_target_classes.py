"""What the target classes of one SGLang release capture for EAGLE-3, found by running their own code.

`set_eagle3_layers_to_capture` of the real wheel is compiled out of its source and executed on stand-ins for the
model; the loop that reads its result is read off the syntax tree. SGLang itself is never imported, so any release
can be looked at without its dependencies.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import re
import typing
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang_capture_loops import MARK, ClassSource, read_loop

from eagle3_export.sglang.aux_layers import BEHAVIOURS

MODELS = "sglang/srt/models/"
SETTER = "set_eagle3_layers_to_capture"
_LAST_RANK = SimpleNamespace(is_last_rank=True, is_first_rank=True)


class Wheel:
    """One release's wheel, read in place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = zipfile.ZipFile(path)
        self.names = self._archive.namelist()

    def read(self, name: str) -> str:
        return self._archive.read(name).decode("utf-8-sig")

    @cached_property
    def metadata(self) -> str:
        return self.read(next(name for name in self.names if name.endswith(".dist-info/METADATA")))


@dataclass(frozen=True)
class Capture:
    """What one target class does with configured ids.

    Attributes:
        layers: the layers whose input is captured, in capture order; the number of layers stands for the final
            hidden state. None: the class raises, or captures nothing at all.
    """

    layers: tuple[int, ...] | None


class TargetClasses:
    """The model classes of one wheel."""

    def __init__(self, wheel: Wheel) -> None:
        self._trees: dict[str, ast.Module] = {}
        self._types: dict[tuple[str, str], type] = {}
        self._inners: dict[tuple[type, str], type | None] = {}
        for name in wheel.names:
            if name.startswith(MODELS) and name.endswith(".py"):
                self._trees[name] = ast.parse(wheel.read(name))

    @cached_property
    def architectures(self) -> list[str]:
        """Names of the registered classes (`EntryClass`) that have the setter, sorted."""
        found = set()
        for file, tree in self._trees.items():
            for name in _entry_classes(tree):
                kind = self._type(file, name)
                if kind is not None and hasattr(kind, SETTER):
                    found.add(name)
        return sorted(found)

    @cached_property
    def registered(self) -> dict[str, str]:
        """Every registered class and its file."""
        return {name: file for file, tree in self._trees.items() for name in _entry_classes(tree)}

    def capture(self, architecture: str, ids: Sequence[int] | None, num_layers: int) -> Capture:
        """Runs the class's own setter with `ids` as configured for a target of `num_layers` layers."""
        kind = self._type(self.registered[architecture], architecture)
        assert kind is not None
        target = self._stand_in(kind, num_layers, depth=0)
        try:
            getattr(target, SETTER)(list(ids) if ids is not None else None)
        except (IndexError, AttributeError, TypeError, ValueError):
            return Capture(None)
        return Capture(_captured(_reachable(target), num_layers))

    def _stand_in(self, kind: type, num_layers: int, depth: int) -> Any:
        instance = kind()
        config = SimpleNamespace(num_hidden_layers=num_layers, num_layers=num_layers)
        config.text_config = config
        instance.config = config
        instance.pp_group = _LAST_RANK
        instance.layers = [SimpleNamespace() for _ in range(num_layers)]
        instance.layers_to_capture = []
        if depth < 3:
            for attribute in ("model", "language_model"):
                if (kind, attribute) not in self._inners:
                    self._inners[kind, attribute] = self._inner(kind, attribute)
                inner = self._inners[kind, attribute]
                if inner is not None:
                    setattr(instance, attribute, self._stand_in(inner, num_layers, depth + 1))
        return instance

    def _inner(self, kind: type, attribute: str) -> type | None:
        """The class that `kind.__init__` puts into `self.<attribute>`."""
        for base in kind.__mro__:
            source: ClassSource | None = base.__dict__.get("source")
            if source is None:
                continue
            for name in _assigned_classes(source.node, attribute):
                found = self._type(source.file, name) or self._made_by(kind, name)
                if found is not None:
                    return found
        return None

    def _made_by(self, kind: type, method: str) -> type | None:
        """The class that the nearest method or class attribute `method` of `kind` stands for."""
        for base in kind.__mro__:
            source: ClassSource | None = base.__dict__.get("source")
            for node in source.node.body if source is not None else ():
                if source is None:
                    continue
                if isinstance(node, ast.FunctionDef) and node.name == method:
                    returned = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
                    calls = [v.func for v in returned if isinstance(v, ast.Call)]
                    names = [f.id for f in calls if isinstance(f, ast.Name)]
                    return self._type(source.file, names[0]) if names else None
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == method:
                    module, _, name = ast.unparse(node.value).rpartition(".")
                    return self._type(f"{MODELS}{module}.py" if module else source.file, name)
        return None

    def _type(self, file: str, name: str) -> type | None:
        """A bare class with the real one's bases and setters; None for classes from elsewhere."""
        source = self._resolve(file, name)
        if source is None:
            return None
        key = (source.file, source.node.name)
        if key not in self._types:
            bases = []
            for base in source.node.bases:
                if isinstance(base, ast.Name) and (source.file, base.id) != key:
                    found = self._type(source.file, base.id)
                elif isinstance(base, ast.Name):  # shadows the class it imports, as llama_eagle3.py does
                    found = self._imported(source.file, base.id)
                else:
                    found = None
                bases += [found] if found is not None else []
            with contextlib.suppress(TypeError):  # an inconsistent order of stand-in bases
                self._types[key] = type(source.node.name, tuple(bases), _namespace(source))
            self._types.setdefault(key, type(source.node.name, tuple(bases[:1]), _namespace(source)))
        return self._types[key]

    def _imported(self, file: str, name: str) -> type | None:
        origin = _imports(self._trees[file]).get(name)
        return self._type(*origin) if origin is not None and origin[0] in self._trees else None

    def _resolve(self, file: str, name: str) -> ClassSource | None:
        tree = self._trees.get(file)
        if tree is None:
            return None
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return ClassSource(file, node)
        origin = _imports(tree).get(name)
        return self._resolve(*origin) if origin is not None else None


def _entry_classes(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "EntryClass" for target in targets):
                value = node.value
                items = value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]
                return [item.id for item in items if isinstance(item, ast.Name)]
    return []


@functools.cache
def _imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.srt.models."):
            file = (node.module or "").replace(".", "/") + ".py"
            found.update({(alias.asname or alias.name): (file, alias.name) for alias in node.names})
    return found


def _assigned_classes(node: ast.ClassDef, attribute: str) -> Iterator[str]:
    """Names called in `self.<attribute> = Name(...)`, looking through parameters' defaults."""
    for function in node.body:
        if not isinstance(function, ast.FunctionDef) or function.name != "__init__":
            continue
        arguments = function.args.args + function.args.kwonlyargs
        values = [*function.args.defaults, *function.args.kw_defaults]
        defaults = dict(zip((a.arg for a in arguments[len(arguments) - len(values) :]), values, strict=True))
        for statement in ast.walk(function):
            if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
                continue
            for target in statement.targets:
                if isinstance(target, ast.Attribute) and target.attr == attribute:
                    called = statement.value.func
                    name = getattr(called, "id", None) or getattr(called, "attr", None)
                    default = defaults.get(name or "")
                    yield default.id if isinstance(default, ast.Name) else (name or "")


def _namespace(source: ClassSource) -> dict[str, Any]:
    """The real setter, compiled, and the source for everything else."""
    namespace: dict[str, Any] = {"source": source}
    for function in source.node.body:
        if isinstance(function, ast.FunctionDef) and function.name == SETTER:
            bare = ast.parse(ast.unparse(function)).body[0]
            assert isinstance(bare, ast.FunctionDef)
            bare.decorator_list = []
            environment = {
                **vars(typing),
                "get_pp_group": lambda: _LAST_RANK,
                "get_parallel": lambda: SimpleNamespace(pp_group=_LAST_RANK),
            }
            code = compile(ast.fix_missing_locations(ast.Module([bare], [])), source.file, "exec")
            exec(code, environment)
            namespace[SETTER] = environment[SETTER]
    return namespace


def _reachable(target: Any) -> list[Any]:
    found = [target]
    for attribute in ("model", "language_model"):
        inner = getattr(target, attribute, None)
        found += _reachable(inner) if inner is not None else []
    return found


def _captured(objects: list[Any], num_layers: int) -> tuple[int, ...] | None:
    for model in objects:
        loop = read_loop(type(model))
        if loop is None or not model.layers_to_capture:
            continue
        asked = set(model.layers_to_capture)
        if loop.by_mark:
            asked = {i for i, layer in enumerate(model.layers) if getattr(layer, MARK, False)} | (
                asked & {num_layers}
            )
        if any(i < 0 for i in model.layers_to_capture) or (0 in asked and not loop.embedding):
            return None
        allowed = set(range(num_layers)) | ({num_layers} if loop.final else set())
        return tuple(sorted(asked & allowed))
    return None


# Draft-side classes; they inherit the setter from a target class but are never targets.
_DRAFTS = re.compile(r"NextN$|MTP$|Eagle3?$|Assistant|Embedding")
_PROBES: tuple[tuple[tuple[int, ...] | None, int], ...] = (
    *((ids, 4) for size in (1, 2, 3) for ids in itertools.permutations(range(-1, 5), size)),
    *(
        (ids, 20)
        for ids in ((1, 9, 16), (2, 9, 16), (9, 1, 16), (0, 1, 16), (5, 9, 19), (5, 9, 20), (1, 9, 20))
    ),
    *((None, n) for n in (8, 20, 61)),
)


def derive_behaviour(classes: TargetClasses, architecture: str) -> str | None:
    """The name in `BEHAVIOURS` of what this class does with every probe; None where it captures nothing.

    Raises:
        ValueError: no known behaviour fits, so `aux_layers.py` needs a new one.
    """
    seen = []
    for ids, n in _PROBES:
        layers = classes.capture(architecture, ids, n).layers
        seen.append((ids, n, layers if layers is not None and len(layers) == len(ids or (0, 0, 0)) else None))
    if all(layers is None for ids, _, layers in seen if ids is None or len(ids) > 1):
        return None
    for name, candidate in BEHAVIOURS.items():
        if all(candidate.captured(ids, n) == layers for ids, n, layers in seen):
            return name
    raise ValueError(f"{architecture}: no behaviour in eagle3_export.sglang.aux_layers fits")


def derive_target_classes(classes: TargetClasses) -> dict[str, str]:
    """Behaviour of every target class of a release that captures for EAGLE-3."""
    names = [name for name in classes.architectures if not _DRAFTS.search(name)]
    derived = {name: derive_behaviour(classes, name) for name in names}
    return {name: found for name, found in derived.items() if found is not None}
