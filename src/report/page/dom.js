// Elements, numbers as text, and tables. Text of a run reaches the page as text nodes and attributes only.
const data = JSON.parse(document.getElementById('report-data').textContent);
const several = data.runs.length > 1;
const announce = document.getElementById('announce');
// A page with a run or ladder of tables, texts or volumes calls all samples so.
const unit = [...data.runs, ...data.ladders].every(one => one.unit === 'images') ? 'images' : 'samples';
const aUnit = unit === 'images' ? 'an image' : 'a sample';
const capital = text => text[0].toUpperCase() + text.slice(1);

// Undefined attributes are skipped. Children: nodes, texts, lists of either; null is skipped.
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== undefined) element.setAttribute(name, value);
  element.append(...children.flat(Infinity).filter(child => child !== null));
  return element;
}

const gap = '\u202f';  // a narrow space that does not break
const orUnknown = format => (value, ...more) => value === null || value === undefined ? 'n/a' : format(value, ...more);
const digits = (value, most) => value.toLocaleString('en-US', {maximumFractionDigits: most});
const general = (value, figures) => String(Number(value.toPrecision(figures)));
const significant = value => Math.abs(value) >= 1000 ? digits(value, 0) : general(value, 4);
const signed = (value, decimals) => (value < 0 ? '' : '+') + value.toFixed(decimals);
const percent = orUnknown((share, decimals = 2) => `${(share * 100).toFixed(decimals)}${gap}%`);
const decimal = orUnknown((value, decimals) => Math.abs(value) < 1e6 ? value.toFixed(decimals) : value.toPrecision(4));
const count = orUnknown(value => digits(value, 0));
const memory = orUnknown(bytes => `${(bytes / 2 ** 30).toFixed(2)}${gap}GiB`);
const rate = orUnknown(value => `${value < 10 ? value.toFixed(2) : count(value)}${gap}${unit}/s`);
const gain = value => value === null ? '' : `${signed(100 * (value - 1), 1)}${gap}%`;
// "42 s", "4 min 05 s", "2 h 03 min".
const time = orUnknown(seconds => {
  const whole = Math.round(seconds), two = value => String(value % 60).padStart(2, '0');
  if (seconds < 9.95) return `${seconds.toFixed(1)}${gap}s`;
  if (whole < 60) return `${whole}${gap}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}${gap}min ${two(whole)}${gap}s`;
  const minutes = Math.round(seconds / 60);
  return `${Math.floor(minutes / 60)}${gap}h ${two(minutes)}${gap}min`;
});

const total = phases => Object.values(phases).reduce((sum, seconds) => sum + seconds, 0);
const share = (run, ...phases) => run.figures.phases &&
    phases.reduce((sum, phase) => sum + (run.figures.phases[phase] || 0), 0) / total(run.figures.phases);
const computing = run => share(run, 'forward', 'backward', 'optimizer');
const waiting = run => share(run, 'wait');

const code = text => el('span', {class: 'data'}, text);
const small = (...text) => el('small', {}, ...text);
const soft = (...text) => el('p', {class: 'soft'}, ...text);
const swatch = colour => el('span', {class: 'swatch', style: `background:var(--${colour})`});
const head = (title, classes) => el('th', {scope: 'col', class: classes}, title);
const numberHeads = titles => titles.map(title => head(title, 'number'));
const rowHead = (...title) => el('th', {scope: 'row', class: 'data'}, ...title);
const number = (...content) => el('td', {class: 'number'}, ...content);
const row = (...cells) => el('tr', {}, ...cells);
const table = (label, heads, rows, classes) =>
    el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label},
       el('table', {class: classes}, el('thead', {}, row(heads)), el('tbody', {}, rows)));

// The parts of each run that has any, under its name if there are several runs.
const ofRuns = partsOf => data.runs.flatMap((run, i) => {
  const parts = partsOf(run, i);
  return several && parts.length ? [el('h3', {}, run.name), ...parts] : parts;
});

const chartFigure = (chart, title, detail, classes, plotClasses = '') =>
    el('figure', {class: classes}, el('figcaption', {}, title, small(detail)), el('div', {class: 'legend'}),
       el('div', {class: `plot ${plotClasses}`},
          el('canvas', {'data-chart': chart, tabindex: 0, role: 'img',
                        'aria-label': `${title}. Arrow keys read the values.`})));
