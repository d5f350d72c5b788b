"""What the ranks of `harness.start_forked` need, imported once before they are forked off."""

import speculators.train.cli  # noqa: F401
