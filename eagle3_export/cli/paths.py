"""Paths on the command line: `~` is expanded also where the shell does not, as in `--source=~/run/3`."""

from __future__ import annotations

import os
import re
from typing import Any

from typer.core import TyperGroup


class PathGroup(TyperGroup):
    """The commands, with `~` expanded at the start of every argument and of every `--option=value`.

    Those of `train` are speculators' and stay as they are.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] != ["train"]:
            args = [home_expanded(argument) for argument in args]
        return super().parse_args(ctx, args)


def home_expanded(argument: str) -> str:
    """Returns the argument with the home directory in the place of `~`; a user that does not exist stays."""
    match = re.fullmatch(r"(--[a-z-]+=)?(~.*)", argument, flags=re.DOTALL)
    return (match[1] or "") + os.path.expanduser(match[2]) if match else argument  # noqa: PTH111
