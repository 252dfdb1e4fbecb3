// The sections of a report, as lists of elements. Each is empty if the runs have no data for it.
const phaseMeanings = {
  wait: 'waiting for input',
  copy: 'from host to device',
  augment: 'in the step; loader threads augment too',
  forward: 'model and loss',
  backward: 'gradients',
  reduce: 'exposed communication',
  optimizer: 'update of the weights',
  host: 'metrics, progress, bookkeeping',
  checkpoint: 'copying and writing the weights',
  evaluation: `on held-out ${unit}`,
  other: 'set-up, and between epochs',
};
const outsideSteps = ['checkpoint', 'evaluation', 'other'];

const phaseHead = phase => el('th', {scope: 'row'}, swatch(`phase-${phase}`), ' ', phase);

// One run: share with a bar, time, time per step, the same on a GPU, meaning.
function phaseTable({figures}) {
  const {phases, device_phases: device, network_wait_s: network, steps} = figures;
  const most = Math.max(...Object.values(phases));
  const timed = (phase, seconds = 0) => [number(time(seconds)), number(
    steps > 0 && !outsideSteps.includes(phase) ? (1e3 * seconds / steps).toFixed(2) : '')];
  const phaseRow = (title, phase, seconds, onDevice, meaning) => row(
    title,
    el('td', {class: 'meter-cell'}, el('span', {class: 'meter',
        style: `width:${(100 * seconds / most).toFixed(2)}%;background:var(--phase-${phase})`})),
    number(percent(seconds / total(phases), 1)), timed(phase, seconds), device ? onDevice : null,
    el('td', {class: 'soft meaning'}, meaning));
  const rows = data.phases.filter(phase => phases[phase]).flatMap(phase => [
    phaseRow(phaseHead(phase), phase, phases[phase], device && timed(phase, device[phase]), phaseMeanings[phase]),
    ...(phase === 'wait' && network > 0 ? [phaseRow(
      el('th', {scope: 'row'}, 'of which network'), phase, network, [number(''), number('')],
      'loader threads waited for a store')] : [])]);
  return table('Time by phase',
               [head('Phase'), el('th', {class: 'meter-cell'}), ...numberHeads(['Share', 'Time', 'ms a step']),
                ...numberHeads(device ? ['On the GPU', 'ms a step'] : []), head('Meaning', 'meaning')], rows);
}

function comparedPhases() {
  const cell = (phase, {phases, device_phases: device, network_wait_s: network}) => {
    if (!phases) return number('n/a');
    const onDevice = device ? `, on the GPU ${time(device[phase] || 0)}` : '';
    const ofNetwork = phase === 'wait' && network > 0 ? `, of which network ${time(network)}` : '';
    return number(percent((phases[phase] || 0) / total(phases), 1),
                  small(time(phases[phase] || 0), ofNetwork, onDevice));
  };
  const rows = data.phases.filter(phase => data.runs.some(run => (run.figures.phases || {})[phase]))
      .map(phase => row(phaseHead(phase), data.runs.map(run => cell(phase, run.figures))));
  return table('Time by phase', [head('Phase'), ...numberHeads(data.runs.map(run => run.name))], rows);
}

function phasesSection() {
  const timelines = data.runs.map((run, i) => run.figures.phases && chartFigure(
    `phases:${i}`, several ? run.name : 'Share of wall time by phase', 'over the time of the run', 'wide'));
  if (timelines.every(timeline => timeline === null)) return [];
  if (!several) return [...timelines, phaseTable(data.runs[0])];
  return [
    el('div', {style: `--rows:${data.runs.length}`},
       chartFigure('totals', 'Wall time by phase', 'of each run', 'wide', 'bars')),
    comparedPhases(), el('h3', {}, 'Share of wall time by phase, over the time of each run'),
    el('div', {class: 'charts'}, timelines)];
}

function curvesSection() {
  const figure = (chart, line) => (isKnown(line) ? [chartFigure(chart, line.title, line.detail)] : []);
  const figures = names => names.flatMap(name => figure(name, lines[name]));
  const own = [...metricLines].flatMap(([name, line]) => figure(`metric:${name}`, line));
  const learning = [...figures(['loss', 'accuracy']), ...own], speed = figures(['images_per_s', 'memory', 'lr']);
  if (!learning.length && !speed.length) return [];
  const choice = (value, text, checked) =>
      el('label', {}, el('input', {type: 'radio', name: 'axis', value, checked}), ` ${text}`);
  return [el('fieldset', {}, el('legend', {}, 'Horizontal axis'), choice('step', 'steps', ''),
             choice('epoch', 'epochs'), choice('time', 'time')),
          el('div', {class: 'charts'}, learning), el('div', {class: 'charts three'}, speed)];
}

