#!/usr/bin/env python3
"""Opens reports in headless Chromium, as their reader would.

  tests/report_page_test.py --saturate build/saturate [--screenshots FOLDER]

Needs the package playwright (any browser of its own is not used) and Debian's chromium. Exits with 77
where either is absent.
"""
import argparse
import base64
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    print("skipped: python3 has no package playwright (pip install playwright)")
    sys.exit(77)
CHROMIUM = shutil.which("chromium")
if not CHROMIUM:
    print("skipped: there is no chromium (apt-get install chromium)")
    sys.exit(77)

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
HOSTILE = "</script><script>window.hit=1</script><img src=x onerror=window.hit=2>\u2028'\"&"
PHASES = ["wait", "copy", "augment", "forward", "backward", "reduce", "optimizer", "host", "checkpoint",
          "evaluation", "other"]
LONG = "shard:/scratch/groups/vision/datasets/imagenet-2012/packed/" + "a-long-name-without-a-space" * 4 + ".sat"
options = None


def write_run(folder, steps=60, speed=1.0, source="synth:count=100", end=True, stream=None, first_loss=None):
    """A run of `steps` records with an evaluation after every 20, of which the first may have another
    loss; on a GPU where there is a `stream`."""
    folder.mkdir(parents=True)
    lines, time_s = [], 0.0

    def add(kind, step, **values):
        line = {"kind": kind, "step": step, "epoch": step / 200, "samples": step * 10, "time_s": time_s}
        lines.append(json.dumps({**line, **values}))

    for i in range(1, steps + 1):
        phases = dict.fromkeys(PHASES, 0.0)
        phases.update(wait=0.1 * speed, forward=0.3 * speed, backward=0.6 * speed, optimizer=0.02)
        time_s += sum(phases.values())
        loss = 2.3 * math.exp(-i / 30)
        machine = {"cores": 1.5 + 0.3 * math.sin(i), "queue_batches": i % 4, "rss_bytes": 6e8 + i * 1e6,
                   "tflop_per_s": 0.2, "gpu_busy": 0.4 + 0.005 * i, "gpu_power_w": None,
                   "disk_read_bytes_per_s": 0.0}
        streams = {name: {"busy_s": 0.9 * speed, "idle_s": 0.1} for name in ("step", stream)} if stream else None
        add("step", i * 10, loss=loss, accuracy=1 - loss / 2.5, accuracy5=None, lr=0.1 * (1 - i / steps),
            telemetry=machine, streams=streams, images_per_s=100 / sum(phases.values()), phases=phases, memory_peak_bytes=500_000_000 + i * 10**6)
        if i % 20 == 0:
            time_s += 3
            add("eval", i * 10, loss=first_loss if first_loss and i == 20 else loss + 0.1, accuracy=0.9 - loss / 3, phases=None)
    if end:
        add("end", steps * 10, loss=0.5, accuracy=0.8, phases=None)
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    text = source.replace("\\", "\\\\").replace('"', '\\"')
    (folder / "recipe.toml").write_text(
        f'seed = 1\n[data]\nsource = "{text}"\n[model]\nname = "resnet9"\n[train]\nepochs = 3.0\n'
        f"batch = {int(10 * speed)}\n")
    (folder / "host.json").write_text(json.dumps({"cpu": source, "cores": "2"}))


def write_beside(folder, name="cat"):
    """Samples, mistakes, results by class and a trace of four steps, every text of them `name`."""
    (folder / "samples").mkdir()
    (folder / "samples/training-000.png").write_bytes(PNG)
    images = [{"file": "training-000.png", "labels": [{"class": name, "weight": 1}]}] * 5
    (folder / "samples/training.json").write_text(json.dumps({"step": 1, "images": images}))
    images = [{"file": "training-000.png", "class": name, "predicted": name, "probability": 0.9, "loss": 4.2,
               "name": name}] * 3
    (folder / "samples/mistakes.json").write_text(json.dumps({"step": 600, "images": images}))
    classes = [{"name": f"{name} {i}", "count": 40, "predicted": 40, "correct": 40 - 2 * i} for i in range(12)]
    confusion = [[i, j, 40 - 2 * i if i == j else 2 * i] for i in range(12) for j in (i, (i + 1) % 12) if i + j > 0]
    (folder / "classes.json").write_text(
        json.dumps({"step": 600, "counted": "images", "classes": classes, "confusion": confusion}))
    events = []
    for track, title in enumerate(["phases", "operators", name], 1):
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": track, "args": {"name": title}})

    def span(track, title, begin, length, category):
        events.append({"ph": "X", "name": title, "cat": category, "pid": 1, "tid": track, "ts": begin, "dur": length})

    for step in range(4):
        begin = step * 10000
        span(1, f"step {step + 7}", begin, 10000, "phase")
        for phase, at, length in (("wait", 0, 1000), ("forward", 1000, 3000), ("backward", 4000, 6000)):
            span(1, phase, begin + at, length, "phase")
        for call in range(20):
            span(2, "aten::conv2d", begin + 1000 + call * 400, 390, "operator")
            span(2, name, begin + 1000 + call * 400 + 10, 300, "operator")
            span(3, "sample", begin + call * 450, 440, "thread")
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))


