// The head of a report: what was run, how it ended, and the key figures.
const setting = (run, key) => (run.recipe.find(([name]) => name === key) || [])[1];
const plannedEpochs = run => Number.parseFloat(setting(run, 'train.epochs')) || 0;
// Runs of a fraction of an epoch are rounded up to whole steps.
const isEarly = run => run.figures.epochs < plannedEpochs(run) - 1e-9;

function epochs(run) {
  const done = general(run.figures.epochs, 4);
  return isEarly(run) ? `${done} of ${general(plannedEpochs(run), 6)} epochs` : `${done} epochs`;
}

function stateBadge(run) {
  const [text, classes] = {
    running: ['still running', ' running'], stopped: ['stopped without an end', ' stopped'],
    ended: run.ended_by ? ['ended', ' stopped'] : isEarly(run) ? ['ended early', ' stopped'] : ['finished', ''],
  }[run.state];
  return el('span', {class: `state${classes}`}, text);
}

// "resnet9 on tar:photos, 15 epochs".
function subject(run) {
  const model = setting(run, 'model.name'), source = setting(run, 'data.source');
  return [model === undefined ? [] : [code(model), ' '], source === undefined ? [] : ['on ', code(source), ', '],
          `${epochs(run)} `, stateBadge(run), run.ended_by ? [' by ', code(run.ended_by)] : []];
}

function headSection() {
  const lead = (...parts) => el('p', {class: 'lead'}, ...parts);
  const titles = several
    ? [el('h1', {}, `${data.runs.length} runs compared`),
       ...data.runs.map((run, i) => lead(swatch(`run-${i % 8}`), ' ', el('strong', {class: 'data'}, run.name), ' ',
                                         subject(run)))]
    : data.runs.length ? [el('h1', {}, data.runs[0].name), lead(subject(data.runs[0]))]
    : [el('h1', {}, data.ladders[0].title)];
  const warnings = data.runs.flatMap(run => run.warnings.map(
    text => el('li', {}, several ? `${run.name}: ${text}` : text)));
  const note = el('div', {class: 'note', role: 'note'}, el('strong', {}, 'Not everything could be read'),
                  el('ul', {}, warnings));
  return [el('p', {class: 'brand'}, 'saturate · run report'), ...titles, warnings.length ? note : null];
}

// Units, which follow a narrow space, are set in smaller type.
function card(title, value, detail) {
  const parts = value.split(/(\u202f\S+)/).map((part, i) => i % 2 ? el('span', {class: 'unit'}, part) : part);
  return el('div', {}, el('dt', {}, title), el('dd', {class: 'value'}, parts), el('dd', {class: 'detail'}, detail));
}

function accuracyDetail(figures) {
  let detail = `loss ${decimal(figures.loss, 4)}`;
  if (figures.mean_iou !== null) detail += `, mean IoU ${decimal(figures.mean_iou, 4)}`;
  if (figures.accuracy5 !== null) detail += `, top-5 ${percent(figures.accuracy5)}`;
  if (figures.best_accuracy !== null && figures.best_accuracy > figures.accuracy)
    detail += `, best ${percent(figures.best_accuracy)}`;
  return detail;
}

function learningCard(figures) {
  const part = figures.held_out ? 'held out' : 'training';
  if (figures.accuracy !== null || !figures.values.length)
    return card(`Accuracy, ${part}`, percent(figures.accuracy), accuracyDetail(figures));
  const [[name, value], ...others] = figures.values;
  const text = ([key, each]) => `${key} ${decimal(each, 4)}`;
  return card(`${name}, ${part}`, decimal(value, 4), [['loss', figures.loss], ...others].map(text).join(', '));
}

// Unknown values have no card.
function telemetryCards(found) {
  const known = key => (found[key] ?? null) !== null;
  return [
    known('cores') ? card('Cores in use', decimal(found.cores, 2), 'mean of the run') : null,
    known('tflop_per_s') ? card('Computed', `${decimal(found.tflop_per_s, 2)}${gap}TFLOP/s`,
                                `${percent(found.peak_share, 1)} of the device's peak`) : null,
    known('gpu_busy') ? card('GPU busy', percent(found.gpu_busy, 0), found.throttle_reasons
        ? `throttled by ${found.throttle_reasons}` : 'clocks were not throttled') : null,
    known('joules_per_sample') ? card('Energy', `${decimal(found.joules_per_sample, 3)}${gap}J`,
                                      `of the GPU, ${aUnit}`) : null,
  ];
}

