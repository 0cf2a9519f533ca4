"""The page of a run in a real browser: at two widths, light and dark."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.browser import open_browser
from tests.support.memory.services import MemoryPlace
from tests.views.test_report import large_manifest, put_run
from tpuctl.views.report import make_report

pytestmark = pytest.mark.slow

FAINT = """
(() => {
  const parts = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = rgb => rgb.slice(0, 3).map(value => value / 255)
    .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const found = parts(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const element of document.body.querySelectorAll('*')) {
    if (!element.checkVisibility() || element.closest('svg > defs, title')) continue;
    const own = [...element.childNodes].filter(node => node.nodeType === 3);
    const text = own.map(node => node.data.trim()).join('');
    if (!text) continue;
    const style = getComputedStyle(element);
    const pair = [light(parts(element.closest('svg') ? style.fill : style.color)), light(behind(element))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) faint.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return faint;
})()
"""
"""Texts with less contrast than WCAG 2.2 asks for (1.4.3, level AA)."""
TOO_WIDE = """
[...document.body.querySelectorAll('h1,h2,p,dd,dt,li,summary,pre,.said,.badge')]
  .filter(each => each.checkVisibility() && each.getBoundingClientRect().right > innerWidth + 1)
  .map(each => each.textContent.slice(0, 40))
"""


def test_pages_are_readable_narrow_and_wide_light_and_dark(tmp_path: Path) -> None:
    """Screenshots go to TPUCTL_SCREENSHOTS, where that is set, for people to look at."""
    place = MemoryPlace()
    services = place.machine()
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**large_manifest(), "synthetic": True}))
    pages = {"failed": put_run(services, progress=r"step (?P<step>\d+) (?P<loss>\S+)"), "large": str(file)}
    steps = [f"{step}.0 {step} 1 {9.0 / step if step < 90 else 'nan'}" for step in range(1, 99)]
    services.logs.append(
        pages["failed"], 1, 0, "metrics", "\n".join(["at step count loss", *steps, ""]).encode()
    )
    for name, source in pages.items():
        (tmp_path / f"{name}.html").write_text(make_report(services, source).html)
    place.close()
    shots = os.environ.get("TPUCTL_SCREENSHOTS")
    with open_browser() as shown:
        for name in pages:
            for width, dark in ((1280, False), (1280, True), (400, False), (400, True)):
                what = f"{name}-{width}-{'dark' if dark else 'light'}"
                page = tmp_path / f"{name}.html"
                shown.open(page, width=width, dark=dark)
                if shots:
                    shown.screenshot(Path(shots) / f"{what}.png")
                shown.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
                assert shown.evaluate("document.documentElement.scrollWidth") <= width, what
                assert shown.evaluate(TOO_WIDE) == [], what
                assert shown.evaluate(FAINT) == [], what
                ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
                assert ground == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)"), what
                curves = shown.evaluate("document.querySelectorAll('svg.curves polyline').length")
                assert curves == (2 if name == "failed" else 0), what
                assert (shown.problems, shown.requests) == ([], [page.as_uri()]), what


def test_what_a_page_must_not_do_would_be_seen(tmp_path: Path) -> None:
    """The test above can fail: a request, a message and a text that is too faint are found."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><body><p style='color: #999'>faint</p><p style='width: 900px'>wide</p>"
        "<script>console.log('said'); fetch('http://127.0.0.1:9/x').catch(() => 0)</script>"
    )
    with open_browser() as shown:
        shown.open(page, width=400, dark=False)
        assert shown.evaluate(FAINT) == ["faint: 2.85"]
        assert shown.evaluate(TOO_WIDE) == ["wide"]
        assert any("said" in problem for problem in shown.problems)
        assert "http://127.0.0.1:9/x" in shown.requests
