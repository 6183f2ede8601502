// State in the URL, answers from the server, pictures by Vega. No physics here: every number shown
// is one that the server worked out.

import { buildControls, element, showErrors } from "./controls.js";

// As vega.Error, which its bundle does not export.
const ERRORS_ONLY = 1;
const SETS = ["curve", "measured", "extent", "marks", "slos", "steps"];
const page = Object.fromEntries(
  ["controls", "brief", "fields", "editing", "sides", "compare", "theme", "source", "form-error"].map((id) => [id, document.getElementById(id)]),
);

const options = await (await fetch("/api/options")).json();
const defaults = Object.fromEntries(options.fields.map((f) => [f.name, f.default === null ? "" : String(f.default)]));
const state = readUrl(new URLSearchParams(location.search));
const sides = {};
let specs = null;

page.source.textContent = `${options.title}, law ${options.law}${options.has_runs ? ", with measured runs" : ""}`;
const rows = buildControls(page.fields, options.fields, changed);

function readUrl(query) {
  const found = { a: { ...defaults }, b: null, editing: "a" };
  if (query.has("compare")) found.b = { ...defaults };
  for (const [key, value] of query) {
    if (key === "compare") continue;
    if (!key.startsWith("b.")) found.a[key] = value;
    else if (found.b) found.b[key.slice(2)] = value;
  }
  return found;
}

function queryOf(values, prefix = "") {
  return Object.entries(values).filter(([k, v]) => v !== defaults[k]).map(([k, v]) => [prefix + k, v]);
}

