"""The SGLang plugin: registers the classes of `models` with SGLang's model registry."""

from __future__ import annotations

import logging
import os
import sys

PACKAGE = "eagle3_export.serving"
EXTERNAL_PACKAGE_VARIABLE = "SGLANG_EXTERNAL_MODEL_PACKAGE"
_REGISTRY = "sglang.srt.models.registry"

logger = logging.getLogger(__name__)


def activate() -> None:
    """Entry point `sglang.srt.plugins`: SGLang calls it in each of its processes, before it loads a model.

    Importing SGLang's registry imports all of its models, which takes seconds, and most of its processes
    never need one. So where the registry is not imported yet, and nobody else uses the variable, name
    this package in `SGLANG_EXTERNAL_MODEL_PACKAGE`: the registry reads it when it is first imported
    (sglang 0.5.12 to 0.5.23, models/registry.py). Else register at once.
    """
    wanted = os.environ.get(EXTERNAL_PACKAGE_VARIABLE)
    if _REGISTRY not in sys.modules and wanted in (None, "", PACKAGE):
        os.environ[EXTERNAL_PACKAGE_VARIABLE] = PACKAGE
        return
    register()


def register() -> None:
    """Registers the classes now; SGLang's `LlamaForCausalLMEagle3` gives way to its subclass of that name."""
    from sglang.srt.models.registry import ModelRegistry

    from eagle3_export.serving.models import EntryClass

    # SGLang 0.5.23 may import its own models only later (`_load_default_models`): what stands in this dictionary by
    # then wins over them, so our class of the same name stays.
    ModelRegistry.models.update({model.__name__: model for model in EntryClass})
    logger.info("registered %s", ", ".join(model.__name__ for model in EntryClass))
