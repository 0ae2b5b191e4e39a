"""Asks the search of built pages for words, in a browser: ``python docs/searches.py docs/_build/html``.

Each word must find its page first. Index entries of the pages (``.. index:: ! hang``) and search.js decide that.
"""

import os
import shutil
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

FIRST = {
    "halo": "how_to/grids.html",
    "hang": "how_to/explain.html",
    "wrong-mpiexec": "how_to/launching.html",
    "slow": "how_to/which_command.html",
    "install": "tutorials/quickstart.html",
    "perf pairs": "how_to/links.html",
    "timeout": "explanation/failures.html",
    "GPU": "how_to/devices.html",
}
RESULT = "return document.querySelector('#search-results li a')?.getAttribute('href')"


def main(pages: Path) -> str:
    """Return what does not find its page."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--disable-gpu"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    wrong = []
    try:
        for word, page in FIRST.items():
            driver.get(f"{(pages / 'search.html').resolve().as_uri()}?q={word.replace(' ', '+')}")
            found = WebDriverWait(driver, 30).until(lambda _: driver.execute_script(RESULT))
            if found.partition("#")[0] != page:
                wrong.append(f"{word!r} finds {found} first, not {page}")
    finally:
        driver.quit()
    return "\n".join(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])) or 0)
