// Draws a few traced steps, to be zoomed into. page.js calls it for each canvas[data-timeline].
'use strict';
window.saturateTimeline = (canvas, trace, colour, announce) => {
  const row = 16, head = 18, axisHeight = 20, mostRows = 6, gap = 6;
  const runColours = 8;
  const view = {from: 0, to: trace.end_ns};
  let chosen = -1, pressed = null;

  // Depth of each span within those that hold it, and where its track begins.
  let top = axisHeight;
  const tracks = trace.tracks.map(track => {
    const open = [];
    let rows = 1;
    const spans = track.spans.map(([name, begin, end]) => {
      while (open.length && open[open.length - 1] <= begin) open.pop();
      open.push(end);
      rows = Math.max(rows, Math.min(open.length, mostRows));
      return {name: trace.names[name], begin, end, depth: open.length - 1};
    }).filter(span => span.depth < mostRows);
    const placed = {name: track.name, spans, top};
    top += head + rows * row + gap;
    return placed;
  });
  const all = tracks.flatMap(track => track.spans.map(span => ({...span, track})));
  const walk = tracks.length ? tracks[0].spans : [];
  canvas.parentElement.style.height = `${top}px`;

  const time = ns => ns >= 1e6 ? `${(ns / 1e6).toPrecision(4)} ms` : `${(ns / 1e3).toPrecision(4)} µs`;
  const describe = span => `${span.name}: ${time(span.end - span.begin)}, from ${time(span.begin)}`;
  const palette = new Map();
  function fill(name) {
    const phase = colour(`--phase-${name}`.replace(/[^a-z-]/g, '_'));
    if (phase) return phase;
    let hash = 0;
    for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
    return colour(`--run-${hash % runColours}`);
  }

  const bar = canvas.closest('figure').querySelector('.zoom');
  const told = document.createElement('output');
  const actions = [['Zoom in', () => zoom(0.5)], ['Zoom out', () => zoom(2)], ['Earlier', () => move(-0.3)],
                   ['Later', () => move(0.3)], ['All', reset]];
  bar.replaceChildren(...actions.map(([title, act]) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = title;
    button.addEventListener('click', act);
    return button;
  }), told);

  const x = ns => (ns - view.from) / (view.to - view.from) * canvas.clientWidth;
  const at = pixels => view.from + pixels / canvas.clientWidth * (view.to - view.from);

  function show(from, to) {
    const length = Math.min(trace.end_ns, Math.max(200, to - from));
    view.from = Math.max(0, Math.min(from, trace.end_ns - length));
    view.to = view.from + length;
    draw();
  }
  function zoom(factor, centre = (view.from + view.to) / 2) {
    show(centre - (centre - view.from) * factor, centre + (view.to - centre) * factor);
  }
  function move(share) {
    const by = share * (view.to - view.from);
    show(view.from + by, view.to + by);
  }
  function reset() { show(0, trace.end_ns); }

  function ticks(context, width, tone) {
    const rough = (view.to - view.from) / Math.max(2, width / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(factor => factor * power).find(value => value >= rough);
    context.fillStyle = tone;
    for (let ns = Math.ceil(view.from / step) * step; ns < view.to; ns += step) {
      context.fillRect(x(ns), axisHeight - 4, 1, top);
      context.fillText(time(ns), x(ns) + 3, axisHeight - 7);
    }
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(top * ratio);
    canvas.style.height = `${top}px`;
    const context = canvas.getContext('2d');
    context.scale(ratio, ratio);
    context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    context.fillStyle = colour('--paper');
    context.fillRect(0, 0, width, top);
    ticks(context, width, colour('--soft'));
    for (const track of tracks) {
      context.fillStyle = colour('--soft');
      context.fillText(track.name, 2, track.top + 12);
      for (const span of track.spans) {
        if (span.end < view.from || span.begin > view.to) continue;
        const left = Math.max(0, x(span.begin)), right = Math.min(width, x(span.end));
        const y = track.top + head + span.depth * row, length = Math.max(1, right - left);
        if (!palette.has(span.name)) palette.set(span.name, fill(span.name));
        context.fillStyle = palette.get(span.name);
        context.fillRect(left, y, length > 3 ? length - 0.5 : length, row - 2);
        if (length < 24) continue;
        context.save();
        context.beginPath();
        context.rect(left, y, length - 2, row);
        context.clip();
        context.fillStyle = '#000';
        context.fillText(span.name, left + 3, y + 11);
        context.restore();
      }
    }
    if (chosen >= 0) {
      const span = walk[chosen];
      context.strokeStyle = colour('--ink');
      context.lineWidth = 2;
      context.strokeRect(x(span.begin), tracks[0].top + head + span.depth * row, x(span.end) - x(span.begin), row - 2);
    }
  }

  function spanAt(event) {
    const box = canvas.getBoundingClientRect(), ns = at(event.clientX - box.left), y = event.clientY - box.top;
    return all.find(span => {
      const line = span.track.top + head + span.depth * row;
      const least = (view.to - view.from) / canvas.clientWidth;  // a pixel
      return y >= line && y < line + row && ns >= span.begin && ns <= Math.max(span.end, span.begin + least);
    });
  }

  canvas.addEventListener('pointerdown', event => {
    pressed = {pixels: event.clientX, from: view.from, to: view.to};
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointerup', () => { pressed = null; });
  canvas.addEventListener('pointercancel', () => { pressed = null; });
  canvas.addEventListener('pointermove', event => {
    if (pressed) {
      const by = (pressed.pixels - event.clientX) / canvas.clientWidth * (pressed.to - pressed.from);
      show(pressed.from + by, pressed.to + by);
      return;
    }
    const span = spanAt(event);
    told.textContent = span ? describe(span) : '';
  });
  // With Ctrl, as in maps: a page must still scroll.
  canvas.addEventListener('wheel', event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event.clientX - canvas.getBoundingClientRect().left));
  }, {passive: false});
  canvas.addEventListener('keydown', event => {
    const choose = by => {
      if (!walk.length) return;
      chosen = Math.max(0, Math.min(walk.length - 1, chosen + by));
      told.textContent = announce.textContent = describe(walk[chosen]);
      draw();
    };
    const keys = {'+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), Home: reset,
                  ArrowLeft: () => move(-0.3), ArrowRight: () => move(0.3),
                  ArrowDown: () => choose(1), ArrowUp: () => choose(-1),
                  Escape: () => { chosen = -1; told.textContent = announce.textContent = ''; draw(); }};
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  new ResizeObserver(draw).observe(canvas.parentElement);
  draw();
  return {view, redraw: () => { palette.clear(); draw(); }};
};