function writeUrl() {
  const pairs = queryOf(state.a);
  if (state.b) pairs.push(["compare", "1"], ...queryOf(state.b, "b."));
  const query = new URLSearchParams(pairs).toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

function changed(name, value) {
  state[state.editing][name] = value;
  writeUrl();
  ask(state.editing);
}

// One request of a side at a time; while it runs only the latest wish is kept.
async function ask(key) {
  const side = sides[key];
  if (side.asking) {
    side.again = true;
    return;
  }
  side.asking = true;
  do {
    side.again = false;
    const query = new URLSearchParams(queryOf(state[key])).toString();
    const [ok, found] = await answerTo(query);
    if (sides[key] !== side) return;
    side.errors = ok ? (found.beside ?? {}) : found.errors;
    side.article.classList.toggle("stale", !ok);
    sayProblems(side, ok ? {} : found.errors);
    if (ok) await show(side, found, query);
    if (key === state.editing) {
      sayErrors();
      sayBrief();
    }
  } while (side.again);
  side.asking = false;
}

async function answerTo(query) {
  try {
    const response = await fetch(`/api/view?${query}`);
    return [response.ok, await response.json()];
  } catch {
    return [false, { errors: { "": "the server does not answer: is servefit explore still running?" } }];
  }
}

// What is wrong with a side stands in its own article, whichever the controls are of: beside an
// earlier answer, which then is stale, or in place of one, with nothing to copy or export.
function sayProblems(side, errors) {
  const labels = new Map(options.fields.map((field) => [field.name, `${field.label}: `]));
  const text = Object.entries(errors).map(([name, error]) => (labels.get(name) ?? "") + error).join("; ");
  const empty = text !== "" && side.data === null;
  side.article.classList.toggle("empty", empty);
  if (empty) side.article.querySelector(".place").textContent = placeOf(side);
  side.article.querySelector(".problems").textContent = text && `${empty ? "Nothing to show" : "Not shown"}: ${text}`;
}

function sayBrief() {
  const { article } = sides[state.editing];
  const throughput = article.querySelector("[data-figure=throughput]")?.textContent ?? "";
  const said = article.querySelector(article.classList.contains("empty") ? ".problems" : ".head").textContent;
  page.brief.textContent = [said, throughput].filter(Boolean).join(" · ");
}

function sayErrors() {
  const errors = sides[state.editing].errors ?? {};
  showErrors(rows, errors);
  const known = new Set(rows.keys());
  page["form-error"].textContent = Object.entries(errors).filter(([k]) => !known.has(k)).map(([, text]) => text).join("; ");
}

async function show(side, found, query) {
  const { article } = side;
  const part = (name) => article.querySelector(`.${name}`);
  const [head, ...rest] = found.sentence.split(": ");
  const advice = found.advice;
  article.classList.toggle("none", !advice.feasible);
  article.dataset.cap = advice.feasible ? advice.batch_cap : "";
  part("place").textContent = placeOf(side);
  part("head").textContent = head;
  part("rest").textContent = rest.join(": ");
  side.advice = advice;
  for (const each of Object.values(sides)) if (each.advice) showFigures(each);
  part("form").textContent = advice.feasible ? `${advice.settings.engine} ${advice.settings.form}` : "";
  part("text").textContent = advice.feasible ? advice.settings.text : "";
  fill(part("sentences"), found.memory ?? []);
  fill(part("warnings"), [...found.warnings, ...(advice.feasible ? advice.settings.notes : [])], "nothing");
  part("command").textContent = found.command;
  part("key").textContent = `Line: prediction. Band: ${found.interval} of a new measurement. Dots: measured. Vertical: recommended cap, knee, KV cache full.`;
  for (const link of article.querySelectorAll("[data-export]")) link.href = `/export/${link.dataset.export}?${query}`;
  showMemory(article, found.series.memory);
  side.data = found.series;
  await draw(side);
  article.dataset.answered = query;
}

function showMemory(article, parts) {
  const total = parts.reduce((sum, part) => sum + part.gib, 0);
  const marked = (name, part, properties) => {
    const made = element(name, properties);
    made.dataset.part = part.part;
    return made;
  };
  const labels = parts.map((part) => `${part.part} ${digits(part.gib)} GiB`);
  const bar = article.querySelector(".bar");
  bar.setAttribute("aria-label", labels.join(", ") || "unknown");
  bar.replaceChildren(...parts.map((part) => {
    const piece = marked("span", part, {});
    piece.style.width = `${(100 * part.gib) / total}%`;
    return piece;
  }));
  const texts = parts.map((part, i) => marked("li", part, { textContent: labels[i] }));
  article.querySelector(".parts").replaceChildren(...(texts.length ? texts : [element("li", { textContent: "unknown" })]));
}

function placeOf(side) {
  const values = state[side.key];
  const size = values.tensor_parallel_size === "1" ? "" : `${values.tensor_parallel_size} x `;
  return `${state.b ? `${side.key.toUpperCase()}: ` : ""}${values.model} on ${size}${values.gpu}`;
}

function showFigures(side) {
  const other = side.key === "b" ? sides.a.advice : null;
  const before = new Map(other?.feasible ? valuesOf(other).map(([name, , value]) => [name, value]) : []);
  const boxes = side.advice.feasible ? valuesOf(side.advice).map((entry) => figure(entry, before.get(entry[0]))) : [];
  side.article.querySelector(".figures").replaceChildren(...boxes);
}

function valuesOf(advice) {
  const found = advice.prediction;
  const entries = [
    ["throughput", "Throughput", found.total_tokens_per_s, "tokens/s"],
    ["tpot", "TPOT", found.tpot_s === null ? null : found.tpot_s * 1e3, "ms"],
    ["ttft", "TTFT", found.ttft_s === null ? null : found.ttft_s * 1e3, "ms"],
    ["e2e", "E2E", found.e2e_s, "s"],
    ["kv", "KV cache", gib(advice.kv_bytes), "GiB"],
    ["freed", "Freed", gib(advice.freed_bytes), "GiB"],
    ["replicas", "Replicas", advice.replicas?.count ?? null, ""],
  ];
  return entries.filter(([name, , value]) => name !== "replicas" || value !== null);
}

// One value, and by how much it differs from that of the other side.
function figure([name, label, value, unit], before) {
  const box = element("div");
  const shown = value === null ? "unknown" : `${digits(value)} ${unit}`.trim();
  const text = element("dd", { textContent: shown });
  text.dataset.figure = name;
  text.dataset.value = value ?? "";
  box.append(element("dt", { textContent: label }), text);
  if (before && value !== null) {
    const change = Math.round(100 * (value / before - 1));
    box.append(element("dd", { className: "change", textContent: `${change > 0 ? "+" : ""}${change} % against A` }));
  }
  return box;
}

const gib = (bytes) => (bytes === null ? null : bytes / 2 ** 30);
const digits = (value) => (value >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3)).toString());

