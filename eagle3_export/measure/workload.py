"""What a server is asked for: prompts from a file or a data set, and how to sample."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.errors import UsageError

MAX_PROMPT_FILE_BYTES = 256 << 20
TEXT_KEYS = ("prompt", "text", "question", "instruction", "turns")
CHAT_KEYS = ("messages", "conversations", "conversation")
_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's words for OpenAI's


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, in exactly one of three forms.

    Args:
        text: sent as it stands, without a chat template.
        messages: OpenAI messages up to the last user turn; the server applies its chat template.
        input_ids: token ids of the target.
    """

    text: str | None = None
    messages: tuple[dict[str, str], ...] | None = None
    input_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts and how to answer them.

    Args:
        prompts: at least one.
        source: the file or data set they came from, for the reader of the measurement.
        max_new_tokens: per prompt; short outputs bias acceptance lengths.
        temperature: 0 for greedy.
        ignore_eos: go on to ``max_new_tokens`` whatever the model says.
        concurrency: requests in flight at a time; throughput depends on it, acceptance hardly.
    """

    prompts: Sequence[Prompt]
    source: str
    max_new_tokens: int = 256
    temperature: float = 0.0
    ignore_eos: bool = False
    concurrency: int = 1

    def sampling(self) -> dict[str, Any]:
        """The sampling parameters, under the names SGLang uses."""
        return {
            "temperature": self.temperature,
            "max_new_tokens": self.max_new_tokens,
            "ignore_eos": self.ignore_eos,
        }


def read_prompts(path: str | Path, *, limit: int | None = None) -> list[Prompt]:
    """Read prompts from a file.

    Args:
        path: ``.jsonl`` with one object per line (keys ``prompt``, ``text``, ``question``, ``instruction``,
            ``turns``, ``messages``, ``conversations`` or ``input_ids``) or with one string per line; ``.json``
            with a list of those; anything else is plain text, one prompt per line.
        limit: take the first so many.

    Raises:
        UsageError: the file cannot be read, or holds no prompts or something else than prompts.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_PROMPT_FILE_BYTES:
            raise UsageError(f"{path} has more than {MAX_PROMPT_FILE_BYTES} bytes.")
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The prompts in {path} cannot be read: {error}.") from error
    try:
        rows = _rows(path, content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no valid JSON: {error}.") from error
    return _prompts(rows, str(path), limit)


def _rows(path: Path, content: str) -> Iterable[Any]:
    lines = [line for line in content.split("\n") if line.strip()]
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in lines]
    if path.suffix == ".json":
        rows = json.loads(content)
        if not isinstance(rows, list):
            raise UsageError(f"{path} holds no list of prompts.")
        return rows
    return lines


def dataset_prompts(name: str, *, limit: int = 64) -> list[Prompt]:
    """Read prompts from a data set on the Hugging Face hub or in its local cache, first split.

    Raises:
        UsageError: ``datasets`` is not installed, the data set cannot be loaded or has no column with prompts.
    """
    try:
        import datasets
    except ImportError as error:
        raise UsageError("Reading a data set needs `pip install datasets`.") from error
    try:
        splits = datasets.load_dataset(name)
        split = next(iter(splits))
        rows = splits[split].select(range(min(limit, len(splits[split]))))
    except Exception as error:  # datasets raises what its backends raise
        raise UsageError(f"The data set {name} cannot be loaded: {error}.") from error
    return _prompts(rows, f"{name}, split {split}", limit)


def _prompts(rows: Iterable[Any], where: str, limit: int | None) -> list[Prompt]:
    prompts: list[Prompt] = []
    for number, row in enumerate(rows):
        if limit is not None and len(prompts) == limit:
            break
        prompt = _prompt(row)
        if prompt is None:
            raise UsageError(
                f"Entry {number + 1} of {where} is no prompt: {str(row)[:80]!r}.",
                remedy=f"Use a string, or an object with one of: {', '.join([*TEXT_KEYS, *CHAT_KEYS, 'input_ids'])}.",
            )
        prompts.append(prompt)
    if not prompts:
        raise UsageError(f"{where} holds no prompts.")
    return prompts


def _prompt(row: Any) -> Prompt | None:
    if isinstance(row, str):
        return Prompt(text=row) if row.strip() else None
    if not isinstance(row, Mapping):
        return None
    ids = row.get("input_ids")
    if isinstance(ids, list) and ids and all(type(token) is int and token >= 0 for token in ids):
        return Prompt(input_ids=tuple(ids))
    for key in CHAT_KEYS:
        if messages := _messages(row.get(key)):
            return Prompt(messages=messages)
    for key in TEXT_KEYS:
        text = row.get(key)
        if isinstance(text, list) and text:
            text = text[0]
        if isinstance(text, str) and text.strip():
            return Prompt(text=text)
    return None


def _messages(turns: Any) -> tuple[dict[str, str], ...] | None:
    """Turns up to the last one of the user, in OpenAI's form; None for anything else."""
    if not isinstance(turns, list):
        return None
    messages = []
    for turn in turns:
        role = turn.get("role", turn.get("from")) if isinstance(turn, Mapping) else None
        content = turn.get("content", turn.get("value")) if isinstance(turn, Mapping) else None
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        messages.append({"role": _ROLES.get(role, role), "content": content})
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    return tuple(messages) or None
