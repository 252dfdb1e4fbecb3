// Builds the page of a report, then draws its charts.
// A part that fails is omitted with a note (page.html), and the others are shown.
function attempt(make, otherwise) {
  try {
    return make();
  } catch (error) {
    reportError(error);
    return otherwise;
  }
}

function build() {
  document.title = [...data.runs.map(run => run.name), ...data.ladders.map(ladder => ladder.title)].join(' · ');
  const sections = [
    ['time', 'Where the time went', phasesSection],
    ['curves', 'Learning and speed', curvesSection],
    ['classes', 'Class by class', classesSection],
    ['machine', 'The machine', machineSection],
    ['timeline', 'A few steps', timelineSection],
    ['samples', 'Training samples', samplesSection],
    ['mistakes', 'Worst mistakes', mistakesSection],
    ['ladders', 'Ladders and sweeps', laddersSection],
    ['recipe', 'Recipe', recipeSection],
    ['host', 'Hardware and versions', hostSection],
  ].map(([id, title, make]) => ({id, title, parts: attempt(make, [])})).filter(({parts}) => parts.length);
  const links = sections.map(({id, title}) => el('li', {}, el('a', {href: `#${id}`}, title)));
  document.querySelector('.skip').after(
    el('header', {}, attempt(headSection, []), el('nav', {'aria-label': 'Contents'}, el('ul', {}, links))),
    el('main', {id: 'main'}, attempt(figuresSection, []),
       sections.map(({id, title, parts}) => el('section', {id}, el('h2', {}, title), parts))));
}

function start() {
  build();
  for (const canvas of document.querySelectorAll('canvas[data-chart]'))
    canvas.addEventListener('keydown', onKey);
  for (const choice of document.querySelectorAll('input[name="axis"]'))
    choice.addEventListener('change', () => { axis = choice.value; draw(); });
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  for (const canvas of document.querySelectorAll('canvas[data-timeline]'))
    attempt(() => timelines.push(new Timeline(canvas, data.runs[Number(canvas.dataset.timeline)].trace)));
  draw();
}

start();
