"""Paths on the command line: `~` is expanded also where the shell does not, as in `--source=~/run/3`, and an empty
one is refused, which Python takes for the working directory."""

from __future__ import annotations

import os
import re
from typing import Any

import typer
from typer.core import TyperGroup

PATH_OPTIONS = (
    "--source", "--stop-file", "--prompts", "--data", "--export", "--target", "--compare", "--csv", "--html", "--png",
)  # fmt: skip

FLAGS = ("--all", "--json", "--numeric", "--once", "--overwrite")  # options without a value


class PathGroup(TyperGroup):
    """The commands, with `~` expanded at the start of every argument and of every `--option=value`.

    Those of `train` are speculators' and stay as they are.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] != ["train"]:
            self._refuse_empty_paths(args)
            args = [home_expanded(argument) for argument in args]
        return super().parse_args(ctx, args)

    @staticmethod
    def _refuse_empty_paths(args: list[str]) -> None:
        for before, argument in zip(["", *args], args, strict=False):
            option, value = (before, argument) if before in PATH_OPTIONS else (argument.removesuffix("="), "")
            empty_option = option in PATH_OPTIONS and not value and option != argument
            if empty_option or (not argument and (before in FLAGS or not before.startswith("--"))):
                raise typer.BadParameter(
                    f"{option if empty_option else 'An argument'} is empty; a shell variable that is"
                    " not set gives that."
                )


def home_expanded(argument: str) -> str:
    """Returns the argument with the home directory in the place of `~`; a user that does not exist stays."""
    match = re.fullmatch(r"(--[a-z-]+=)?(~.*)", argument, flags=re.DOTALL)
    return (match[1] or "") + os.path.expanduser(match[2]) if match else argument  # noqa: PTH111
