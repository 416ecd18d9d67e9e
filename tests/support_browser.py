"""Load a page in a real browser, headless and without a network, and say what became of it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "no browser is installed: make browser installs Debian's chromium"

#: Runs before all else of the page: what a script or a missing file makes of it is noted, and nothing waits for a user.
_NOTE = """<script>
window.noted = [];
window.alert = text => noted.push("alert: " + text);
addEventListener("error", e => noted.push(e.message || "not loaded: " + e.target.outerHTML), true);
addEventListener("load", () => setTimeout(() => {
  const tags = [...document.querySelectorAll("*")].map(one => one.localName);
  const images = [...document.images].map(one => [one.naturalWidth, one.naturalHeight, one.clientWidth]);
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = JSON.stringify({noted, images, tags, wide: document.documentElement.scrollWidth});
  document.body.append(found);
}, 100));
</script>"""


@dataclass(frozen=True, slots=True)
class Look:
    """A page as a browser shows it."""

    errors: tuple[str, ...]  # of the console, of scripts, and what could not be loaded
    images: tuple[tuple[int, int, int], ...]  # width and height of their own, and the width on the page
    elements: tuple[str, ...]


def look(page: Path, folder: Path, *, picture: Path | None = None) -> Look:
    """Load a page. `folder` is for the browser's own files; `picture` gets a screenshot."""
    assert PROGRAM is not None
    text = page.read_text(encoding="utf-8")
    assert "<head>" in text
    noting = folder / f"{page.stem}-noting.html"
    noting.write_text(text.replace("<head>", f"<head>{_NOTE}", 1), encoding="utf-8")
    words = [
        PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-component-update", "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--window-size=1200,1600",
        "--virtual-time-budget=5000",
    ]  # fmt: skip
    done = subprocess.run(
        [*words, "--dump-dom", noting.as_uri()], capture_output=True, text=True, check=True, timeout=180
    )
    if picture is not None:
        subprocess.run([*words, f"--screenshot={picture}", page.as_uri()], capture_output=True, check=True, timeout=180)
    match = re.search('<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match is not None, done.stderr[-2000:]
    found = json.loads(html.unescape(match[1]))
    console = re.findall(r":CONSOLE[^\]]*\] (.*)", done.stderr)
    return Look(
        (*found["noted"], *console), tuple(tuple(size) for size in found["images"]), tuple(sorted(found["tags"]))
    )
