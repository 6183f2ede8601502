// State in the URL, questions to the server, two sides. No physics here.

import { Side } from "./answer.js";
import { buildControls, showCounting, showErrors, showValues } from "./controls.js";

const page = Object.fromEntries(
  ["notice", "controls", "brief", "fields", "editing", "sides", "compare", "theme", "source"].map((id) => [id, document.getElementById(id)]),
);
const options = await (await fetch("/api/options")).json();
const defaults = Object.fromEntries(options.fields.map((f) => [f.name, f.default === null ? "" : String(f.default)]));
const labels = new Map(options.fields.map((field) => [field.name, `${field.label}: `]));
// Of the URL, that are no controls: they are neither sent nor written again.
const dropped = new Set();
const state = readUrl(new URLSearchParams(location.search));
const sides = {};
// How long the latest change took to be drawn, among the browser's performance measures.
const UPDATE = "from input to drawn";
// The URL follows a drag by so much.
const URL_EVERY_MS = 300;
let urlTimer = null;
// Of each theme, once asked for.
const specs = new Map();

page.source.textContent = `${options.title}, law ${options.law}${options.has_runs ? ", with measured runs" : ""}`;
const controls = buildControls(page.fields, options.fields, options.folded, changed);

function readUrl(query) {
  const found = { a: { ...defaults }, b: null, editing: "a" };
  if (query.has("compare")) found.b = { ...defaults };
  for (const [key, value] of query) {
    if (key === "compare" || key === "calibration") continue;
    const [of, name] = key.startsWith("b.") ? [found.b, key.slice(2)] : [found.a, key];
    if (!Object.hasOwn(defaults, name)) dropped.add(key);
    else if (of) of[name] = value;
  }
  return found;
}

// Names what differs from its default, and what has another default with another calibration.
function queryOf(values, prefix = "") {
  return Object.entries(values)
    .filter(([k, v]) => v !== defaults[k] || options.always.includes(k))
    .map(([k, v]) => [prefix + k, v]);
}

function urlQuery() {
  const pairs = queryOf(state.a);
  if (state.b) pairs.push(["compare", "1"], ...queryOf(state.b, "b."));
  return new URLSearchParams([...pairs, ["calibration", options.calibration]]).toString();
}

// Browsers take so many in so many seconds and refuse more: then the view still works.
function writeUrl() {
  clearTimeout(urlTimer);
  urlTimer = null;
  try {
    history.replaceState(null, "", `?${urlQuery()}`);
  } catch (error) {
    console.warn(`the URL could not be written: ${error.message}`);
  }
}

function writeUrlSoon() {
  urlTimer ??= setTimeout(writeUrl, URL_EVERY_MS);
}

function writeUrlNow() {
  if (urlTimer !== null) writeUrl();
}

// What of the URL is not as it says. It stays as it was sent until something is changed.
function sayNotices(named) {
  const notices = [];
  if (named !== null && named !== options.calibration) {
    notices.push(`This view was made with another calibration (${named.slice(0, 40)}; this one is ${options.calibration}): the same question may have another answer here.`);
  }
  if (dropped.size) {
    const names = [...dropped].map((key) => key.slice(0, 40));
    const more = names.length > 5 ? ` and ${names.length - 5} more` : "";
    notices.push(`No control is named ${names.slice(0, 5).join(", ")}${more}: left out.`);
  }
  page.notice.textContent = notices.join(" ");
  page.notice.hidden = notices.length === 0;
  return notices.length > 0;
}

// A browser may keep nothing, and says so by an error.
function storedTheme() {
  try {
    return localStorage.getItem("servefit-theme");
  } catch {
    return null;
  }
}

function storeTheme(theme) {
  try {
    localStorage.setItem("servefit-theme", theme);
  } catch {
    console.info("the browser keeps no theme for the next time");
  }
}

function changed(name, value) {
  const values = state[state.editing];
  values[name] = value;
  sides[state.editing].touched = { name, value, at: performance.now() };
  delete sides[state.editing].article.dataset.asked;
  showCounting(controls, values);
  ask(state.editing);
  writeUrlSoon();
}

// One request of a side at a time; while it runs only the latest wish is kept.
async function ask(key) {
  const side = sides[key];
  if (side.asking) {
    side.again = true;
    return;
  }
  side.asking = true;
  try {
    do {
      side.again = false;
      await answer(side);
    } while (side.again && sides[key] === side);
  } finally {
    side.asking = false;
  }
}

async function answer(side) {
  const query = new URLSearchParams(queryOf(state[side.key])).toString();
  const url = urlQuery();
  const since = side.touched?.at;
  const [ok, found] = await answerTo(query);
  if (sides[side.key] !== side) return;
  side.errors = ok ? blamed(side, found) : found.errors;
  sayPlace(side);
  side.sayProblems(ok ? "" : problemsOf(found.errors));
  if (ok) {
    side.show(found, query);
    showFigures();
    await drawAll();
    if (since !== undefined) {
      performance.clearMeasures(UPDATE);
      performance.measure(UPDATE, { start: since });
    }
    side.article.dataset.answered = query;
  }
  if (!side.again) side.article.dataset.asked = url;
  if (side.key === state.editing) sayResult();
}

