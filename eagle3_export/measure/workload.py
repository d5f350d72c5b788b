"""What a server is asked for: prompts from a file or a data set, and how to sample."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.errors import UsageError
from eagle3_export.measure.prompt_forms import PROMPT_KEYS, Prompt, parse_prompt

MAX_PROMPT_FILE_BYTES = 256 << 20

# Told about every entry that is no prompt, in words.
LeftOut = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts and how to answer them.

    Attributes:
        prompts: at least one.
        source: the file or data set they came from, for the reader of the measurement.
        max_new_tokens: per prompt; short outputs bias acceptance lengths.
        temperature: 0 for greedy.
        ignore_eos: go on to `max_new_tokens` whatever the model says.
        concurrency: requests in flight at a time; throughput depends on it, acceptance hardly.
    """

    prompts: Sequence[Prompt]
    source: str
    max_new_tokens: int = 256
    temperature: float = 0.0
    ignore_eos: bool = False
    concurrency: int = 1

    def digest(self) -> str:
        """Returns `sha256:…` of the prompts, whatever file they came from."""
        forms = [(p.text, p.messages, p.input_ids, p.chat_options) for p in self.prompts]
        content = json.dumps(forms, sort_keys=True, default=str)
        return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"

    def sampling(self) -> dict[str, Any]:
        """Returns the sampling parameters, under the names SGLang uses."""
        return {
            "temperature": self.temperature,
            "max_new_tokens": self.max_new_tokens,
            "ignore_eos": self.ignore_eos,
        }


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """An entry that is not even JSON, and why."""

    reason: str


def read_prompts(
    path: str | Path, *, limit: int | None = None, left_out: LeftOut | None = None
) -> list[Prompt]:
    """Reads prompts from a file.

    Args:
        path: `.jsonl` with one entry per line, `.json` with a list of entries; `prompt_forms.parse_prompt` says what
            an entry may be. Anything else is plain text, one prompt per line.
        limit: takes the first so many.
        left_out: called for each entry that is no prompt, which is then left out; without it, it is an error.

    Raises:
        UsageError: the file cannot be read, or holds no prompts or something else than prompts.
    """
    path = Path(path)
    where = readable_name(path)
    try:
        if path.stat().st_size > MAX_PROMPT_FILE_BYTES:
            raise UsageError(f"{where} has more than {MAX_PROMPT_FILE_BYTES} bytes.")
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"The prompts in {where} cannot be read: {reason}.") from error
    if path.suffix.lower() == ".json":
        try:
            rows = _load(content)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where} is no valid JSON: {error}.") from error
        if not isinstance(rows, list):
            raise UsageError(f"{where} holds no list of prompts.")
        return _collect(((f"Entry {n}", row) for n, row in enumerate(rows, start=1)), where, limit, left_out)
    lines = ((f"Line {n}", line) for n, line in enumerate(content.split("\n"), start=1) if line.strip())
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return _collect(((name, _load_line(line)) for name, line in lines), where, limit, left_out)
    return _collect(((name, line.rstrip("\r")) for name, line in lines), where, limit, left_out)


def dataset_prompts(name: str, *, limit: int = 64, left_out: LeftOut | None = None) -> list[Prompt]:
    """Reads prompts from a data set on the Hugging Face hub or in its local cache, first split.

    Args:
        name: as `datasets.load_dataset` takes it.
        limit: takes the first so many.
        left_out: as in `read_prompts`.

    Raises:
        UsageError: `datasets` is not installed, the data set cannot be loaded or has no column with prompts.
    """
    try:
        import datasets
    except ImportError as error:
        raise UsageError("Reading a data set needs `pip install datasets`.") from error
    try:
        splits = datasets.load_dataset(name)
        split = next(iter(splits))
        rows = splits[split]
        if left_out is None:
            rows = rows.select(range(min(limit, len(rows))))
        entries = ((f"Row {number}", row) for number, row in enumerate(rows, start=1))
    except Exception as error:  # datasets raises what its backends raise
        raise UsageError(f"The data set {name!r} cannot be loaded: {error}.") from error
    return _collect(entries, f"{name}, split {split}", limit, left_out)


def readable_name(name: str | Path) -> str:
    """Returns a file's name as UTF-8 can hold it; bytes that are none are written as \\x…."""
    return str(name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _load(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _load_line(line: str) -> Any:
    try:
        return _load(line)
    except (ValueError, RecursionError) as error:
        return _Unreadable(f"it is not JSON ({error})")


def _collect(
    rows: Iterable[tuple[str, Any]], where: str, limit: int | None, left_out: LeftOut | None
) -> list[Prompt]:
    prompts: list[Prompt] = []
    for name, row in rows:
        if limit is not None and len(prompts) == limit:
            break
        found = row.reason if isinstance(row, _Unreadable) else parse_prompt(row)
        if isinstance(found, Prompt):
            prompts.append(found)
        elif left_out is not None:
            left_out(f"{name} of {where} is no prompt: {found}.")
        else:
            raise UsageError(
                f"{name} of {where} is no prompt: {found}.",
                remedy=f"Use a string, or an object with one of: {', '.join(PROMPT_KEYS)}; or leave such entries out"
                " with --skip-bad-prompts.",
            )
    if not prompts:
        raise UsageError(f"{where} holds no prompts.")
    return prompts
