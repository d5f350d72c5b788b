"""Paths on the command line: `~` is expanded also where the shell does not, as in `--source=~/run/3`, and an empty
one is refused, which Python takes for the working directory."""

from __future__ import annotations

import os
import re
from typing import Any

import typer
from typer.core import TyperGroup


class PathGroup(TyperGroup):
    """The commands, with `~` expanded at the start of every argument and of every `--option=value`.

    Those of `train` are speculators' and stay as they are.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] != ["train"]:
            for before, argument in zip([None, *args], args, strict=False):
                if empty := re.fullmatch(r"(--[a-z-]+)=|", argument):
                    option = empty[1] or (before if before is not None and before.startswith("--") else None)
                    raise typer.BadParameter(
                        f"{option or 'An argument'} is empty; a shell variable that is not set gives that.",
                        ctx,
                    )
            args = [home_expanded(argument) for argument in args]
        return super().parse_args(ctx, args)


def home_expanded(argument: str) -> str:
    """Returns the argument with the home directory in the place of `~`; a user that does not exist stays."""
    match = re.fullmatch(r"(--[a-z-]+=)?(~.*)", argument, flags=re.DOTALL)
    return (match[1] or "") + os.path.expanduser(match[2]) if match else argument  # noqa: PTH111
