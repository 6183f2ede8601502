// One configuration's answer, shown in its article. Every number is one that the server worked out.

import { Charts } from "./charts.js";
import { element } from "./controls.js";

export class Side {
  constructor(key, hasRuns) {
    this.key = key;
    this.advice = null;
    this.data = null;
    this.errors = {};
    this.article = document.getElementById("side").content.firstElementChild.cloneNode(true);
    this.article.id = `side-${key}`;
    if (!hasRuns) this.article.querySelectorAll(".key :is(.dot, .ring)").forEach((item) => item.remove());
    const copy = this.part("copy");
    copy.addEventListener("click", async () => {
      copy.textContent = await copied(this.part("text")) ? "Copied" : "Ctrl+C";
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
  }

  part(name) {
    return this.article.querySelector(`.${name}`);
  }

  show(found, query) {
    const [head, ...rest] = found.sentence.split(": ");
    const advice = found.advice;
    this.advice = advice;
    this.data = found.series;
    this.article.classList.toggle("none", !advice.feasible);
    this.part("head").textContent = head;
    this.part("rest").textContent = rest.join(": ");
    this.part("form").textContent = advice.feasible ? `${advice.settings.engine} ${advice.settings.form} to paste` : "no settings";
    this.part("text").textContent = advice.feasible ? advice.settings.text : "";
    this.part("copy").disabled = !advice.feasible;
    fill(this.part("sentences"), found.memory ?? []);
    fill(this.part("warnings"), [...found.warnings, ...(advice.feasible ? advice.settings.notes : [])], "nothing");
    this.part("command").textContent = found.command;
    this.part("interval").textContent = found.interval;
    this.part("dot")?.classList.toggle("absent", !found.series.measured.some((run) => run.fitted));
    this.part("ring")?.classList.toggle("absent", found.series.measured.every((run) => run.fitted));
    this.showMemory();
    this.link(query);
  }

  // Where the view is exported; nothing is to be had where it could not be worked out.
  link(query) {
    for (const link of this.article.querySelectorAll("[data-export]")) {
      if (query === null) link.removeAttribute("href");
      else link.href = `/export/${link.dataset.export}?${query}`;
    }
  }

  // Beside an earlier answer, which then is stale, or in place of one, with nothing to copy.
  sayProblems(text) {
    const empty = text !== "" && this.data === null;
    this.article.classList.toggle("stale", text !== "");
    this.article.classList.toggle("empty", empty);
    this.part("problems").textContent = text && `${empty ? "Nothing to show" : "Not shown"}: ${text}`;
    if (text) this.link(null);
  }

  // Beside an answer that holds.
  sayUndrawn(text) {
    this.part("problems").textContent = text;
  }

  brief() {
    if (this.article.classList.contains("empty")) return this.part("problems").textContent;
    const named = (name) => this.article.querySelector(`[data-figure=${name}]`);
    const values = ["throughput", "tpot"].map((name) => named(name)).filter((value) => value?.dataset.value);
    return [this.part("head").textContent, ...values.map((value) => value.textContent)].join(" · ");
  }

  showMemory() {
    const parts = this.data.memory;
    const total = parts.reduce((sum, part) => sum + part.gib, 0);
    const made = (name, part) => {
      const item = element(name);
      item.dataset.part = part.part;
      return item;
    };
    const bar = this.part("bar");
    bar.setAttribute("aria-label", parts.map((part) => `${part.part} ${digits(part.gib)} GiB`).join(", ") || "unknown");
    bar.replaceChildren(...parts.map((part) => {
      const piece = made("span", part);
      piece.style.width = `${(100 * part.gib) / total}%`;
      return piece;
    }));
    const rows = parts.map((part) => {
      const item = made("li", part);
      item.append(`${part.part} `, element("b", { textContent: `${digits(part.gib)} GiB` }));
      return item;
    });
    this.part("parts").replaceChildren(...(rows.length ? rows : [element("li", { textContent: "unknown" })]));
  }

  // The same boxes whatever is known, and before anything is; where two are compared, with room for the change against A.
  showFigures(compared, other) {
    const before = new Map(other?.feasible ? valuesOf(other).map(([name, , value]) => [name, value]) : []);
    this.part("figures").replaceChildren(...valuesOf(this.advice ?? {}).map((entry) => figure(entry, compared, before.get(entry[0]))));
  }

  // Said until it can be drawn: what the curves show is of an earlier answer, or nothing.
  async draw(specs, data) {
    const places = this.article.querySelectorAll(".chart");
    this.charts ??= new Charts(places);
    try {
      await this.charts.draw(specs, data);
      for (const place of places) this.describe(place);
      this.article.classList.remove("undrawn");
    } catch (error) {
      this.article.classList.add("undrawn");
      for (const place of places) place.replaceChildren();
      throw error;
    }
  }

  // For those who do not see it: what a picture shows, and its values at the cap. Its own parts,
  // a symbol a point, are no help to them.
  describe(place) {
    const name = place.dataset.chart;
    const { prediction, batch_cap: cap } = this.advice;
    const title = place.closest("figure").querySelector("figcaption").textContent;
    const known = valuesOf(this.advice).filter(([key, , value]) => key === name && value !== null);
    const texts = known.map(([, , value, unit]) => `${digits(value)} ${unit}`);
    if (name === "steps" && prediction) {
      const { batch } = this.data.curve.find((row) => row.cap === cap);
      const causes = this.data.steps.filter((row) => row.batch === batch && row.ms !== null);
      texts.push(...causes.map((row) => `${row.cause} ${digits(row.ms)} ms`));
    }
    const values = prediction ? `at batch cap ${cap}: ${texts.join(", ") || "unknown"}` : "no batch cap is feasible";
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${title} against the batch; ${values}`);
    for (const inside of place.children) inside.setAttribute("aria-hidden", "true");
  }

  close() {
    this.charts?.close();
    this.article.remove();
  }
}

// A page that is not of this machine has no clipboard without https: then the text is selected.
async function copied(place) {
  try {
    await navigator.clipboard.writeText(place.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(place);
    return false;
  }
}

function valuesOf(advice) {
  const found = advice.prediction ?? {};
  const gib = (bytes) => (bytes ?? null) === null ? null : bytes / 2 ** 30;
  const ms = (seconds) => (seconds ?? null) === null ? null : seconds * 1e3;
  return [
    ["throughput", "Throughput", found.total_tokens_per_s ?? null, "tokens/s"],
    ["tpot", "TPOT", ms(found.tpot_s), "ms"],
    ["ttft", "TTFT", ms(found.ttft_s), "ms"],
    ["e2e", "E2E", found.e2e_s ?? null, "s"],
    ["kv", "KV cache", gib(advice.kv_bytes), "GiB"],
    ["freed", "Freed", gib(advice.freed_bytes), "GiB"],
    ["replicas", "Replicas", advice.replicas?.count ?? null, ""],
  ];
}

function figure([name, label, value, unit], compared, before) {
  const box = element("div");
  const text = element("dd");
  text.dataset.figure = name;
  text.dataset.value = value ?? "";
  text.append(value === null ? "–" : digits(value));
  if (value !== null && unit) text.append(" ", element("small", { textContent: unit }));
  box.append(element("dt", { textContent: label }), text);
  if (compared) {
    const change = Math.round(100 * (value / before - 1));
    const known = value !== null && before && Number.isFinite(change);
    box.append(element("dd", { className: "change", textContent: known ? `${change > 0 ? "+" : ""}${change} % against A` : "" }));
  }
  return box;
}

const digits = (value) => (value >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3)).toString());

function fill(list, texts, otherwise = "") {
  const shown = texts.length || !otherwise ? texts : [otherwise];
  list.replaceChildren(...shown.map((textContent) => element("li", { textContent })));
}