function fill(list, texts, otherwise = "") {
  const shown = texts.length || !otherwise ? texts : [otherwise];
  list.replaceChildren(...shown.map((textContent) => element("li", { textContent })));
}

async function draw(side) {
  if (!side.views) {
    side.views = {};
    for (const place of side.article.querySelectorAll(".chart")) {
      const spec = { ...specs[place.dataset.chart], datasets: side.data };
      const found = await vegaEmbed(place, spec, { actions: false, ast: true, renderer: "svg", logLevel: ERRORS_ONLY, tooltip: { theme: document.documentElement.dataset.theme } });
      side.views[place.dataset.chart] = found.view;
    }
    return;
  }
  for (const view of Object.values(side.views)) {
    for (const name of SETS) if (holds(view, name)) view.data(name, side.data[name]);
  }
  await Promise.all(Object.values(side.views).map((view) => view.runAsync()));
}

function holds(view, name) {
  try {
    view.data(name);
    return true;
  } catch {
    return false;
  }
}

function addSide(key) {
  const article = document.getElementById("side").content.firstElementChild.cloneNode(true);
  article.id = `side-${key}`;
  page.sides.append(article);
  const side = { key, article, views: null, asking: false, again: false, errors: {}, data: null };
  sides[key] = side;
  article.querySelector(".copy").addEventListener("click", async (event) => {
    await navigator.clipboard.writeText(article.querySelector(".text").textContent);
    event.target.textContent = "Copied";
    setTimeout(() => { event.target.textContent = "Copy"; }, 1500);
  });
  return ask(key);
}

function dropViews(side) {
  for (const view of Object.values(side.views ?? {})) view.finalize();
  side.views = null;
}

function showControls() {
  const values = state[state.editing];
  for (const [name, row] of rows) row.set(values[name]);
  for (const radio of page.editing.querySelectorAll("input")) radio.checked = radio.value === state.editing;
  sayErrors();
  sayBrief();
}

function layOut() {
  const two = state.b !== null;
  page.sides.classList.toggle("two", two);
  page.editing.hidden = !two;
  page.compare.setAttribute("aria-pressed", String(two));
}

page.controls.addEventListener("submit", (event) => event.preventDefault());
page.editing.addEventListener("change", (event) => {
  state.editing = event.target.value;
  showControls();
});
page.compare.addEventListener("click", async () => {
  if (state.b) {
    dropViews(sides.b);
    sides.b.article.remove();
    delete sides.b;
    state.b = null;
    state.editing = "a";
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
  sides.a.article.querySelector(".place").textContent = placeOf(sides.a);
  window.dispatchEvent(new Event("resize"));
});

async function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  page.theme.textContent = theme === "dark" ? "Light" : "Dark";
  specs = await (await fetch(`/api/charts?theme=${theme}`)).json();
  for (const side of Object.values(sides)) {
    dropViews(side);
    if (side.data) await draw(side);
  }
}
page.theme.addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("servefit-theme", theme);
  useTheme(theme);
});

await useTheme(localStorage.getItem("servefit-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
layOut();
addSide("a");
if (state.b) addSide("b");
showControls();