def write_ladder(path, name="a ladder"):
    rungs = [{"name": name, "steps_per_s": 5.0, "images_per_s": 500.0, "gain_first": None, "skipped": None,
              "phases": {"wait": 0.6, "forward": 0.1, "backward": 0.2, "optimizer": 0.05, name: 0.05}},
             {"name": "faster", "set": ["data.threads=4"], "steps_per_s": 8.0, "images_per_s": 800.0,
              "gain_previous": 1.6, "gain_first": 1.6, "low": 1.5, "high": 1.7, "memory_peak_bytes": 10**9,
              "phases": {"wait": 0.2, "forward": 0.25, "backward": 0.45, "optimizer": 0.1},
              "skipped": None, "seed_figure": "2x"},
             {"name": "gpu", "steps_per_s": None, "skipped": f"needs a GPU {name}"}]
    path.write_text(json.dumps({"title": name, "rungs": rungs}))


class ReportPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="saturate-page-"))
        write_run(cls.dir / "plain")
        write_run(cls.dir / "slower", speed=2.0, end=False)
        write_run(cls.dir / "<img src=x onerror=window.hit=3>", source=HOSTILE)
        write_run(cls.dir / "<b>bold", source=HOSTILE, speed=3.0)
        write_run(cls.dir / "full", stream="copy")
        write_beside(cls.dir / "full")
        write_run(cls.dir / "long", source=LONG)
        write_run(cls.dir / "wild", first_loss=80.0)
        write_run(cls.dir / "hostile", stream=HOSTILE)
        write_beside(cls.dir / "hostile", HOSTILE)
        write_ladder(cls.dir / "ladder.json")
        write_ladder(cls.dir / "hostile.json", HOSTILE)
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()
        shutil.rmtree(cls.dir)

    def open(self, *names, **context):
        """The page of a report of these runs, with what it said and asked for in self.said."""
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

    def test_charts_are_drawn_in_silence(self):
        for names in (["plain"], ["plain", "slower"], ["full", "ladder.json"], ["ladder.json"]):
            for scheme in ("light", "dark"):
                with self.subTest(names=names, scheme=scheme):
                    page = self.open(*names, color_scheme=scheme)
                    self.assert_drawn(page)
                    self.assertEqual(self.said, [])
                    self.screenshot(page, f"{names[0].split('.')[0]}-{len(names)}-{scheme}")

    def test_a_change_to_dark_redraws_the_charts(self):
        page = self.open("plain", color_scheme="light")
        colour = "Chart.getChart(document.querySelector('canvas')).options.scales.x.ticks.color"
        paper = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(colour), page.evaluate(paper)
        page.emulate_media(color_scheme="dark")
        for _ in range(300):  # the page is told with its next frame
            if page.evaluate(colour) != before[0]:
                break
            page.wait_for_timeout(100)
        self.assert_drawn(page)
        self.assertNotEqual(page.evaluate(colour), before[0])
        self.assertNotEqual(page.evaluate(paper), before[1])

    def test_nothing_hostile_runs_or_is_lost(self):
        evil = "<img src=x onerror=window.hit=3>"
        for names in ([evil], [evil, "<b>bold"]):
            page = self.open(*names)
            self.assert_drawn(page)
            self.assertEqual(self.said, [])
            self.assertIsNone(page.evaluate("window.hit ?? null"))
            self.assertEqual(page.locator("img").count(), 0)
            self.assertEqual(page.locator("b").count(), 0)
            self.assertIn(evil, page.locator("header").inner_text())
            self.assertIn("<script>window.hit=1</script>", page.locator("#recipe").text_content())
            names_in_data = page.evaluate(
                "JSON.parse(document.getElementById('report-data').textContent).runs.map(run => run.name)")
            self.assertEqual(names_in_data, names)

    def test_nothing_hostile_in_pictures_traces_and_ladders_runs(self):
        page = self.open("hostile", "hostile.json")
        self.assert_drawn(page)
        self.assertEqual(self.said, [])
        self.assertIsNone(page.evaluate("window.hit ?? null"))
        self.assertEqual(page.locator("img").count(), 5 + 3)
        self.assertEqual(page.locator("img[src^='data:image/png']").count(), 5 + 3)
        self.assertIn("<script>window.hit=1</script>", page.locator("#samples").text_content())
        self.assertIn("<script>window.hit=1</script>", page.locator("#mistakes").text_content())
        self.assertIn("<script>window.hit=1</script>", page.locator("#classes").text_content())
        self.assertIn("<script>window.hit=1</script>", page.locator("#ladders").text_content())
        self.assertIn("<script>window.hit=1</script>", page.locator("#machine").text_content())

    def test_the_machine_has_a_chart_of_each_thing_known(self):
        page = self.open("plain")
        charts = page.locator("#machine canvas").evaluate_all("all => all.map(one => one.dataset.chart)")
        self.assertEqual(charts, ["gpu_busy", "tflop_per_s", "cores", "queue_batches", "rss_bytes"])
        busy = page.evaluate("Chart.getChart(document.querySelector('canvas[data-chart=gpu_busy]')).data.datasets[0].data[0].y")
        self.assertAlmostEqual(busy, 40.5)

    def test_a_confusion_matrix_is_tinted_by_the_share_of_a_row(self):
        page = self.open("full")
        self.assertEqual(page.locator("#classes table").count(), 2)
        worst = page.locator("#classes tbody tr").first.inner_text().split("\t")
        self.assertEqual(worst, ["cat 11", "40", "45.00\u202f%", "cat 0\u00a022"])
        matrix = page.locator("#classes table").nth(1)
        self.assertEqual(matrix.locator("td").count(), 12 * 12)
        tint = "one => getComputedStyle(one).backgroundColor"
        right, wrong = matrix.locator("td.right").nth(1), matrix.locator("td.wrong").first
        self.assertEqual((right.inner_text(), wrong.inner_text()), ("36", "2"))
        self.assertNotEqual(right.evaluate(tint), wrong.evaluate(tint))
        self.assertNotIn(right.evaluate(tint), ("transparent", "rgba(0, 0, 0, 0)"))
        self.assertEqual(self.open("plain").locator("#classes").count(), 0)

    def test_a_gpus_streams_have_a_table(self):
        page = self.open("full")
        rows = page.locator("#machine tbody tr").all_inner_texts()
        self.assertEqual([row.split("\t") for row in rows],
                         [[name, "90.0\u202f%", "54\u202fs", "6.0\u202fs"] for name in ("copy", "step")])
        self.assertEqual(self.open("plain").locator("#machine table").count(), 0)

    def test_each_rungs_phases_are_stacked(self):
        page = self.open("ladder.json")
        chart = "Chart.getChart(document.querySelector('canvas[data-chart=\"rungs:0\"]'))"
        shown = page.evaluate(f"{chart}.data.datasets.map(set => [set.label, set.data])")
        self.assertEqual(shown, [["wait", [60, 20, 0]], ["forward", [10, 25, 0]], ["backward", [20, 45, 0]],
                                 ["optimizer", [5, 10, 0]], ["other", [5, 0, 0]]])
        page.locator("canvas[data-chart='rungs:0']").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        self.assertEqual(page.locator("#announce").inner_text(),
                         "faster. wait: 20 %. forward: 25 %. backward: 45 %. optimizer: 10 %")
        self.assertIn("0.93\u202fGiB", page.locator("#ladders tbody tr").nth(1).inner_text())

    def test_the_timeline_zooms_and_moves(self):
        page = self.open("full")
        canvas = page.locator("canvas[data-timeline]")
        told = page.locator(".zoom output")
        self.assertEqual(page.locator("#timeline figcaption").inner_text().split("\n")[0], "3 traced steps")
        canvas.focus()
        page.keyboard.press("ArrowDown")
        self.assertEqual(told.inner_text(), "step 7: 10.00 ms, from 0.000 µs")
        page.keyboard.press("ArrowDown")
        self.assertTrue(told.inner_text().startswith("wait: 1.000 ms"))
        self.assertIn("wait", page.locator("#announce").inner_text())
        before = canvas.evaluate("one => one.toDataURL()")
        page.keyboard.press("+")
        nearer = canvas.evaluate("one => one.toDataURL()")
        self.assertNotEqual(nearer, before)
        page.locator(".zoom button", has_text="Later").click()
        self.assertNotEqual(canvas.evaluate("one => one.toDataURL()"), nearer)
        page.locator(".zoom button", has_text="All").click()
        self.assertEqual(canvas.evaluate("one => one.toDataURL()"), before)
        canvas.hover(position={"x": 200, "y": 45})
        self.assertIn("step 7", told.inner_text())

    def test_a_phone_needs_no_sideways_scrolling(self):
        for names in (["plain"], ["plain", "slower"], ["full", "ladder.json"]):
            page = self.open(*names, viewport={"width": 390, "height": 844}, is_mobile=True,
                             device_scale_factor=2)
            page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
            self.assert_drawn(page)
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 390)
            self.screenshot(page, f"{names[0]}-{len(names)}-phone")

    def test_long_paths_and_keys_are_whole_on_a_phone(self):
        page = self.open("long", viewport={"width": 390, "height": 844}, is_mobile=True, device_scale_factor=2)
        page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
        wide = page.evaluate("""() => [...document.querySelectorAll('#recipe .scroll, #host .scroll')]
            .filter(one => one.scrollWidth > one.clientWidth).length""")
        self.assertEqual(wide, 0, "a table of keys must be scrolled sideways")
        cut = page.evaluate("""() => [...document.querySelectorAll('body *')].filter(one =>
            one.checkVisibility() && one.getBoundingClientRect().right > 391 && !one.closest('.scroll')).length""")
        self.assertEqual(cut, 0)
        shown = page.locator("#recipe td.data", has_text="a-long-name").first
        self.assertGreater(shown.bounding_box()["width"], 250)
        self.assertLess(shown.bounding_box()["height"], 160)
        self.screenshot(page, "long-phone")

    def test_training_accuracy_is_smoothed(self):
        page = self.open("plain")
        sets = page.evaluate("""() => Chart.getChart(document.querySelector('canvas[data-chart=accuracy]'))
            .data.datasets.map(set => [set.label, set.data.map(point => point.y)])""")
        self.assertEqual([label for label, _ in sets], ["training, each record", "training", "held out"])
        raw, smooth = sets[0][1], sets[1][1]
        self.assertEqual(len(raw), 60)
        self.assertAlmostEqual(smooth[0], raw[0])
        for i in range(2, 58):
            self.assertAlmostEqual(smooth[i], sum(raw[i - 2:i + 3]) / 5)
        several = self.open("plain", "slower").evaluate(
            "Chart.getChart(document.querySelector('canvas[data-chart=accuracy]')).data.datasets.map(set => set.label)")
        self.assertEqual(several, ["plain, training", "plain, held out", "slower, training", "slower, held out"])

    def test_first_evaluations_do_not_flatten_the_loss(self):
        most = "Chart.getChart(document.querySelector('canvas[data-chart=loss]')).scales.y.max"
        legend = "figure:has(canvas[data-chart=loss]) .legend"
        page = self.open("wild")
        self.assertLess(page.evaluate(most), 3)
        self.assertIn("first evaluations, up to 80, lie above", page.locator(legend).inner_text())
        self.screenshot(page, "wild")
        page = self.open("plain")
        self.assertGreater(page.evaluate(most), 2.2)
        self.assertNotIn("lie above", page.locator(legend).inner_text())

    def test_the_keyboard_reaches_everything(self):
        page = self.open("plain", "slower")
        seen = set()
        for _ in range(120):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("document.activeElement.tagName + '.' + document.activeElement.className"))
        for part in ("A.skip", "CANVAS.", "BUTTON.", "INPUT.", "SUMMARY.", "DIV.scroll"):
            self.assertIn(part, seen)

        page.locator("canvas[data-chart=loss]").focus()
        page.keyboard.press("ArrowRight")
        first = page.locator("#announce").inner_text()
        self.assertIn("step 10", first)
        self.assertIn("plain, training", first)
        page.keyboard.press("ArrowRight")
        self.assertIn("step 20", page.locator("#announce").inner_text())
        page.keyboard.press("End")
        self.assertIn("step 600", page.locator("#announce").inner_text())
        page.keyboard.press("Escape")
        self.assertEqual(page.locator("#announce").inner_text(), "")

    def test_lines_and_axes_can_be_chosen_by_keyboard(self):
        page = self.open("plain", "slower")
        chart = "Chart.getChart(document.querySelector('canvas[data-chart=loss]'))"
        button = page.locator("figure:has(canvas[data-chart=loss]) .legend button").first
        button.focus()
        page.keyboard.press("Space")
        self.assertEqual(button.get_attribute("aria-pressed"), "false")
        self.assertFalse(page.evaluate(f"{chart}.isDatasetVisible(0)"))
        page.locator("input[name=axis]").first.focus()
        page.keyboard.press("ArrowRight")
        self.assertEqual(page.evaluate(f"{chart}.options.scales.x.title.text"), "epoch")
        self.assertEqual(page.evaluate(f"{chart}.data.datasets[0].data[1].x"), 0.1)
        self.assertFalse(page.evaluate(f"{chart}.isDatasetVisible(0)"), "a choice is lost by a redraw")

    def test_figures_can_be_read_without_scripts(self):
        page = self.open("plain", java_script_enabled=False)
        text = page.locator("body").inner_text()
        for part in ("79.", "forward", "resnet9", "Charts need JavaScript"):
            self.assertIn(part, text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saturate", required=True, help="the command")
    parser.add_argument("--screenshots", help="a folder to leave pictures of the pages in")
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
