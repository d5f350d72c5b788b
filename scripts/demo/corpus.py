"""Real text that every Python brings along: the language reference and the standard library's docstrings."""

from __future__ import annotations

import ast
import importlib.util
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
)
_MINIMUM_DOCUMENT = 400  # characters
_MINIMUM_CORPUS = 500_000


@dataclass(frozen=True)
class Corpus:
    """Documents for training the verifier, and others that no training sees."""

    training: list[str]
    held_out: list[str]


@cache
def read_corpus(*, held_out_share: float = 0.12, seed: int = 0) -> Corpus:
    """The documentation inside this Python's standard library, split by document.

    Raises:
        RuntimeError: this Python ships too little of its library's source to learn from.
    """
    # Some modules repeat the text of another.
    documents = list(dict.fromkeys([*_language_reference(), *_docstrings()]))
    characters = sum(map(len, documents))
    if characters < _MINIMUM_CORPUS:
        raise RuntimeError(
            f"This Python's standard library holds only {characters} characters of documentation; the demo "
            f"needs {_MINIMUM_CORPUS}. Use a full installation of Python (not a stripped one)."
        )
    random.Random(seed).shuffle(documents)
    held_out, size = [], 0
    while size < held_out_share * characters:
        held_out.append(documents.pop())
        size += len(held_out[-1])
    return Corpus(training=documents, held_out=held_out)


def _language_reference() -> Iterator[str]:
    """The topics behind `help("yield")` and the like, one document each."""
    if importlib.util.find_spec("pydoc_data.topics") is None:
        return
    from pydoc_data import topics

    yield from (topics.topics[name] for name in sorted(topics.topics))


def _docstrings() -> Iterator[str]:
    """The docstrings of the standard library, one document for each module. Sources are parsed, never run."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for source in sorted(library.rglob("*.py")):
        if _SKIPPED_FOLDERS.intersection(source.relative_to(library).parts):
            continue
        try:
            tree = ast.parse(source.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
        document = "\n\n".join(text for text in texts if text)
        if len(document) >= _MINIMUM_DOCUMENT:
            yield document


def train_tokenizer(documents: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer learnt from `documents`, as transformers saves and loads it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "</s>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", mask_token="<mask>"
    )


def token_rows(tokenizer: PreTrainedTokenizerFast, documents: list[str], length: int) -> list[list[int]]:
    """Every full row of `length` token ids in `documents`; a row never spans two documents."""
    rows = []
    for encoding in tokenizer.backend_tokenizer.encode_batch(documents, add_special_tokens=False):
        ids = encoding.ids
        rows += [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)]
    return rows
