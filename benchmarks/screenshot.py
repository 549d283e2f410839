"""The page as a person sees it, light and dark: a real server, a real answer, in headless Chromium.

A server is started over an index and ended again; the page is asked one question, and the passage behind the
first citation is opened beside the answer. Needs playwright and a Chromium (`chromium`, `chromium-browser` or
`google-chrome` on the path), and pillow, which makes the pictures small.

    python -m benchmarks.screenshot [QUESTION] [--index DIR] [--home DIR] [--into docs/images]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.load import Plan, Server, client_of, home_in, ready, serving

QUESTION = "What is the radio range?"
PASSAGES = "3"
SIZE = {"width": 1280, "height": 800}
FILES = {"light": "page.png", "dark": "page-dark.png"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def main() -> None:
    from playwright.sync_api import sync_playwright

    from epicrag.config import load_config

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--index")
    parser.add_argument("--home")
    parser.add_argument("--into", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is on the path")
    given = {"index": args.index, "home": args.home}
    config = load_config({key: value for key, value in given.items() if value is not None})
    with tempfile.TemporaryDirectory(prefix="epicrag-page-") as name:
        home = home_in(Path(name) / "home", config.home)
        with serving(config.link_policy, config.index, home, Path(name) / "log") as server:
            asyncio.run(_warm(server, args.question))
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
                for scheme, file in FILES.items():
                    _save(_shot(browser, server.url, scheme, args.question), args.into / file)
                browser.close()


async def _warm(server: Server, question: str) -> None:
    """Wait until the model is loaded, and ask once: what is shown is not what a first answer has to load."""
    plan = Plan("ask", 1, 0.0, 0, 0, 0, 300.0)
    async with client_of(server, plan) as client:
        await ready(client, server)
        asked = {"question": question, "k": int(PASSAGES), "stream": False}
        (await client.post("v1/ask", json=asked)).raise_for_status()


def _shot(browser: Any, url: str, scheme: str, question: str) -> bytes:
    context = browser.new_context(viewport=SIZE, color_scheme=scheme, device_scale_factor=1.25)
    page = context.new_page()
    page.set_default_timeout(180_000)
    page.goto(url)
    page.get_by_label("Passages").select_option(PASSAGES)
    page.get_by_label("Question", exact=True).fill(question)
    page.keyboard.press("Enter")
    page.locator(".receipt").wait_for()
    with page.expect_response("**/v1/passages/*"):
        page.locator("button.cite, button.source").first.click()
    page.wait_for_timeout(500)
    page.get_by_label("Question", exact=True).focus()
    picture: bytes = page.screenshot()
    context.close()
    return picture


def _save(picture: bytes, file: Path) -> None:
    """Packed better than a browser does."""
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").save(file, optimize=True)
    print(f"{file}: {file.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