function cards(run) {
  const {figures} = run;
  return el('dl', {class: 'cards'},
    learningCard(figures),
    card(run.state === 'ended' ? 'Time to train' : 'Time so far', time(figures.time_s),
         `${epochs(run)}, ${count(figures.steps)} steps`),
    card('Throughput', rate(figures.images_per_s), 'in training'),
    figures.phases ? [card('Computing', percent(computing(run), 1), 'forward, backward, optimizer'),
                      card('Waiting for input', percent(waiting(run), 1), 'of the wall time')] : null,
    figures.memory_peak_bytes === null ? null
      : card('Peak memory', memory(figures.memory_peak_bytes), 'of the process'),
    telemetryCards(figures.telemetry || {}));
}

const valueNamed = (run, name) => (run.figures.values.find(([key]) => key === name) || [])[1] ?? null;

// Title, value, its text, and whether differences are percentage points, not percent of the first.
function comparedFigures() {
  const figure = (title, key, format, inPoints = false) => [title, run => run.figures[key], format, inPoints];
  const machine = (title, key, format, inPoints = false) =>
      [title, run => (run.figures.telemetry || {})[key] ?? null, format, inPoints];
  const coarse = value => percent(value, 1), fine = value => decimal(value, 4), plain = value => decimal(value, 2);
  return [
    figure('Accuracy', 'accuracy', percent, true),
    figure('Top-5 accuracy', 'accuracy5', percent, true),
    figure('Mean IoU', 'mean_iou', fine),
    figure('Best accuracy', 'best_accuracy', percent, true),
    ...named.map(name => [name, run => valueNamed(run, name), fine, false]),
    figure('Loss', 'loss', fine),
    figure('Time', 'time_s', time),
    figure('Steps', 'steps', count),
    figure('Throughput in training', 'images_per_s', rate),
    ['Computing', computing, coarse, true],
    ['Waiting for input', waiting, coarse, true],
    figure('Peak memory', 'memory_peak_bytes', memory),
    machine('Cores in use', 'cores', plain),
    machine('TFLOP/s', 'tflop_per_s', plain),
    machine('GPU busy', 'gpu_busy', coarse, true),
    machine(`Joules ${aUnit}`, 'joules_per_sample', fine),
  ];
}

function difference(from, to, inPoints) {
  if (from === null || to === null) return null;
  if (from === to) return small('the same');
  if (inPoints) return small(`${signed((to - from) * 100, 2)} points`);
  return from === 0 ? null : small(gain(to / from));
}

function differenceTable() {
  const rows = comparedFigures().map(([title, valueOf, format, inPoints]) => {
    const values = data.runs.map(valueOf);
    if (values.every(value => value === null)) return null;
    return row(el('th', {scope: 'row'}, title), values.map((value, i) =>
        number(format(value), i === 0 ? null : difference(values[0], value, inPoints))));
  });
  return [table('Figures of all runs', [head('Figure'), ...numberHeads(data.runs.map(run => run.name))], rows),
          soft(small('Accuracy and loss are those of the last evaluation, or of the best weights if a run ended with ' +
                     'them, or of training in a run without evaluations. ' +
                     'Differences are to the first run.'))];
}

function figuresSection() {
  if (!data.runs.length) return [];
  if (several) return differenceTable();
  const [run] = data.runs, {phases} = run.figures;
  if (!run.steps.step && !run.evaluations.step)
    return [el('p', {class: 'note'}, 'The run has recorded no step yet.')];
  const verdict = phases && el('p', {class: 'verdict'},
    `Of ${time(total(phases))}, ${percent(computing(run), 1)} went into forward, backward and optimizer, ` +
    `${percent(share(run, 'evaluation'), 1)} into evaluation, and ${percent(waiting(run), 1)} were spent ` +
    'waiting for input.');
  return [verdict, cards(run)];
}
