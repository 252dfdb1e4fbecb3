"""Opens reports in headless Chromium, for report_page_test.py. Without playwright or chromium importing this ends the
program with 77."""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from report_page_runs import write_all

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    print("skipped: python3 has no package playwright (pip install playwright)")
    sys.exit(77)
CHROMIUM = shutil.which("chromium")
if not CHROMIUM:
    print("skipped: there is no chromium (apt-get install chromium)")
    sys.exit(77)

options = None


class ReportPages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="saturate-page-"))
        write_all(cls.dir)
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()
        shutil.rmtree(cls.dir)

    def open(self, *names, **context):
        """The page of a report of these runs; its messages and requests are in self.said."""
        out = self.dir / "report.html"
        folders = [str(self.dir / name) for name in names]
        subprocess.run([options.saturate, "report", *folders, "--out", str(out)], check=True,
                       stdout=subprocess.DEVNULL)
        self.said = []
        page = self.browser.new_context(**context).new_page()
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: self.said.append("a dialog"))
        page.on("request", lambda request: request.url == out.as_uri() or
                request.url.startswith("data:") or self.said.append(request.url))
        page.goto(out.as_uri())
        self.addCleanup(page.context.close)
        return page

    def assert_drawn(self, page):
        count = page.locator("canvas").count()
        self.assertGreater(count, 0)
        self.assertEqual(page.evaluate("document.documentElement.dataset.charts"), str(count))
        painted = page.evaluate("""() => [...document.querySelectorAll('canvas')].map(canvas => {
            const {width, height} = canvas;
            const bytes = canvas.getContext('2d').getImageData(0, 0, width, height).data;
            const colours = new Set();
            for (let i = 0; i < bytes.length; i += 4)
                if (bytes[i + 3] === 255) colours.add(bytes[i] << 16 | bytes[i + 1] << 8 | bytes[i + 2]);
            return colours.size;
        })""")
        for colours in painted:
            self.assertGreater(colours, 3)

    def screenshot(self, page, name):
        if options.screenshots:
            page.screenshot(path=str(pathlib.Path(options.screenshots) / f"{name}.png"), full_page=True)


def main(doc):
    global options
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saturate", required=True, help="the command")
    parser.add_argument("--screenshots", help="a folder to leave pictures of the pages in")
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
