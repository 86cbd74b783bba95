"""The reference of the settings is made from the model and up to date."""

from pathlib import Path

from penstock.settings.document import render
from penstock.settings.schema import sections

DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_is_up_to_date():
    made = render()
    written = (DOCS / "settings.md").read_text()
    assert written == made, "run: python -m penstock.settings.document > docs/settings.md"


def test_every_setting_is_in_it():
    text = render()
    for section, keys in sections().items():
        assert f"[{section}]" in text
        for name in keys:
            assert f"| `{name}` |" in text
