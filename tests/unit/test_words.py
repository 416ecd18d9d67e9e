"""The source uses the words of the glossary: in docstrings, comments, messages, help and identifiers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from toolkit.values.resources import ROOT

pytestmark = pytest.mark.unit

_LISTED = [line.partition("->")[0] for line in (ROOT / "tests" / "docs" / "words.txt").read_text("utf-8").splitlines()]
#: Of the list that codespell compares with the documents, and phrases of several words, which it cannot.
REFUSED = re.compile(rf"(?i)(?<![a-z])({'|'.join(_LISTED)}|past capture|told apart|gone over to)(?![a-z])")
#: Names that users and lakes know, and that therefore stay. Each line with one of these words has one of these names.
PUBLIC = re.compile(
    r"--heal\b|heal_mb|\bheal=heal\b|\bheal\b(?= if|:)|`heal`|\"heal\"|if heal\b|heal_(?:at|lsn)|healed_(?:at|lsn|\*)"
    r"|_cdc_doubtful|cdc_doubtful|cdc\.unheard|\bhealed(?=: bool|, built| = |\))"
    r"|(?:self|report)\.healed|'nobody', 'never"
)
#: The same for tests: a word of the files in tests/postgres/lives, a field of the demo's report, a system account.
IN_TESTS = re.compile(r"\bdoubtful\b|\"healed\"|\"nobody\"|'nobody'|snapshot\.heal\b|\\nheal = 1\\n")
FOLDERS = {"toolkit": "py", "sql": "sql", "dbt_project": "sql", "notebooks": "ipynb", "tests": "py"}
FILES = [path for folder, ext in FOLDERS.items() for path in sorted((ROOT / folder).rglob(f"*.{ext}"))]
FILES.remove(Path(__file__))
FILES.append(ROOT / "dbt_cdc_toolkit.py")
FILES += [*sorted((ROOT / "dbt_project").rglob("*.yml")), *sorted((ROOT / "toolkit" / "scaffold").rglob("*.toml"))]


def _refused(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if REFUSED.search(PUBLIC.sub("", line))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_uses_the_words_of_the_glossary(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert _refused(IN_TESTS.sub("", text) if path.is_relative_to(ROOT / "tests") else text) == []


def test_a_refused_word_is_found() -> None:
    assert _refused("# Nobody reads it.") and _refused('"""Give what was told."""') and _refused("rows told apart by a")
    assert _refused("untold = 1") and _refused("_heal_all()") and _refused("def told_apart(): ...")
    assert not _refused("heal_mb: int  # `--heal` has a limit") and not _refused("rows of the session")
