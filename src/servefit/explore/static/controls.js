// The form: built from the fields that the server describes. Values travel as text.

const STEPS = 1000;
// How many of a field's steps a key goes; Home and End go to the ends.
const KEYS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity };

// By name: set(text), say(error), and of which other control's value it depends whether it counts.
export function buildControls(place, fields, folded, changed) {
  const controls = new Map();
  const groups = new Map();
  for (const field of fields) {
    const host = controls.get(field.beside)?.row ?? newRow(groupOf(field.group), field);
    controls.set(field.name, { row: host, field, ...(field.kind === "choice" ? choice : number)(field, host, changed) });
  }
  return controls;

  function groupOf(name) {
    if (!groups.has(name)) {
      const box = element("details", { open: !folded.includes(name) });
      box.append(element("summary", { textContent: name }));
      place.append(box);
      groups.set(name, box);
    }
    return groups.get(name);
  }
}

// Errors beside their controls, in groups that are open then.
export function showErrors(controls, errors) {
  for (const [name, control] of controls) {
    control.main.setAttribute("aria-invalid", String(name in errors));
    if (name in errors) control.row.group.open = true;
  }
  for (const row of new Set([...controls.values()].map((control) => control.row))) {
    row.say(row.names.map((name) => errors[name]).filter(Boolean).join("; "));
  }
}

// All values; what does not count with them is not shown, and a group with a value of its own opens.
export function showValues(controls, values, defaults) {
  for (const [name, control] of controls) {
    control.set(values[name]);
    if (values[name] !== defaults[name]) control.row.group.open = true;
  }
  showCounting(controls, values);
}

// What does nothing with the other values cannot be changed, or is hidden, unless it holds a mistake.
export function showCounting(controls, values) {
  for (const { field, row, main, slider } of controls.values()) {
    if (field.needs) {
      const idle = (values[field.needs[0]] !== "") !== field.needs[1] && main.getAttribute("aria-invalid") !== "true";
      main.disabled = idle;
      if (slider) slider.disabled = idle;
      if (!field.beside) row.element.classList.toggle("idle", idle);
    }
    if (!field.when) continue;
    const counts = values[field.when[0]] === field.when[1] || main.getAttribute("aria-invalid") === "true";
    if (field.beside) main.classList.toggle("gone", !counts);
    else row.element.hidden = !counts;
  }
}

function newRow(group, field) {
  const usual = [field.unit, field.hint].filter(Boolean).join(", ");
  const hint = element("p", { className: "hint", id: `h-${field.name}`, textContent: usual });
  const inputs = element("div", { className: "inputs" });
  const whole = element("div", { className: "field" });
  whole.dataset.field = field.name;
  whole.append(element("label", { htmlFor: `f-${field.name}`, textContent: field.label }), inputs, hint);
  group.append(whole);
  return {
    element: whole, group, inputs, hint, names: [],
    add(name, main, ...parts) {
      if (this.names.length) main.classList.add("second");
      this.names.push(name);
      main.setAttribute("aria-describedby", hint.id);
      inputs.append(...parts, main);
    },
    say(error) {
      whole.classList.toggle("bad", error !== "");
      hint.textContent = error || usual;
    },
  };
}

function choice(field, row, changed) {
  const main = element("select", { id: `f-${field.name}` });
  if (field.beside) main.setAttribute("aria-label", field.label);
  for (const [value, label] of field.choices) main.append(element("option", { value, textContent: label }));
  main.addEventListener("change", () => changed(field.name, main.value));
  row.add(field.name, main);
  if (field.beside || field.choices.some(([, label]) => label.length > 24)) row.element.classList.add("long");
  return {
    main,
    set(text) {
      main.value = text;
      if (main.value === text) return;
      // What the server does not offer is shown as it was asked, with the server's error beside it.
      main.append(element("option", { value: text, textContent: text }));
      main.value = text;
    },
  };
}

function number(field, row, changed) {
  const main = element("input", { type: "text", inputMode: "decimal", id: `f-${field.name}` });
  if (field.beside) main.setAttribute("aria-label", field.label);
  const slider = field.optional || field.beside ? null : element("input", { type: "range", min: 0, max: STEPS, step: 1 });
  row.add(field.name, main, ...(slider ? [slider] : []));
  const place = (text) => {
    if (!slider || !isNumber(text)) return;
    slider.value = String(toSlider(field, Number(text)));
    slider.setAttribute("aria-valuetext", `${text} ${field.unit}`.trim());
  };
  const put = (value) => {
    main.value = String(value);
    place(main.value);
    changed(field.name, main.value);
  };
  main.addEventListener("input", () => {
    place(main.value);
    changed(field.name, main.value.trim());
  });
  slider?.setAttribute("aria-label", `${field.label}, slider`);
  slider?.addEventListener("input", () => put(fromSlider(field, Number(slider.value))));
  // Keys go by the field's own step, whatever the slider's resolution.
  slider?.addEventListener("keydown", (event) => {
    const by = KEYS[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const now = isNumber(main.value) ? Number(main.value) : fromSlider(field, Number(slider.value));
    put(rounded(field, field.log ? now * 1.02 ** by + by * field.step : now + by * field.step));
  });
  return {
    main,
    slider,
    set(text) {
      main.value = text;
      place(text);
    },
  };
}

const isNumber = (text) => text.trim() !== "" && Number.isFinite(Number(text));

function fromSlider(field, at) {
  if (at >= STEPS) return field.high;
  const share = at / STEPS;
  const value = field.log
    ? field.low * (field.high / field.low) ** share
    : field.low + (field.high - field.low) * share;
  return rounded(field, value);
}

function toSlider(field, value) {
  const inside = Math.min(Math.max(value, field.low), field.high);
  const share = field.log
    ? Math.log(inside / field.low) / Math.log(field.high / field.low)
    : (inside - field.low) / (field.high - field.low);
  return Math.round(share * STEPS);
}

// Within the field's ends, which need not be round themselves.
function rounded(field, value) {
  const stepped = Math.round(value / field.step) * field.step;
  const round = Number((field.log ? Number(stepped.toPrecision(3)) : stepped).toFixed(6));
  return Math.min(Math.max(round, field.low), field.high);
}

export function element(name, properties = {}) {
  return Object.assign(document.createElement(name), properties);
}
