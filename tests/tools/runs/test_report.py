"""The report in a real browser: it loads without a network, answers the mouse, filters and sorts."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace

import pytest
from damage import called, output
from recordings_made import all_reduce, stepped
from stored_runs import SIZES, write
from until import HANGS_AFTER

from hpccomm.results import pairs, reader, recording_file
from hpccomm.tools.runs import report


@pytest.mark.slow("twelve launches are stored, and two pages are drawn")
def test_a_report_has_verdicts_and_no_text_of_a_file_becomes_html(tmp_path):
    base, new = tmp_path / "base.h5", tmp_path / "new.h5"
    script = {"NCCL_DEBUG": "<script>alert(1)</script>"}
    for launch in range(6):
        write(base, {"ring": (2.0 + launch / 1000, 1.0)}, days=launch)
        write(new, {"ring": (4.0 + launch / 1000, 0.5)}, days=9, environment=script)
    page = tmp_path / "page.html"
    output("report", new, "--base", base, "--output", page)
    text = page.read_text()
    assert len(text) < 5_000_000
    assert "Compared with the base" in text
    assert "time, us (median of repetitions)" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert(1)" not in text.replace("&lt;", "")
    assert f"All {6 * len(SIZES)} results that were checked are right" in text
    links = {"fabric": "mlx5_0 400 Gb/sec (4X NDR)"}
    wrong = write(tmp_path / "wrong.h5", {"ring": (2.0, 1.0)}, wrong=2, machine=links)
    output("report", wrong, "--output", page)
    assert f"{len(SIZES)} rows have wrong results" in page.read_text()
    assert "all_reduce 2% of 50 GB/s" in page.read_text()
    output("report", wrong, "--host", "other", status=2)


def test_a_page_has_a_name_of_its_own_and_never_replaces_measurements(tmp_path, monkeypatch):
    path = write(tmp_path / "run.h5", {"ring": (2.0, 1.0)})
    before = path.read_bytes()
    status, _, err = called("report", path, "--output", path)
    assert (status, "is an HDF5 file, which is not overwritten" in err) == (2, True)
    assert path.read_bytes() == before
    monkeypatch.chdir(tmp_path)
    for given, name in ((".", "report.html"), ("run.h5", "run.html")):
        output("report", given)
        assert (tmp_path / name).exists()


def recorded(path):
    """Store a program whose rank 2 computes for longer than the others."""
    program = stepped(4, 20, lambda rank, step: 4_000_000 + (rank == 2) * 2_000_000, 500_000)
    assert all_reduce(1 << 20) in program.signatures
    recording_file.write(path, program)
    return path


def test_all_that_it_lacks_is_asked_for_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)  # nobody uninstalls it for a test
    path = write(tmp_path / "runs.h5", {"ring": (2.0, 1.0)})
    status, _, err = called("report", path)
    assert status == 2
    assert all(f"'{each}>=" in err for each in ("jinja2", "vl-convert-python")), err


def test_a_recording_is_shown_with_its_parts_advice_and_lateness(tmp_path):
    path, page = recorded(tmp_path / "t.h5"), tmp_path / "page.html"
    assert output("report", path, "--output", page).startswith("1 recording, ")
    text = page.read_text()
    assert "recording0001: 6.5 ms a step; what would help" in text
    assert "Balance the load of rank 2" in text
    assert "t.h5 recording0001: Where the 6.5 ms of a step go" in text
    assert re.search(r"waiting for others +1\.500 +23\.1%", text)
    assert re.search(r"\n +2 +120\.000 ms +20 of 20 +0\.000 ms\n", text)
    write(path, {"ring": (2.0, 1.0)})
    assert output("report", path, "--output", page).startswith("1 run and 1 recording")


def test_a_chart_has_the_rows_of_one_collective_and_many_ranks_are_not_all_listed(tmp_path):
    (one,) = reader.read(write(tmp_path / "run.h5", {"ring": (2.0, 1.0)}))
    other = tuple(replace(row, collective="broadcast", time=9 * row.time) for row in one.rows)
    both = replace(one, rows=one.rows + other, timings=one.timings * 2, numbers=one.numbers * 2)
    alone, mixed = (charts_of(report.build([run])) for run in (one, both))
    assert list(mixed)[:2] == ["all_reduce", "broadcast"]
    assert mixed["all_reduce"] == alone["all_reduce"]
    assert mixed["broadcast"] != alone["all_reduce"]
    # The only pair is slow, and nobody knows why while others keep a node busy.
    link = pairs.PairLink(0, 1, 1e-6, 1e9, 1e9)
    measured = pairs.MeasuredPairs((0, 1), ("node0", "node1"), (link,), 1, 8, 1 << 20, 1.0)
    stored = {pairs.ENTRY: pairs.entry(measured, pairs.Thresholds(expected_bandwidth=1e10))}
    others = {"hosts": ["node0", "node1"], "before": [0.0, 0.0], "during": [0.9, 0.9]}
    for entries, said in ((stored, "something"), (stored | {"others": others}, "were busy)")):
        assert f"{said} is slow" in report.build([replace(one, entries=entries)])
    many = replace(one, info=replace(one.info, ranks=one.info.ranks * 132))
    assert "264 ranks, the first 256 of them" in report.build([many])


def charts_of(text):
    """The charts of a page, by what stands above them."""
    found = re.findall(r'<h2>([^<]*)</h2>\s*<p .*\s*<div.*json">(.*)</script>', text)
    return {title: json.loads(chart) for title, chart in found}


@pytest.fixture(scope="module")
def browser():
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("chromium or chromedriver is not installed (Debian: chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--disable-gpu", "--window-size=1200,1600"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield driver
    finally:
        driver.quit()


def until(driver, script):
    """Wait until a script's value is true; return it."""
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(driver, HANGS_AFTER).until(lambda _: driver.execute_script(script))


