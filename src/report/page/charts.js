// A report's charts. A run's columns hold a value, or null, for each point; one without any value is absent.
const dashes = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const leastShare = 0.0005;  // a phase with a smaller share in every run is not drawn
const hidden = new Map();  // chart -> the labels its reader has switched off
const charts = [];
const timelines = [];
let axis = 'step';

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const runColour = run => colour(`--run-${run % 8}`);

const longest = Math.max(0, ...data.runs.map(run => run.figures.time_s));
const clock = longest < 180 ? {unit: 's', seconds: 1} : longest < 10800
    ? {unit: 'min', seconds: 60} : {unit: 'h', seconds: 3600};
const axes = {
  step: {title: 'step', of: (points, i) => points.step[i]},
  epoch: {title: 'epoch', of: (points, i) => points.epoch[i]},
  time: {title: `time (${clock.unit})`, of: (points, i) => points.time_s[i] / clock.seconds},
};

const hundredfold = value => value * 100;
const gib = value => value / 2 ** 30;
const mega = value => value / 1e6;
// The line charts, by their names on the page. Those of the machine are in the order of the page.
const lines = {
  loss: {key: 'loss', title: 'Loss', cut: true,
         detail: 'training: mean since the point before (saturate.watch: of one step); held out at each evaluation',
         format: significant},
  accuracy: {key: 'accuracy', title: 'Accuracy', scale: hundredfold, smooth: true,
             format: value => `${digits(value, 2)} %`,
             detail: '%, of the first guess; training as the mean of neighbouring records'},
  images_per_s: {key: 'images_per_s', title: 'Throughput', detail: `${unit}/s in training`, zero: true, training: true,
                 format: value => `${digits(value, value < 10 ? 2 : 0)} ${unit}/s`},
  memory: {key: 'memory_peak_bytes', title: 'Peak memory', detail: 'GiB of the process, so far', scale: gib, zero: true,
           training: true, format: value => `${digits(value, 3)} GiB`},
  lr: {key: 'lr', title: 'Learning rate', detail: 'before factors by layer', zero: true, training: true,
       format: significant},
};
for (const [key, title, unit, detail, scale] of [
  ['gpu_busy', 'GPU busy', '%', '%, of the time a kernel ran', hundredfold],
  ['gpu_sm_active', 'SMs active', '%', "%, of the GPU's multiprocessors, in the mean", hundredfold],
  ['gpu_power_w', 'Power', 'W', 'W, of the GPU'],
  ['gpu_clock_mhz', 'Clock', 'MHz', "MHz, of the GPU's SMs"],
  ['gpu_memory_bytes', 'Memory of the GPU', 'GiB', 'GiB in use, by all processes', gib],
  ['gpu_throttled', 'Throttled', '%', '%, of the readings', hundredfold],
  ['tflop_per_s', 'Computed', 'TFLOP/s', 'TFLOP/s in convolutions and matrix products'],
  ['cores', 'Cores in use', '', 'CPU seconds a second, of the process'],
  ['queue_batches', 'Loader queue', 'batches', 'batches ready; 0: the step waits for input'],
  ['rss_bytes', 'Memory', 'GiB', 'GiB resident, of the process', gib],
  ['disk_read_bytes_per_s', 'Disk reads', 'MB/s', 'MB/s, of the process', mega],
  ['disk_write_bytes_per_s', 'Disk writes', 'MB/s', 'MB/s, of the process', mega],
  ['net_receive_bytes_per_s', 'Network, received', 'MB/s', 'MB/s, of the machine', mega],
  ['net_send_bytes_per_s', 'Network, sent', 'MB/s', 'MB/s, of the machine', mega],
]) lines[key] = {key, title, detail, scale, zero: true, training: true, machine: true,
                 format: value => `${significant(value)} ${unit}`.trim()};
// The metrics that a run's task names, beside accuracy. Any name is allowed: their charts are "metric:NAME".
const named = [...new Set(data.runs.flatMap(run => run.figures.values.map(([name]) => name)))];
const metricLines = new Map(named.map(name => [name, {
  key: name, title: name, detail: 'of training since the point before; held out at each evaluation',
  format: significant}]));
const drawnPhases = () => data.phases.filter(phase => data.runs.some(run =>
    run.figures.phases && run.figures.phases[phase] >= leastShare * total(run.figures.phases)));
const isKnown = ({key, training}) =>
    data.runs.some(run => run.steps[key] || (!training && run.evaluations[key]));

function pointsOf(points, line) {
  const scale = line.scale || (value => value);
  if (!points[line.key]) return [];  // of a run that did not know it
  return points.step.map((_, i) => ({
    x: axes[axis].of(points, i),
    y: points[line.key][i] === null ? NaN : scale(points[line.key][i]),
    place: `step ${digits(points.step[i], 0)}, epoch ${significant(points.epoch[i])}, ` +
        `${significant(points.time_s[i] / clock.seconds)} ${clock.unit}`,
  })).filter(point => !Number.isNaN(point.y));
}