function drawAll() {
  return Promise.all(Object.values(sides).filter((side) => side.data).map(draw));
}

// What cannot be drawn is said; the next answer is drawn anew.
async function draw(side) {
  try {
    const specs = await specsNow();
    await side.draw(specs, comparable(side.data));
  } catch (error) {
    side.sayUndrawn(`the charts could not be drawn (${error.message}): reload the page`);
  }
}

// The axes of two configurations span what either shows.
function comparable(data) {
  const extent = Object.values(sides).flatMap((side) => side.data?.extent ?? []);
  return { ...data, extent: extent.map((row) => ({ ...row })) };
}

// Those of the theme that the page has once they are there.
async function specsNow() {
  const { theme } = document.documentElement.dataset;
  if (!specs.has(theme)) specs.set(theme, chartsOf(theme));
  const found = await specs.get(theme).catch((error) => {
    specs.delete(theme);
    throw error;
  });
  return theme === document.documentElement.dataset.theme ? found : specsNow();
}

async function chartsOf(theme) {
  const response = await fetch(`/api/charts?theme=${theme}`);
  if (!response.ok) throw new Error(`the server answers ${response.status}`);
  return response.json();
}

async function answerTo(query) {
  let response = null;
  try {
    response = await fetch(`/api/view?${query}`);
    return [response.ok, await response.json()];
  } catch {
    const why = response ? `the server refuses this (status ${response.status})` : "the server does not answer: is servefit explore still running?";
    return [false, { errors: { "": why } }];
  }
}

// What leaves no cap is said beside the control whose change left none; where that is not known, as
// in a URL just opened, beside the one that the server names.
function blamed(side, found) {
  const beside = found.beside ?? {};
  const { feasible, constraint } = found.advice;
  if (feasible) side.culprit = null;
  else if (side.advice?.feasible) side.culprit = { ...side.touched, constraint };
  else if (side.culprit?.constraint !== constraint) side.culprit = null;
  const { name, value } = side.culprit ?? {};
  if (!found.beside || value === undefined || state[side.key][name] !== value) return beside;
  return { [name]: Object.values(beside)[0] };
}

function sayResult() {
  const side = sides[state.editing];
  showErrors(controls, side.errors);
  showCounting(controls, state[state.editing]);
  const mistakes = problemsOf(side.errors);
  page.brief.firstElementChild.textContent = mistakes || side.brief();
  page.brief.classList.toggle("error", mistakes !== "");
}

function problemsOf(errors) {
  return Object.entries(errors).map(([name, error]) => (labels.get(name) ?? "") + error).join("; ");
}

function sayPlace(side) {
  const values = state[side.key];
  const size = values.tensor_parallel_size === "1" ? "" : `${values.tensor_parallel_size} x `;
  const text = `${state.b ? `${side.key.toUpperCase()}: ` : ""}${values.model} on ${size}${values.gpu}`;
  side.part("place").textContent = text;
  side.part("place").title = text;
}

function showFigures() {
  for (const side of Object.values(sides)) {
    side.showFigures(state.b !== null, side.key === "b" ? sides.a.advice : null);
  }
}

function addSide(key) {
  const side = new Side(key, options.has_runs);
  sides[key] = side;
  page.sides.append(side.article);
  sayPlace(side);
  showFigures();
  return ask(key);
}

function showControls() {
  const values = state[state.editing];
  showValues(controls, values, defaults);
  for (const radio of page.editing.querySelectorAll("input")) radio.checked = radio.value === state.editing;
  sayResult();
}

function layOut() {
  const two = state.b !== null;
  page.sides.classList.toggle("two", two);
  page.editing.hidden = !two;
  page.compare.setAttribute("aria-pressed", String(two));
}

page.controls.addEventListener("submit", (event) => event.preventDefault());
page.controls.addEventListener("change", writeUrlNow);
addEventListener("pagehide", writeUrlNow);
page.editing.addEventListener("change", (event) => {
  state.editing = event.target.value;
  showControls();
});
page.compare.addEventListener("click", () => {
  if (state.b) {
    sides.b.close();
    delete sides.b;
    state.b = null;
    state.editing = "a";
    drawAll();
  } else {
    state.b = { ...state.a };
  }
  writeUrl();
  layOut();
  if (state.b) {
    state.editing = "b";
    addSide("b");
  }
  showControls();
  showFigures();
  sayPlace(sides.a);
  window.dispatchEvent(new Event("resize"));
});

function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  page.theme.textContent = theme === "dark" ? "Light" : "Dark";
  drawAll();
}
page.theme.addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  storeTheme(theme);
  useTheme(theme);
});

useTheme(storedTheme() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
if (!sayNotices(new URLSearchParams(location.search).get("calibration"))) writeUrl();
layOut();
addSide("a");
if (state.b) addSide("b");
showControls();
