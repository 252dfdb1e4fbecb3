// A few traced steps, to be zoomed into.
const spanRow = 16, trackHead = 18, timeAxis = 20, mostRows = 6, trackGap = 6;  // pixels, but for mostRows

const exactTime = ns => ns >= 1e6 ? `${(ns / 1e6).toPrecision(4)} ms` : `${(ns / 1e3).toPrecision(4)} µs`;
const describeSpan = span => `${span.name}: ${exactTime(span.end - span.begin)}, from ${exactTime(span.begin)}`;

// Phases have their own colours, other names one of the runs'.
function spanColour(name) {
  const phase = colour(`--phase-${name}`.replace(/[^a-z-]/g, '_'));
  let hash = 0;
  for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
  return phase || runColour(hash);
}

// Tracks with the pixel at which each begins, and each span's depth within those that hold it.
function placeTracks(trace) {
  let top = timeAxis;
  return trace.tracks.map(track => {
    const open = [];
    let rows = 1;
    const spans = track.spans.map(([name, begin, end]) => {
      while (open.length && open[open.length - 1] <= begin) open.pop();
      open.push(end);
      rows = Math.max(rows, Math.min(open.length, mostRows));
      return {name: trace.names[name], begin, end, depth: open.length - 1};
    }).filter(span => span.depth < mostRows);
    const placed = {name: track.name, spans, top};
    top += trackHead + rows * spanRow + trackGap;
    return {...placed, bottom: top};
  });
}

class Timeline {
  constructor(canvas, trace) {
    this.canvas = canvas;
    this.all = trace.end_ns;
    this.tracks = placeTracks(trace);
    this.height = this.tracks.length ? this.tracks[this.tracks.length - 1].bottom : timeAxis;
    this.chosen = -1;  // of the first track's spans, by the keyboard
    this.view = {from: 0, to: this.all};
    this.told = el('output');
    const actions = {'Zoom in': () => this.zoom(0.5), 'Zoom out': () => this.zoom(2), Earlier: () => this.move(-0.3),
                     Later: () => this.move(0.3), All: () => this.reset()};
    canvas.closest('figure').querySelector('.zoom').replaceChildren(...Object.entries(actions).map(([title, act]) => {
      const button = el('button', {type: 'button'}, title);
      button.addEventListener('click', act);
      return button;
    }), this.told);
    canvas.parentElement.style.height = `${this.height}px`;
    this.listen();
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    this.redraw();
  }

  x(ns) { return (ns - this.view.from) / (this.view.to - this.view.from) * this.canvas.clientWidth; }
  at(pixels) { return this.view.from + pixels / this.canvas.clientWidth * (this.view.to - this.view.from); }

  show(from, to) {
    const length = Math.min(this.all, Math.max(200, to - from));
    const begin = Math.max(0, Math.min(from, this.all - length));
    this.view = {from: begin, to: begin + length};
    this.draw();
  }
  zoom(factor, centre = (this.view.from + this.view.to) / 2) {
    this.show(centre - (centre - this.view.from) * factor, centre + (this.view.to - centre) * factor);
  }
  move(share) {
    const by = share * (this.view.to - this.view.from);
    this.show(this.view.from + by, this.view.to + by);
  }
  reset() { this.show(0, this.all); }

  redraw() {
    this.palette = new Map();  // colours differ between light and dark
    this.draw();
  }

  draw() {
    const {canvas, height} = this, ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext('2d');
    context.scale(ratio, ratio);
    context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    context.fillStyle = colour('--paper');
    context.fillRect(0, 0, width, height);
    this.drawTicks(context, width);
    for (const track of this.tracks) {
      context.fillStyle = colour('--soft');
      context.fillText(track.name, 2, track.top + 12);
      for (const span of track.spans)
        if (span.end >= this.view.from && span.begin <= this.view.to) this.drawSpan(context, width, track, span);
    }
    if (this.chosen >= 0) {
      const [{spans, top}] = this.tracks, span = spans[this.chosen], left = this.x(span.begin);
      context.strokeStyle = colour('--ink');
      context.lineWidth = 2;
      context.strokeRect(left, top + trackHead + span.depth * spanRow, this.x(span.end) - left, spanRow - 2);
    }
  }

  drawTicks(context, width) {
    const {from, to} = this.view, rough = (to - from) / Math.max(2, width / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(factor => factor * power).find(value => value >= rough);
    context.fillStyle = colour('--soft');
    for (let ns = Math.ceil(from / step) * step; ns < to; ns += step) {
      context.fillRect(this.x(ns), timeAxis - 4, 1, this.height);
      context.fillText(exactTime(ns), this.x(ns) + 3, timeAxis - 7);
    }
  }

  drawSpan(context, width, track, span) {
    const left = Math.max(0, this.x(span.begin)), right = Math.min(width, this.x(span.end));
    const y = track.top + trackHead + span.depth * spanRow, length = Math.max(1, right - left);
    if (!this.palette.has(span.name)) this.palette.set(span.name, spanColour(span.name));
    context.fillStyle = this.palette.get(span.name);
    context.fillRect(left, y, length > 3 ? length - 0.5 : length, spanRow - 2);
    if (length < 24) return;
    context.save();
    context.beginPath();
    context.rect(left, y, length - 2, spanRow);
    context.clip();
    context.fillStyle = '#000';
    context.fillText(span.name, left + 3, y + 11);
    context.restore();
  }

  spanAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const ns = this.at(event.clientX - box.left), y = event.clientY - box.top, pixel = this.at(1) - this.at(0);
    for (const {spans, top} of this.tracks) {
      const depth = Math.floor((y - top - trackHead) / spanRow);
      const found = spans.find(span => span.depth === depth && ns >= span.begin &&
                                       ns <= Math.max(span.end, span.begin + pixel));
      if (found) return found;
    }
    return undefined;
  }

  choose(by) {
    const spans = this.tracks.length ? this.tracks[0].spans : [];
    if (!spans.length) return;
    this.chosen = Math.max(0, Math.min(spans.length - 1, this.chosen + by));
    this.told.textContent = announce.textContent = describeSpan(spans[this.chosen]);
    this.draw();
  }
  unchoose() {
    this.chosen = -1;
    this.told.textContent = announce.textContent = '';
    this.draw();
  }

  listen() {
    const {canvas} = this;
    let pressed = null;
    canvas.addEventListener('pointerdown', event => {
      pressed = {pixels: event.clientX, ...this.view};
      canvas.setPointerCapture(event.pointerId);
    });
    for (const end of ['pointerup', 'pointercancel']) canvas.addEventListener(end, () => { pressed = null; });
    canvas.addEventListener('pointermove', event => {
      if (pressed) {
        const by = (pressed.pixels - event.clientX) / canvas.clientWidth * (pressed.to - pressed.from);
        this.show(pressed.from + by, pressed.to + by);
        return;
      }
      const span = this.spanAt(event);
      this.told.textContent = span ? describeSpan(span) : '';
    });
    // With Ctrl, as in maps: a page must still scroll.
    canvas.addEventListener('wheel', event => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.at(event.clientX - canvas.getBoundingClientRect().left));
    }, {passive: false});
    const keys = {'+': () => this.zoom(0.5), '=': () => this.zoom(0.5), '-': () => this.zoom(2),
                  Home: () => this.reset(), ArrowLeft: () => this.move(-0.3), ArrowRight: () => this.move(0.3),
                  ArrowDown: () => this.choose(1), ArrowUp: () => this.choose(-1), Escape: () => this.unchoose()};
    canvas.addEventListener('keydown', event => {
      if (!(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
  }
}