// Each point as the mean of its neighbours too, as many to either side: noise goes, nothing lags.
function smoothed(points) {
  const most = Math.min(20, Math.round(points.length / 40));
  return points.map((point, i) => {
    const reach = Math.min(most, i, points.length - 1 - i);
    const near = points.slice(i - reach, i + reach + 1);
    return {...point, y: near.reduce((sum, other) => sum + other.y, 0) / near.length};
  });
}

function lineDatasets(line) {
  const sets = [];
  data.runs.forEach((run, index) => {
    const title = text => several ? `${run.name}, ${text}` : text;
    const training = pointsOf(run.steps, line);
    const heldOut = line.training ? [] : pointsOf(run.evaluations, line);
    if (line.smooth && !several && training.length >= 20) sets.push({
      label: 'training, each record', data: training, borderColor: `${runColour(index)}55`, borderWidth: 1,
      pointRadius: 0, pointStyle: 'circle',
    });
    if (training.length) sets.push({
      label: line.training ? (several ? run.name : 'training') : title('training'),
      data: line.smooth ? smoothed(training) : training, borderColor: runColour(index),
      borderDash: dashes[Math.floor(index / 2) % 4],
      borderWidth: several && heldOut.length ? 1.25 : 2,
      pointRadius: training.length === 1 ? 3 : 0,
      pointStyle: 'circle',
    });
    if (heldOut.length) sets.push({
      label: title('held out'), data: heldOut, heldOut: true,
      borderColor: several ? runColour(index) : runColour(1), borderWidth: 2.5,
      pointRadius: heldOut.length > 60 ? 0 : 3.5, pointStyle: ['circle', 'rect', 'triangle', 'rectRot'][index % 4],
    });
  });
  for (const set of sets) Object.assign(set, {
    backgroundColor: set.borderColor, pointHoverRadius: 5, tension: 0, spanGaps: true});
  return sets;
}

// The first evaluations see weights that have learnt little, and averages of batches that are none yet.
// Where they lie far above all else, the axis ends below them: {at, most}, or undefined.
function cutOf(sets) {
  const heights = points => points.map(point => point.y);
  const firstOf = set => !set.heldOut || set.data.length < 2 ? 0 : Math.ceil(set.data.length / 4);
  const first = sets.flatMap(set => heights(set.data.slice(0, firstOf(set))));
  const rest = sets.flatMap(set => heights(set.data.slice(firstOf(set))));
  if (!first.length || !rest.length) return undefined;
  const low = Math.min(...first, ...rest), high = Math.max(...rest), most = Math.max(...first);
  return most - low > 1.5 * (high - low) ? {at: high + 0.08 * (high - low), most} : undefined;
}

const ink = () => ({
  text: colour('--soft'), grid: colour('--grid'), paper: colour('--card'), strong: colour('--ink'),
});

function tooltip(format, title) {
  const tone = ink();
  return {
    backgroundColor: tone.paper, titleColor: tone.strong, bodyColor: tone.strong,
    borderColor: tone.grid, borderWidth: 1, padding: 10, boxPadding: 4, usePointStyle: true,
    callbacks: {title, label: item => ` ${item.dataset.label}: ${format(item.parsed)}`},
  };
}

function scale(title, more) {
  const tone = ink();
  return {
    ...more, title: {display: Boolean(title), text: title, color: tone.text},
    grid: {color: tone.grid, borderColor: tone.grid, tickLength: 4},
    ticks: {color: tone.text, maxTicksLimit: 7, maxRotation: 0, ...(more || {}).ticks},
  };
}

const common = {
  animation: false, responsive: true, maintainAspectRatio: false, normalized: true,
  interaction: {mode: 'nearest', axis: 'x', intersect: false},
};

function lineChart(line) {
  const datasets = lineDatasets(line);
  const cut = line.cut ? cutOf(datasets) : undefined;
  return {
    type: 'line', data: {datasets},
    note: cut ? `first evaluations, up to ${line.format(cut.most)}, lie above` : '',
    options: {
      ...common,
      scales: {
        x: scale(axes[axis].title, {type: 'linear', bounds: 'data', min: 0, ticks: {includeBounds: false}}),
        y: scale('', {beginAtZero: Boolean(line.zero), grace: '4%', ...(cut ? {max: cut.at} : {}),
                      ticks: {includeBounds: !cut}}),
      },
      plugins: {
        legend: {display: false},
        tooltip: tooltip(parsed => line.format(parsed.y),
                         items => items.length ? items[0].raw.place : ''),
      },
    },
  };
}

