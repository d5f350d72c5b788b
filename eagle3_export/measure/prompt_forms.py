"""The forms in which people keep prompts, and what each of them becomes in a request."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

# ShareGPT's words for who speaks, and OpenAI's.
_ROLES = MappingProxyType(
    {
        **dict.fromkeys(("human", "user"), "user"),
        **dict.fromkeys(("gpt", "chatgpt", "assistant", "model", "bot"), "assistant"),
        **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
        "system": "system",
    }
)
# What stands beside the messages and is read by the target's chat template.
CHAT_OPTIONS = ("tools", "tool_choice", "documents", "chat_template_kwargs")
_LARGEST_ID = 1 << 31


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, in exactly one of three forms.

    Attributes:
        text: sent as it stands, without a chat template.
        messages: OpenAI messages, sent as they are; the server applies its chat template.
        input_ids: token ids of the target.
        chat_options: keys of a chat request that stood beside the messages, such as `tools`.
    """

    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    input_ids: tuple[int, ...] | None = None
    chat_options: Mapping[str, Any] | None = None


def parse_prompt(row: Any) -> Prompt | str:
    """Reads one entry of a prompts file or data set.

    Args:
        row: a string; a list of messages or token ids; or an object with one of the keys in `PROMPT_KEYS`, or with a
            `body` that has one, as in batch files.

    Returns:
        The prompt, or in words why the entry is none.
    """
    if isinstance(row, Mapping) and isinstance(row.get("body"), Mapping):
        row = row["body"]
    if not isinstance(row, Mapping):
        return _any_form(row)
    reasons = []
    for key, read in _READERS.items():
        if row.get(key) is None:
            continue
        found = read(row[key])
        if isinstance(found, Prompt):
            return _with_chat_options(found, row)
        reasons.append(f"{key}: {found}")
    return "; ".join(reasons) or f"it has none of the keys {', '.join(PROMPT_KEYS)}"


def _with_chat_options(prompt: Prompt, row: Mapping[str, Any]) -> Prompt | str:
    if prompt.messages is None:
        return prompt
    options = {key: row[key] for key in CHAT_OPTIONS if row.get(key) is not None}
    try:
        json.dumps([prompt.messages, options], allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return f"it cannot be sent as JSON: {error}"
    return dataclasses.replace(prompt, chat_options=options or None)


def _any_form(value: Any) -> Prompt | str:
    if not isinstance(value, list) or not value:
        return _text(value)
    if all(isinstance(turn, Mapping) for turn in value):
        return _messages(value)
    if all(isinstance(text, str) for text in value):
        return (
            _text(value[0]) if len(value) == 1 else f"it holds {len(value)} texts, and an entry is one prompt"
        )
    return _ids(value)


def _text(value: Any) -> Prompt | str:
    if not isinstance(value, str):
        return f"a text, messages or token ids were expected, not {_kind(value)}"
    return Prompt(text=value) if value.strip() else "it is empty"


def _first_turn(value: Any) -> Prompt | str:
    return _text(value[0] if isinstance(value, list) and value else value)


def _ids(value: Any) -> Prompt | str:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if not isinstance(value, list) or not value:
        return f"a list of token ids was expected, not {_kind(value)}"
    for number, token in enumerate(value, start=1):
        if type(token) is not int or not 0 <= token < _LARGEST_ID:
            return f"entry {number} of the list is no token id: {str(token)[:40]!r}"
    return Prompt(input_ids=tuple(value))


def _messages(value: Any) -> Prompt | str:
    """Messages as they are, without answers of the assistant at the end: that is what the server is to write."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return "it is a text, but not the JSON of a list of messages"
    if not isinstance(value, list) or not value:
        return f"a list of messages was expected, not {_kind(value)}"
    messages = []
    for number, turn in enumerate(value, start=1):
        message = _message(turn)
        if isinstance(message, str):
            return f"turn {number} {message}"
        messages.append(message)
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    return Prompt(messages=tuple(messages)) if messages else "only the assistant speaks"


def _message(turn: Any) -> dict[str, Any] | str:
    if not isinstance(turn, Mapping):
        return f"is {_kind(turn)}, not an object"
    if turn.get("role") is not None:
        if not isinstance(turn["role"], str) or not turn["role"]:
            return f"has {_kind(turn['role'])} as its role"
        if not isinstance(turn.get("content"), str | list | None):
            return f"has {_kind(turn['content'])} as its content"
        return dict(turn)
    speaker, said = turn.get("from"), turn.get("value")
    if not isinstance(speaker, str):
        return "has neither a role nor a from"
    if speaker not in _ROLES:
        return f"is from {speaker[:40]!r}, which is none of {', '.join(_ROLES)}"
    if not isinstance(said, str):
        return f"has {_kind(said)} as its value"
    return {"role": _ROLES[speaker], "content": said}


def _kind(value: Any) -> str:
    return "nothing" if value in (None, [], {}, "") else f"{type(value).__name__} {str(value)[:40]!r}"


_READERS: Mapping[str, Callable[[Any], Prompt | str]] = MappingProxyType(
    {
        "input_ids": _ids,
        "prompt_token_ids": _ids,
        "messages": _messages,
        "conversations": _messages,
        "conversation": _messages,
        "prompt": _any_form,
        "text": _text,
        "question": _text,
        "instruction": _text,
        "turns": _first_turn,
    }
)
PROMPT_KEYS: Sequence[str] = tuple(_READERS)
