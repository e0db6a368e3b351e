"""The text of the report page: the data is in it, and nothing else gets in or out."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from meshax.plan.explain.html import render
from plan.explain.written_reports import EMPTY, HOSTILE, report

PAGE = Path(__file__).parents[3] / "src" / "meshax" / "plan" / "explain" / "page"


def data_in(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_the_page_holds_the_data():
    assert data_in(render(report())) == report()


def test_the_page_refers_to_nothing_outside():
    page = render(EMPTY)
    for reference in ("http://", "https://", "src=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("):
        assert reference not in page


def test_every_file_of_the_page_is_in_it():
    page = render(EMPTY)
    for path in PAGE.iterdir():
        if path.suffix in (".js", ".css"):
            assert path.read_text(encoding="utf-8").strip() in page, path.name


def test_the_policy_allows_this_style_and_this_script_only():
    page = render(report())
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    for directive, element in (("style-src", "style"), ("script-src", "script")):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


def test_hostile_text_stays_data():
    data = report(program=HOSTILE, layout=HOSTILE, sources={"step.py": {"first": 1, "lines": [HOSTILE]}})
    page = render(data)
    assert "<b>" not in page
    assert page.count("</script>") == 2
    assert data_in(page) == data


def test_slots_in_the_data_are_not_filled():
    assert data_in(render(report(program="{{style}}")))["program"] == "{{style}}"


def test_what_json_cannot_say_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        render(report(wire_bytes=float("nan")))


def test_files_of_the_page_are_short():
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 400 for path in PAGE.iterdir())
