"""Every Python snippet in the README and the docs runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import warm

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def snippets() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), 1):
            found.append((f"{page.relative_to(ROOT)}#{number}", code))
    return found


@pytest.mark.parametrize(("name", "code"), [pytest.param(*s, id=s[0]) for s in snippets()])
def test_the_snippet_runs(name: str, code: str, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(code)
    done = warm.run(script, check=False, cwd=tmp_path)
    assert done.returncode == 0, f"{name}\n{done.stderr}"


def test_every_link_inside_the_project_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
