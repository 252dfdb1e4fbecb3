#!/usr/bin/env python3
"""Opens reports in headless Chromium, as a reader does.

  tests/report_page_test.py --saturate build/saturate [--screenshots FOLDER]

Needs the package playwright (but not its browsers) and Debian's chromium. Exits with 77
if either is absent.
"""
from report_page_opening import ReportPages, main
from report_page_runs import HOSTILE


class ReportPage(ReportPages):
    def test_charts_are_drawn_without_messages(self):
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
        for _ in range(300):  # the page gets the event with its next frame
            if page.evaluate(colour) != before[0]:
                break
            page.wait_for_timeout(100)
        self.assert_drawn(page)
        self.assertNotEqual(page.evaluate(colour), before[0])
        self.assertNotEqual(page.evaluate(paper), before[1])

    def test_hostile_text_is_shown_and_does_not_run(self):
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

    def test_hostile_text_in_images_traces_and_ladders_does_not_run(self):
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

    def test_a_run_without_steps_says_so_and_has_no_empty_sections(self):
        page = self.open("empty")
        self.assertEqual(self.said, [])
        self.assertIn("The run has recorded no step yet.", page.locator("main").inner_text())
        self.assertEqual(page.locator("section, canvas").count(), 0)

    def test_damage_is_noted(self):
        note = "Not everything could be read"
        self.assertIn("a line that is not a record", self.open("damaged").locator(".note", has_text=note).inner_text())
        self.assertEqual(self.open("plain").locator(".note", has_text=note).count(), 0)

    def test_an_older_runs_missing_telemetry_leaves_no_empty_charts(self):
        page = self.open("older")
        self.assertEqual(page.locator("#machine, #samples, #mistakes, #timeline, #classes").count(), 0)
        self.assertNotIn("Cores in use", page.locator("body").inner_text())
        self.assertNotIn("On the GPU", page.locator("body").inner_text())

    def test_the_networks_part_of_the_wait_is_shown_if_known(self):
        for names in (["far"], ["far", "older"]):
            self.assertIn("of which network", self.open(*names).locator("#time").inner_text())
        self.assertNotIn("of which network", self.open("older").locator("#time").inner_text())

    def test_the_head_names_the_run_and_its_end(self):
        page = self.open("plain")
        self.assertEqual(page.title(), "plain")
        self.assertEqual(page.locator("h1").inner_text(), "plain")
        self.assertEqual(page.locator(".lead").inner_text(), "resnet9 on synth:count=100, 3 epochs finished")
        page = self.open("plain", "slower", "ladder.json")
        self.assertEqual(page.title(), "plain · slower · a ladder")
        self.assertEqual(page.locator("h1").inner_text(), "2 runs compared")
        self.assertEqual(page.locator(".state").all_inner_texts(), ["finished", "stopped without an end"])
        self.assertEqual(self.open("hostile.json").locator("h1").text_content(), HOSTILE)
        self.assertIn("ended by KeyError: <b>1", self.open("failed").locator(".lead").inner_text())

    def test_the_contents_link_to_the_sections(self):
        page = self.open("full", "ladder.json")
        links = page.locator("nav a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
        self.assertEqual(links, ["#time", "#curves", "#classes", "#machine", "#timeline", "#samples", "#mistakes",
                                 "#ladders", "#recipe", "#host"])
        sections = page.locator("section").evaluate_all("all => all.map(one => `#${one.id}`)")
        self.assertEqual(sections, links)
        charts = page.locator("canvas[data-chart]").evaluate_all("all => all.map(one => one.dataset.chart)")
        self.assertEqual(charts, ["phases:0", "loss", "accuracy", "images_per_s", "memory", "lr", "gpu_busy",
                                  "tflop_per_s", "cores", "queue_batches", "rss_bytes", "ladder:0", "rungs:0"])
        self.assertIn("The first images of step 1, as augmented.", page.locator("#samples").inner_text())
        self.assertIn("predicted as cat (90 %), loss 4.20", page.locator("#mistakes").inner_text())

    def test_figures_are_readable(self):
        rows = [row.split("\t") for row in self.open("minute", "hour").locator("main > .scroll tbody tr").all_inner_texts()]
        narrow = [[cell.replace("\u202f", "_").split("\n") for cell in row] for row in rows]
        self.assertEqual(narrow, [
            [["Accuracy"], ["89.69_%"], ["91.69_%", "+2.00 points"]],
            [["Best accuracy"], ["89.69_%"], ["91.69_%", "+2.00 points"]],
            [["Loss"], ["0.5000"], ["0.5000", "the same"]],
            [["Time"], ["1_min 00_s"], ["1_h 00_min", "+5939.6_%"]],
            [["Steps"], ["1,234,567"], ["1,234,567", "the same"]],
            [["Throughput in training"], ["1,235_samples/s"], ["n/a"]],
            [["Computing"], ["1.7_%"], ["n/a"]],
            [["Waiting for input"], ["0.0_%"], ["n/a"]],
            [["Peak memory"], ["1.50_GiB"], ["1.50_GiB", "the same"]]])

    def test_keys_that_differ_between_runs_are_marked(self):
        page = self.open("plain", "slower")
        self.assertIn("1 of 5 keys differ.", page.locator("#recipe").inner_text())
        page.locator("#recipe summary").click()
        marked = page.locator("#recipe tr.differs")
        self.assertEqual(marked.all_inner_texts(), ["train.batch ≠\t10\t20"])
        self.assertEqual(page.locator("#recipe details tbody tr").count(), 5)

    def test_a_gpus_time_by_phase_is_beside_the_hosts(self):
        page = self.open("gpu")
        heads = page.locator("#time thead th").all_inner_texts()
        self.assertEqual(heads, ["Phase", "", "Share", "Time", "ms a step", "On the GPU", "ms a step", "Meaning"])
        row = page.locator("#time tbody tr", has_text="forward").inner_text().split("\t")
        self.assertEqual([cell.strip() for cell in row[2:7]],
                         ["50.0\u202f%", "2.0\u202fs", "100.00", "1.3\u202fs", "62.50"])
        both = self.open("older", "gpu").locator("#time tbody tr", has_text="forward").inner_text()
        self.assertIn("2.0\u202fs, on the GPU 1.3\u202fs", both)

    def test_telemetry_has_cards(self):
        cards = self.open("hot").locator(".cards > div").all_inner_texts()
        self.assertIn(["Cores in use", "1.25", "mean of the run"], [card.split("\n") for card in cards])
        self.assertIn(["GPU busy", "42\u202f%", "throttled by <heat>"], [card.split("\n") for card in cards])

    def test_a_scripts_error_is_shown_and_other_sections_remain(self):
        self.open("plain")
        out = self.dir / "report.html"
        text = out.read_text()
        self.assertEqual(text.count('"recipe":['), 1)
        out.write_text(text.replace('"recipe":[', '"recipe":3,"was":[').replace('"host":[', '"host":3,"too":['))
        page = self.browser.new_page()
        self.addCleanup(page.close)
        page.goto(out.as_uri())
        notes = page.locator(".note[role=alert]").all_inner_texts()
        self.assertGreaterEqual(len(notes), 2)
        self.assertIn("A part of this report cannot be shown", notes[0])
        self.assertEqual(page.locator("#time canvas").count(), 1)
        self.assertEqual(page.locator("#recipe").count(), 0)

    def test_the_machine_has_a_chart_of_each_known_value(self):
        page = self.open("plain")
        charts = page.locator("#machine canvas").evaluate_all("all => all.map(one => one.dataset.chart)")
        self.assertEqual(charts, ["gpu_busy", "tflop_per_s", "cores", "queue_batches", "rss_bytes"])
        busy = page.evaluate("Chart.getChart(document.querySelector('canvas[data-chart=gpu_busy]')).data.datasets[0].data[0].y")
        self.assertAlmostEqual(busy, 40.5)

    def test_metrics_of_a_task_may_have_the_names_of_charts(self):
        drawn = self.open("own").locator("#curves canvas").evaluate_all(
            "all => all.map(one => [one.dataset.chart, Chart.getChart(one).data.datasets[0].data[0].y])")
        self.assertEqual(drawn, [["loss", 1], ["metric:iou:road", 0.25], ["metric:totals", 3], ["metric:ladder", 4],
                                 ["metric:memory", 5], ["images_per_s", 50], ["memory", 1.5]])
        self.assertEqual(self.said, [])

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
        self.assertIn("skipped: needs a GPU", page.locator("#ladders tbody tr").nth(2).inner_text())
        bare = self.open("bare.json").locator("canvas").evaluate_all("all => all.map(one => one.dataset.chart)")
        self.assertEqual(bare, ["ladder:0"])

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

    def test_long_paths_and_keys_are_complete_on_a_phone(self):
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

    def test_tensors_are_counted_as_samples(self):
        self.assertIn("50\u202fsamples/s", self.open("table").locator(".cards").inner_text())
        self.assertNotIn("images", self.open("table").locator("main").inner_text())
        self.assertIn("50\u202fsamples/s", self.open("far").locator(".cards").inner_text())  # without a recipe
        self.assertIn("\u202fimages/s", self.open("plain").locator(".cards").inner_text())

    def test_the_settings_of_all_rungs_are_shown(self):
        self.assertIn("All rungs with train.batch=512", self.open("ladder.json").locator("#ladders").inner_text())

    def test_wide_tables_are_printed_whole(self):
        page = self.open("full")
        page.emulate_media(media="print")
        hidden = "all => all.filter(one => getComputedStyle(one).overflowX !== 'visible').length"
        self.assertEqual(page.locator(".scroll").evaluate_all(hidden), 0)

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

    def test_a_page_without_javascript_says_so(self):
        page = self.open("plain", java_script_enabled=False)
        text = page.locator("body").inner_text()
        for part in ("This report needs JavaScript", "Allow scripts for this file", "Made by saturate"):
            self.assertIn(part, text)


if __name__ == "__main__":
    main(__doc__)
