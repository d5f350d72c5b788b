"""What runs inside SGLang's processes. Imports nothing else of this package.

Two ways in, both without configuration of ours:

- installed beside SGLang (0.5.12 on), SGLang finds `plugin:activate` by its entry point in group
  `sglang.srt.plugins`;
- `SGLANG_EXTERNAL_MODEL_PACKAGE=eagle3_export.serving` makes SGLang's model registry import this package
  and register every `EntryClass` in its modules.
"""