def elements(driver, selector):
    return driver.execute_script("return [...document.querySelectorAll(arguments[0])]", selector)


def pointed(driver, element):
    """Return what the page shows when the mouse points at an element."""
    from selenium.webdriver.common.action_chains import ActionChains

    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(driver).move_to_element(element).perform()
    return until(driver, "return document.querySelector('#vg-tooltip-element.visible')?.innerText")


@pytest.mark.slow("starts a browser")
def test_a_page_loads_without_network_and_answers(tmp_path, browser):
    path = write(tmp_path / "run.h5", {"ring": (2.0, 1.0), "tree": (10.0, 5.0)})
    page = tmp_path / "page.html"
    output("report", path, "--output", page)
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http://*", "https://*"]})
    browser.get(page.as_uri())
    until(browser, "return window.charts && charts.then(all => all.length)")
    assert browser.get_log("browser") == []
    asked = [each["message"] for each in browser.get_log("performance")]
    assert not [each for each in asked if '"requestWillBeSent"' in each and '"http' in each]

    # On a dark page charts are dark: their colors are inverted, and their hues turned back.
    drawn = "return getComputedStyle(document.querySelector('.chart')).filter"
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    assert browser.execute_script(drawn) == "none"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    assert "invert" in browser.execute_script(drawn)

    # The mouse over a point shows its values.
    said = pointed(browser, elements(browser, ".chart .mark-symbol.times_marks path")[3])
    assert "bus bandwidth" in said
    assert re.search(r"size, B\s+512\n", said)

    # A click on a name leaves its curve alone.
    opaque = """return [...document.querySelectorAll('.chart .mark-line path[stroke-width]')].map(
        each => getComputedStyle(each).opacity)"""
    assert set(browser.execute_script(opaque)) == {"1"}
    labels = elements(browser, ".chart .role-legend-label text")
    next(label for label in labels if label.text == "tree").click()
    faint = f"const all = (() => {{ {opaque} }})(); return all.some(each => each < 0.1) && all"
    assert sorted(until(browser, faint)) == ["0.07", "0.07", "1", "1"]

    # Words in the filter leave the rows that have all of them; a heading sorts.
    rows = "return [...document.querySelectorAll('#rows tr:not([hidden])')].map(x => x.innerText)"
    assert len(browser.execute_script(rows)) == 2 * len(SIZES)
    (words,) = elements(browser, "#words")
    words.send_keys("TREE 8192")
    (row,) = browser.execute_script(rows)
    assert row.split("\t")[3] == "tree"
    words.clear()
    words.send_keys(" ")
    size = next(each for each in elements(browser, "th") if each.text == "size, B")
    for falling in (False, True):
        browser.execute_script("arguments[0].click()", size)
        sizes = [int(row.split("\t")[7].replace(",", "")) for row in browser.execute_script(rows)]
        assert sizes == sorted(SIZES * 2, reverse=falling)


@pytest.mark.slow("starts a browser")
def test_a_bar_of_a_timeline_says_what_the_rank_did(tmp_path, browser):
    page = tmp_path / "page.html"
    output("report", recorded(tmp_path / "t.h5"), "--output", page)
    browser.get(page.as_uri())
    until(browser, "return window.charts && charts.then(all => all.length === 3)")
    assert browser.get_log("browser") == []
    shares, bars, heat = (
        chart.find_elements("css selector", ".mark-rect.marks path")
        for chart in elements(browser, ".chart")
    )
    # Of a step: computation, waiting of all but rank 2, transfer.
    assert (len(shares), len(bars), len(heat)) == (5 * 5, 4 + 3 + 4, 20)
    said = pointed(browser, bars[1])
    for words in ("waiting for others", "all_reduce 1 MiB step(), train.py line 9", "2,000,000"):
        assert words in said