// Shares of the time that passed, by phase: a stack for each span of equal length. Bars, because a
// stack of lines has but one height at each edge between two spans.
function phaseChart(run) {
  const {width_s: width, phases} = run.timeline;
  const clockTime = i => i * width / clock.seconds;
  const shown = drawnPhases().filter(phase => phases[phase]);
  const datasets = shown.map(phase => ({
    label: phase, backgroundColor: colour(`--phase-${phase}`), barPercentage: 1, categoryPercentage: 1,
    inflateAmount: 0.5,
    data: phases[phase].map((share, i) => ({
      x: clockTime(i + 0.5), y: share * 100,
      place: `${significant(clockTime(i))} to ${significant(clockTime(i + 1))} ${clock.unit}`,
    })),
  }));
  const spans = shown.length ? phases[shown[0]].length : 0;
  return {
    type: 'bar', data: {datasets},
    options: {
      ...common, interaction: {mode: 'index', intersect: false},
      scales: {
        x: scale(axes.time.title, {type: 'linear', offset: false, stacked: true, min: 0,
                                   max: clockTime(spans), ticks: {includeBounds: false}}),
        y: scale('', {stacked: true, min: 0, max: 100, ticks: {callback: value => `${value} %`}}),
      },
      plugins: {
        legend: {display: false},
        tooltip: {
          ...tooltip(parsed => `${digits(parsed.y, 1)} %`,
                     items => items.length ? items[0].raw.place : ''),
          filter: item => item.parsed.y >= 0.05,
        },
      },
    },
  };
}

const shortLabels = {callback(value) {
  const label = this.getLabelForValue(value);
  return label.length > 18 ? `${label.slice(0, 17)}…` : label;
}};

// A bar for each of `all`, of which each has a name and its values by phase, `sizes(one)`.
function stackChart(all, shown, sizes, axisScale, format) {
  const labels = all.map(one => one.name);
  const datasets = shown.map(phase => ({
    label: phase, data: all.map(one => sizes(one)[phase] || 0),
    backgroundColor: colour(`--phase-${phase}`), borderColor: colour('--paper'), borderWidth: {right: 1},
    barPercentage: 0.75, categoryPercentage: 0.9, borderSkipped: false,
  }));
  return {
    type: 'bar', data: {labels, datasets},
    options: {
      ...common, indexAxis: 'y', interaction: {mode: 'nearest', axis: 'y', intersect: false},
      scales: {
        x: axisScale,
        y: scale('', {stacked: true, ticks: shortLabels}),
      },
      plugins: {
        legend: {display: false},
        tooltip: {
          ...tooltip(parsed => format(parsed.x), items => items.length ? items[0].label : ''),
          mode: 'index', filter: item => item.parsed.x > 0,
        },
      },
    },
  };
}

const scaled = (phases, factor) =>
    Object.fromEntries(Object.entries(phases || {}).map(([phase, value]) => [phase, value * factor]));

function totalsChart() {
  return stackChart(data.runs, drawnPhases(), run => scaled(run.figures.phases, 1 / clock.seconds),
                    scale(axes.time.title, {stacked: true}), value => `${significant(value)} ${clock.unit}`);
}

function rungsChart({rungs}) {
  const shown = data.phases.filter(phase => rungs.some(rung => rung.phases && rung.phases[phase] >= leastShare));
  return stackChart(rungs, shown, rung => scaled(rung.phases, 100),
                    scale('', {stacked: true, min: 0, max: 100, ticks: {callback: value => `${value} %`}}),
                    value => `${digits(value, 1)} %`);
}

// Whiskers: the interval of the gain over the first rung, at the first rung's rate.
const whiskers = {
  id: 'whiskers',
  afterDatasetsDraw(chart, _, {rungs, tone}) {
    if (!rungs) return;
    const {ctx, scales: {x}} = chart;
    ctx.save();
    ctx.strokeStyle = tone;
    ctx.lineWidth = 1.5;
    chart.getDatasetMeta(0).data.forEach((bar, i) => {
      const {low, high} = rungs[i], first = speedOf(rungs[0]);
      if (!low || !high || !first || high > 10) return;
      const y = bar.y, from = x.getPixelForValue(low * first), to = x.getPixelForValue(high * first);
      ctx.beginPath();
      ctx.moveTo(from, y); ctx.lineTo(to, y);
      for (const end of [from, to]) { ctx.moveTo(end, y - 4); ctx.lineTo(end, y + 4); }
      ctx.stroke();
    });
    ctx.restore();
  },
};

const speedOf = rung => rung.images_per_s ?? rung.steps_per_s;

