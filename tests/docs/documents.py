"""The documents and the code blocks in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from toolkit.values.resources import ROOT

#: What a fenced block may be. Each language but `text`, which is for output and pictures, has a test.
LANGUAGES = ("sh", "toml", "sql", "cron", "ini", "yaml", "jinja", "python", "dockerfile", "text")
_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_GENERATED = "<!-- Generated"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a document."""

    page: str
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.number}"


def documents() -> list[Path]:
    """List README, the other documents at the top, and every page of the site."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def name(page: Path) -> str:
    """Give a document's path from the top of the checkout."""
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """Give a document's text without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def blocks(*languages: str) -> list[Block]:
    """List the fenced blocks of all documents, of some languages or of all."""
    found = []
    for page in documents():
        for number, match in enumerate(_FENCE.finditer(page.read_text(encoding="utf-8")), 1):
            if not languages or match[1] in languages:
                found.append(Block(name(page), number, match[1], match[2]))
    return found


def command_lines(block: Block) -> list[list[str]]:
    """Split the lines of a shell block into words, without comments."""
    return [words for line in block.text.splitlines() if (words := shlex.split(line, comments=True))]