function classTable({counted, worst}) {
  const pixels = counted === 'pixels';
  const takenFor = cells => cells.map(([name, times], i) => [i ? ', ' : '', code(name), `\u00a0${count(times)}`]);
  return table('Classes, the worst first',
    [head('Class'), ...numberHeads(pixels ? ['Pixels', 'IoU', 'Accuracy'] : [capital(unit), 'Accuracy']),
     pixels ? null : head('Most often predicted as')],
    worst.map(one => row(rowHead(one.name), number(count(one.count)), pixels ? number(decimal(one.iou, 4)) : null,
                         number(percent(one.accuracy)), pixels ? null : el('td', {}, takenFor(one.taken_for)))));
}

// Tinted by the share of the row's images; wrong ones are emphasised.
function matrixCell(times, images, right) {
  if (times === 0) return el('td', {class: 'number soft'}, '0');
  const share = times / Math.max(images, 1), tint = 60 * (right ? share : Math.sqrt(share));
  const classes = `number cell ${right ? 'right' : 'wrong'}`;
  return el('td', {class: classes, style: `--share:${tint.toFixed(0)}%`}, count(times));
}

function confusionMatrix(classes) {
  return [
    el('h3', {}, 'Confusion matrix'), soft(`A row for each class, a column for each answer, in ${unit}.`),
    table('Confusion matrix',
          [head('Class \\ answer'), ...classes.map(one => head(one.name, 'number data answer'))],
          classes.map((one, i) => row(rowHead(one.name), one.answers.map(
            (times, j) => matrixCell(times, one.count, i === j)))))];
}

function confusionTable(confusions) {
  if (!confusions.length) return [];
  const rows = confusions.map(one => row(rowHead(one.name), el('td', {class: 'data'}, one.taken_for),
                                         number(count(one.count)), number(count(one.of))));
  return [el('h3', {}, 'Most frequent confusions'),
          table('Confusions', [head('Class'), head('Predicted as'), ...numberHeads([capital(unit), 'Of its'])], rows)];
}

const classesSection = () => ofRuns(({classes: found}) => {
  if (!found || !found.worst.length) return [];
  const order = found.counted === 'pixels' ? 'the least overlap' : 'the least accurate';
  const which = found.seen > found.worst.length
    ? `The ${found.worst.length} worst of ${found.seen} classes, ${order} first` : `All classes, ${order} first`;
  return [soft(`${which}, in the evaluation after step ${found.step}.`), classTable(found),
          ...(found.matrix ? confusionMatrix(found.matrix) : confusionTable(found.confusions || []))];
});

// A GPU's streams: how long each was busy, and how long idle between its work.
function streamTable({figures: {streams}}) {
  if (!streams.length) return [];
  return [table('GPU streams', [head('Stream'), ...numberHeads(['Share busy', 'Busy', 'Idle between its work'])],
    streams.map(({stream, busy_s: busy, idle_s: idle}) => row(
      rowHead(stream), number(percent(busy + idle > 0 ? busy / (busy + idle) : null, 1)), number(time(busy)),
      number(time(idle)))))];
}

function machineSection() {
  const shown = Object.keys(lines).filter(name => lines[name].machine &&
      data.runs.some(run => (run.steps[lines[name].key] || []).some(Boolean)));
  const charts = shown.map(name => chartFigure(name, lines[name].title, lines[name].detail));
  const streams = ofRuns(streamTable);
  return [charts.length ? el('div', {class: 'charts three'}, charts) : [],
          streams.length ? el('h3', {}, 'GPU streams: busy, idle') : [], streams].flat();
}

const timelineSection = () => ofRuns(({trace}, i) => {
  if (!trace) return [];
  const skipped = trace.skipped > 0 ? `; the ${trace.skipped} shortest spans are skipped` : '';
  return [el('figure', {class: 'wide'},
    el('figcaption', {}, `${trace.steps} traced steps`,
       small('of trace.json, which ui.perfetto.dev shows whole', skipped)),
    el('div', {class: 'zoom'}),
    el('div', {class: 'plot timeline'},
       el('canvas', {'data-timeline': i, tabindex: 0, role: 'img',
                     'aria-label': 'Timeline. Plus and minus zoom, arrow keys move, Tab leaves.'})))];
});

