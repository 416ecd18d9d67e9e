"""Read the commands and statements out of a remedy, as a user would paste them."""

from __future__ import annotations

import re

#: A command in backticks; a statement after `run:` up to another way, or to what is to be done besides.
_PASTED = re.compile(r"`(cdc [^`]+|kill \d+)`|\brun: (.+?)(?=, or |; or |, and |, then |$)")


#: A remedy that is a command, up to another step or what it does.
_STEP = re.compile(r"(?:^|, then )(cdc .+?)(?=, then |, which |, whose |; or |; |$)")


def stepped(remedy: str) -> list[str]:
    """Give the commands of a remedy that is no sentence: those that `status` and `check` name for a table."""
    return _STEP.findall(remedy)


def pasted(remedy: str) -> list[str]:
    """Give every command and statement of a remedy, in order."""
    return [next(filter(None, match.groups())) for match in _PASTED.finditer(remedy)]
