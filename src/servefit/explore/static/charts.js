// The charts of a side: Vega views over the rows that the server sent.

// As vega.Error, which its bundle does not export.
const ERRORS_ONLY = 1;
const SETS = ["curve", "measured", "extent", "marks", "slos", "steps"];

export class Charts {
  constructor(places) {
    this.places = [...places];
    this.views = [];
    this.specs = null;
    this.closed = false;
    this.drawing = Promise.resolve();
  }

  // Resolves when the rows are drawn; one drawing at a time, the next one begins whatever became of it.
  draw(specs, data) {
    this.drawing = this.drawing.catch(() => {}).then(async () => {
      if (this.closed) return;
      try {
        await (specs === this.specs ? this.update(data) : this.embed(specs, data));
      } catch (error) {
        this.drop();
        throw error;
      }
    });
    return this.drawing;
  }

  close() {
    this.closed = true;
    this.drop();
  }

  drop() {
    for (const { view } of this.views) view.finalize();
    this.views = [];
    this.specs = null;
  }

  async embed(specs, data) {
    this.drop();
    const settings = { actions: false, ast: true, renderer: "svg", logLevel: ERRORS_ONLY, tooltip: { theme: document.documentElement.dataset.theme } };
    const texts = textsOf(data);
    for (const place of this.places) {
      const spec = { ...specs[place.dataset.chart], datasets: data };
      const { view } = await vegaEmbed(place, spec, settings);
      if (this.closed) {
        view.finalize();
        return;
      }
      this.views.push({ view, sets: SETS.filter((name) => holds(view, name)) });
    }
    this.specs = specs;
    this.texts = texts;
  }

  // Only what changed is drawn anew.
  async update(data) {
    const texts = textsOf(data);
    const changed = new Set(SETS.filter((name) => texts[name] !== this.texts[name]));
    this.texts = texts;
    await Promise.all(this.views.map(({ view, sets }) => {
      const mine = sets.filter((name) => changed.has(name));
      for (const name of mine) view.data(name, data[name]);
      return mine.length ? view.runAsync() : null;
    }));
  }
}

// Taken before Vega keeps notes of its own in the rows.
function textsOf(data) {
  return Object.fromEntries(SETS.map((name) => [name, JSON.stringify(data[name])]));
}

function holds(view, name) {
  try {
    view.data(name);
    return true;
  } catch {
    return false;
  }
}