function ladderChart({rungs}) {
  const speed = rungs.some(rung => rung.images_per_s !== null) ? `${unit}/s` : 'steps/s';
  const most = Math.max(...rungs.map(rung => (rung.high && rung.high <= 10 ? rung.high : 0) *
      (speedOf(rungs[0]) || 0)), ...rungs.map(rung => speedOf(rung) || 0));
  return {
    type: 'bar', plugins: [whiskers],
    data: {
      labels: rungs.map(rung => rung.name),
      datasets: [{label: speed, data: rungs.map(speedOf), backgroundColor: runColour(0),
                  barPercentage: 0.7, categoryPercentage: 0.9}],
    },
    options: {
      ...common, indexAxis: 'y', interaction: {mode: 'nearest', axis: 'y', intersect: false},
      scales: {
        x: scale(speed, {beginAtZero: true, suggestedMax: most * 1.02}),
        y: scale('', {ticks: shortLabels}),
      },
      plugins: {
        legend: {display: false}, whiskers: {rungs, tone: colour('--ink')},
        tooltip: tooltip(parsed => `${significant(parsed.x)} ${speed}`,
                         items => items.length ? items[0].label : ''),
      },
    },
  };
}

function configuration(canvas) {
  const {chart} = canvas.dataset, [kind] = chart.split(':'), run = chart.slice(kind.length + 1);
  if (kind === 'metric') return lineChart(metricLines.get(run));
  if (kind === 'phases') return phaseChart(data.runs[Number(run)]);
  if (kind === 'ladder') return ladderChart(data.ladders[Number(run)]);
  if (kind === 'rungs') return rungsChart(data.ladders[Number(run)]);
  return kind === 'totals' ? totalsChart() : lineChart(lines[kind]);
}

function drawLegend(chart, canvas, note) {
  const legend = canvas.closest('figure').querySelector('.legend');
  const off = hidden.get(canvas) || new Set();
  hidden.set(canvas, off);
  legend.replaceChildren();
  if (chart.data.datasets.length < 2) return;
  chart.data.datasets.forEach((set, index) => {
    const line = set.pointStyle && `border-top:${Math.ceil(set.borderWidth)}px ` +
        `${(set.borderDash || []).length ? 'dashed' : 'solid'} ${set.borderColor}`;
    const button = el('button', {type: 'button'},
      el('span', {class: line ? 'swatch stroke' : 'swatch', style: line || `background:${set.backgroundColor}`}),
      set.label);
    const show = () => {
      button.setAttribute('aria-pressed', String(!off.has(set.label)));
      chart.setDatasetVisibility(index, !off.has(set.label));
    };
    button.addEventListener('click', () => {
      if (!off.delete(set.label)) off.add(set.label);
      show();
      chart.update();
    });
    show();
    legend.append(button);
  });
  if (note) legend.append(small(note));
  chart.update();
}

// Arrow keys move along a chart's points as the mouse would.
function onKey(event) {
  const chart = Chart.getChart(event.currentTarget);
  const shown = chart.getSortedVisibleDatasetMetas().filter(meta => meta.data.length);
  if (!shown.length) return;
  const last = shown[0].data.length - 1;
  const at = chart.keyboardIndex;
  const moves = {ArrowRight: at === undefined ? 0 : Math.min(last, at + 1), Home: 0, End: last,
                 ArrowLeft: at === undefined ? last : Math.max(0, at - 1), Escape: undefined};
  if (!(event.key in moves)) return;
  event.preventDefault();
  chart.keyboardIndex = moves[event.key];
  let active = [], place = {x: 0, y: 0};
  if (chart.keyboardIndex !== undefined) {
    place = shown[0].data[chart.keyboardIndex].getProps(['x', 'y']);
    active = shown.map(meta => ({
      datasetIndex: meta.index,
      index: meta.data.reduce((best, point, i) =>
          Math.abs(point.x - place.x) < Math.abs(meta.data[best].x - place.x) ? i : best, 0),
    }));
    if (chart.options.indexAxis === 'y') active.forEach(item => { item.index = chart.keyboardIndex; });
  }
  chart.setActiveElements(active);
  chart.tooltip.setActiveElements(active, place);
  chart.update();
  const body = (chart.tooltip.body || []).map(part => part.lines.join('').trim());
  announce.textContent = active.length ? [...(chart.tooltip.title || []), ...body].join('. ') : '';
}

function draw() {
  if (!window.Chart) throw new Error('saturate was built without Chart.js: see SATURATE_CHART_JS');
  charts.splice(0).forEach(chart => chart.destroy());
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  for (const canvas of document.querySelectorAll('canvas[data-chart]')) {
    attempt(() => {
      const {note, ...drawn} = configuration(canvas);
      charts.push(new Chart(canvas, drawn));
      drawLegend(charts.at(-1), canvas, note);
    });
  }
  timelines.forEach(timeline => timeline.redraw());
  document.documentElement.dataset.charts = String(charts.length + timelines.length);
}
