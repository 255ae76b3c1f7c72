"""docs/walkthrough.md shows what the compiler prints."""

import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def test_the_page_shows_what_is_printed(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import walkthrough_page

    text = walkthrough_page.PAGE.read_text()
    names = [match[2] for match in walkthrough_page.BLOCK.finditer(text)]
    found = walkthrough_page.stages()
    assert sorted(names) == sorted(found)
    for match in walkthrough_page.BLOCK.finditer(text):
        if match[2] in walkthrough_page.BYTECODE and sys.version_info[:2] != (3, 11):
            continue
        assert match[3] == found[match[2]], "python tools/walkthrough_page.py fills it in"
