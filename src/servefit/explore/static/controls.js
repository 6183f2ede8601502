// The form: built from the fields that the server describes. Values travel as text.

const STEPS = 1000;

export function buildControls(place, fields, changed) {
  const rows = new Map();
  let group = null;
  let box = null;
  for (const field of fields) {
    if (field.group !== group) {
      group = field.group;
      box = element("fieldset");
      box.append(element("legend", { textContent: group }));
      place.append(box);
    }
    const row = field.kind === "choice" ? choice(field, changed) : number(field, changed);
    rows.set(field.name, row);
    box.append(row.element);
  }
  return rows;
}

export function showErrors(rows, errors) {
  for (const [name, row] of rows) row.say(errors[name] ?? "");
}

function choice(field, changed) {
  const select = element("select", { id: `f-${field.name}` });
  for (const [value, label] of field.choices) select.append(element("option", { value, textContent: label }));
  select.addEventListener("change", () => changed(field.name, select.value));
  return row(field, [select], select, (text) => {
    select.value = text;
    if (select.value === text) return;
    // What the server does not offer is shown as it was asked, with the server's error beside it.
    select.append(element("option", { value: text, textContent: text }));
    select.value = text;
  });
}

function number(field, changed) {
  const box = element("input", { type: "text", inputMode: "decimal", id: `f-${field.name}` });
  const parts = [box];
  let range = null;
  box.addEventListener("input", () => {
    place(box.value);
    changed(field.name, box.value.trim());
  });
  if (!field.optional) {
    range = element("input", { type: "range", min: 0, max: STEPS, step: 1 });
    range.setAttribute("aria-label", `${field.label}, slider`);
    range.addEventListener("input", () => {
      box.value = String(fromSlider(field, Number(range.value)));
      changed(field.name, box.value);
    });
    // Arrow keys move by the field's own step, whatever the slider's resolution.
    range.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const now = Number(box.value);
      const value = field.log ? rounded(field, now * 1.02 ** by + by * field.step) : rounded(field, now + by * field.step);
      box.value = String(value);
      place(box.value);
      changed(field.name, box.value);
    });
    parts.unshift(range);
  }
  function place(text) {
    if (range) range.value = String(toSlider(field, Number(text)));
  }
  return row(field, parts, box, (text) => {
    box.value = text;
    place(text);
  });
}

function row(field, inputs, main, set) {
  const hint = element("p", { className: "hint", id: `h-${field.name}` });
  const usual = [field.unit, field.hint].filter(Boolean).join(", ");
  hint.textContent = usual;
  main.setAttribute("aria-describedby", hint.id);
  const holder = element("div", { className: "inputs" });
  holder.append(...inputs);
  const whole = element("div", { className: "field" });
  whole.dataset.field = field.name;
  if (field.kind === "choice" && field.choices.some(([, label]) => label.length > 24)) whole.classList.add("long");
  whole.append(element("label", { htmlFor: main.id, textContent: field.label }), holder, hint);
  return {
    element: whole,
    set,
    say(error) {
      whole.classList.toggle("bad", Boolean(error));
      main.setAttribute("aria-invalid", String(Boolean(error)));
      hint.textContent = error || usual;
    },
  };
}

function fromSlider(field, at) {
  const share = at / STEPS;
  const value = field.log
    ? field.low * (field.high / field.low) ** share
    : field.low + (field.high - field.low) * share;
  return rounded(field, value);
}

function toSlider(field, value) {
  const inside = Math.min(Math.max(Number.isFinite(value) ? value : field.low, field.low), field.high);
  const share = field.log
    ? Math.log(inside / field.low) / Math.log(field.high / field.low)
    : (inside - field.low) / (field.high - field.low);
  return Math.round(share * STEPS);
}

function rounded(field, value) {
  const inside = Math.min(Math.max(value, field.low), field.high);
  const stepped = Math.round(inside / field.step) * field.step;
  return Number((field.log ? Number(stepped.toPrecision(3)) : stepped).toFixed(6));
}

export function element(name, properties = {}) {
  return Object.assign(document.createElement(name), properties);
}