const gallery = (kept, intro, detailOf) => kept && kept.images.length ? [
  soft(intro),
  el('ul', {class: 'gallery'}, kept.images.map(image => el('li', {},
    el('img', {alt: image.title, src: image.uri}), code(image.title),
    [detailOf(image), image.name].filter(Boolean).map(text => el('small', {class: 'data'}, text))))),
] : [];
const samplesSection = () => ofRuns(({training: kept}) =>
    gallery(kept, kept && `The first images of step ${kept.step}, as augmented.`, () => ''));
const mistakesSection = () => ofRuns(({mistakes: kept}) =>
    gallery(kept, kept && `Wrong answers with the highest loss in the evaluation after step ${kept.step}.`,
            ({predicted, probability, loss}) =>
                `predicted as ${predicted} (${(100 * probability).toFixed(0)} %), loss ${decimal(loss, 2)}`));

function rungRow(rung) {
  const interval = rung.gain_first && rung.high && rung.low > 0
    ? small(`${gain(rung.low)} to ${gain(rung.high)}`) : null;
  const cells = rung.skipped ? el('td', {colspan: 5, class: 'soft'}, `skipped: ${rung.skipped}`) : [
    number(decimal(rung.steps_per_s, 2)), number(rate(rung.images_per_s)), number(gain(rung.gain_previous)),
    number(gain(rung.gain_first), interval), number(memory(rung.memory_peak_bytes))];
  return row(rowHead(rung.name), cells, [rung.seed_figure, rung.set].map(text => el('td', {class: 'data'}, text)));
}

const laddersSection = () => data.ladders.flatMap((ladder, i) => [
  el('div', {style: `--rows:${ladder.rungs.length}`},
     chartFigure(`ladder:${i}`, ladder.title,
                 'speed of each rung, whiskers: its gain over the first with 95 % confidence', 'wide', 'bars'),
     ladder.rungs.some(rung => rung.phases) ? chartFigure(
       `rungs:${i}`, 'Where the time of each rung goes', '% of its wall time, by phase', 'wide', 'bars') : null),
  ladder.set ? soft('All rungs with ', code(ladder.set), ', unless their settings differ.') : [],
  table('Rungs', [head('Rung'),
                  ...numberHeads(['Steps/s', `${capital(unit)}/s`, 'Over previous', 'Over first', 'Memory']),
                  head('Published'), head('Settings')], ladder.rungs.map(rungRow))]);

// ---- tables of settings: columns are {title, values}, values a Map ----------------------------------

const column = (title, pairs) => ({title, values: new Map(pairs)});
// The keys of all columns: those of `order` first and in its order.
const keysOf = (columns, order) => [...new Set([...order, ...columns.flatMap(one => [...one.values.keys()])])]
    .filter(key => columns.some(one => one.values.has(key)));
const differs = (columns, key) => columns.some(one => one.values.get(key) !== columns[0].values.get(key));

// `mark`: tints rows that differ, and labels them. A narrow page shows a column's title beside its value.
function settingsTable(label, columns, keys, mark) {
  const cell = ({title, values}, key) => el('td', {class: values.get(key) ? 'data' : 'soft', 'data-of': title},
                                            values.get(key) || (values.has(key) ? 'empty' : 'absent'));
  const rows = keys.map(key => {
    const marked = mark && differs(columns, key);
    const sign = marked ? [' ', el('span', {title: 'differs', 'aria-label': 'differs'}, '≠')] : [];
    return el('tr', {class: marked ? 'differs' : undefined}, rowHead(key, sign), columns.map(one => cell(one, key)));
  });
  return table(label, [head('Key'), ...columns.map(one => head(one.title))], rows, 'keys');
}

function recipeSection() {
  const columns = data.runs.filter(run => run.recipe.length).map(run => column(run.name, run.recipe));
  if (!columns.length) return [];
  if (!several) columns.push(column('default', data.defaults));
  const keys = keysOf(columns, data.options), different = keys.filter(key => differs(columns, key));
  const counted = several ? '' : ' from their defaults, those counted that the run resolved itself';
  return [el('p', {}, `${different.length} of ${keys.length} keys differ${counted}.`),
          ...(different.length ? [settingsTable('Keys that differ', columns, different, false)] : []),
          el('details', {}, el('summary', {}, `All ${keys.length} keys`),
             settingsTable('All keys of the recipe', columns, keys, true))];
}

function hostSection() {
  const columns = data.runs.filter(run => run.host.length).map(run => column(run.name, run.host));
  if (!columns.length) return [];
  return [settingsTable('Hardware and versions', columns, keysOf(columns, []), columns.length > 1)];
}
