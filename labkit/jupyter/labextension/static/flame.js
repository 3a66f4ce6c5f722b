// Draws a flame graph into an element: an icicle of frames that can be searched and zoomed. It is in a notebook's output
// and in a report alike, so it needs nothing but itself, and touches nothing else. flame_graph.py wraps it.
const ROW = 19, MIN_PX = 0.35, GAP = 0.6, FONT = 11.5, PATIENCE_MS = 150;
const STEPS = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"], [1e-12, "p"]];
const KINDS = {module: "a module of the kernel"};
const SVG = "http://www.w3.org/2000/svg", COLOR = /^#[0-9a-f]{3,8}$/i;

function made(kind, more = {}, ...inside) {
  const it = Object.assign(document.createElement(kind), more);
  it.append(...inside);
  return it;
}

function digits(value, count) {
  return value === 0 ? "0" : Math.abs(value) >= 10 ** (count - 1) ? Math.round(value).toLocaleString("en")
    : value.toPrecision(count);
}

// Seconds with a prefix, or samples. `sign`: a difference, with its sign.
function amount(data, value, sign = false) {
  const mark = sign ? (value > 0 ? "+" : value < 0 ? "−" : "±") : value < 0 ? "−" : "";
  const size = Math.abs(value);
  if (!data.unit_s) return mark + digits(size, 3) + (sign ? "" : size === 1 ? " sample" : " samples");
  const seconds = size * data.unit_s;
  const [step, prefix] = STEPS.find(([least]) => seconds >= least) || (seconds ? STEPS.at(-1) : [1e-9, "n"]);
  return `${mark}${digits(seconds / step, 3)} ${prefix}s`;
}

const percent = share => `${share >= 0.0995 ? (100 * share).toFixed(0) : (100 * share).toFixed(1)} %`;

function mixed(from, to, part) {
  const at = hex => [1, 3, 5].map(place => parseInt(hex.slice(place, place + 2), 16));
  const [a, b] = [at(from), at(to)];
  return a.map((one, place) => Math.round(one + (b[place] - one) * part));
}

class Flame {
  constructor(place, data) {
    // A notebook from somebody else may hold anything, and colours become a part of the picture's text.
    const colors = Object.entries(data.colors).map(([name, color]) => [name, COLOR.test(color) ? color : "#888888"]);
    data = {...data, colors: Object.fromEntries(colors)};
    Object.assign(this, {place, data, count: data.name.length, zoomed: 0, hits: null, widths: "both"});
    this.parents();
    this.build();
    this.measure();
    this.render();
    new ResizeObserver(() => this.box.clientWidth !== this.width && this.render()).observe(this.box);
  }

  // Frames come in preorder with their depths: the parent is the last one before that is one level up.
  parents() {
    const {depth} = this.data, open = [];
    this.parent = new Int32Array(this.count).fill(-1);
    this.end = new Int32Array(this.count).fill(this.count);
    for (let at = 0; at < this.count; at++) {
      while (open.length > depth[at]) this.end[open.pop()] = at;
      if (open.length) this.parent[at] = open.at(-1);
      open.push(at);
    }
  }

  build() {
    const {data} = this;
    this.search = made("input", {type: "search", placeholder: "search, a regular expression", spellcheck: false});
    this.search.setAttribute("aria-label", "search frames");
    this.found = made("output");
    this.out = made("button", {type: "button", textContent: "all", title: "zoom out (Esc)", disabled: true});
    const save = made("button", {type: "button", textContent: "save as SVG"});
    const bar = made("div", {className: "bar"}, this.search, this.found, this.out, save);
    if (data.right) this.out.before(this.chooser());
    this.box = made("div", {className: "box", tabIndex: 0});
    this.tip = made("div", {className: "tip", hidden: true});
    this.numbers = made("div", {className: "numbers"});
    this.numbers.setAttribute("role", "status");
    const notes = data.notes.map(note => made("p", {textContent: note}));
    const head = made("p", {className: "head"}, made("strong", {textContent: data.title}), " ", data.subtitle);
    const text = data.text ? [made("details", {}, made("summary", {textContent: data.text_words}), made("pre", {textContent: data.text}))] : [];
    const parts = [head, bar, this.legend(), this.box, this.numbers, made("div", {className: "notes"}, ...notes), ...text, this.tip];
    this.place.replaceChildren(...parts);
    this.search.addEventListener("input", () => {
      clearTimeout(this.waiting);
      this.waiting = setTimeout(() => this.find(), PATIENCE_MS);
    });
    this.out.addEventListener("click", () => this.zoom(0));
    save.addEventListener("click", () => this.save());
    this.place.addEventListener("keydown", event => event.key === "Escape" && this.zoom(0));
    this.box.addEventListener("click", event => { const at = this.at(event); if (at !== null) { this.numbers.replaceChildren(...this.describe(at)); this.zoom(at); } });
    this.box.addEventListener("mousemove", event => this.point(event));
    this.box.addEventListener("mouseleave", () => { this.tip.hidden = true; });
  }

  chooser() {
    const {data} = this;
    const options = [["both", "the mean of both"], ["left", data.left_name], ["right", data.right_name]]
      .map(([value, textContent]) => made("option", {value, textContent}));
    const select = made("select", {}, ...options);
    select.addEventListener("change", () => { this.widths = select.value; this.render(); });
    return made("label", {}, "widths: ", select);
  }

  legend() {
    const {data} = this, {colors} = data;
    const key = (color, words) => made("span", {}, made("i", {style: `background:${color}`}), words);
    if (!data.right) {
      const there = ["kernel", "module", "user", "process"].filter(kind => data.kinds.includes(kind));
      return made("div", {className: "legend"}, ...there.map(kind => key(colors[kind], KINDS[kind] || kind)));
    }
    this.most = data.stands_out.reduce((most, out, at) => out ? Math.max(most, Math.abs(this.difference(at))) : most, 0);
    const same = key(colors.same, "does not stand out from the spread between rounds");
    if (!this.most) return made("div", {className: "legend"}, same);
    const ramp = made("i", {className: "ramp", style:
      `background:linear-gradient(90deg,${colors.less},${colors.less_faint} 49%,${colors.same} 49%,${colors.same} 51%,${colors.more_faint} 51%,${colors.more})`});
    return made("div", {className: "legend"}, made("span", {}, amount(data, -this.most, true), ramp, amount(data, this.most, true),
      ` ${data.unit_words}`), same);
  }

  measure() {
    const context = document.createElement("canvas").getContext("2d");
    context.font = `${FONT}px ${this.data.font}`;
    this.letter = context.measureText("m".repeat(50)).width / 50;
  }

  difference(at) { return this.data.right[at] - this.data.left[at]; }

  value(at) {
    const {left, right} = this.data;
    return !right || this.widths === "left" ? left[at] : this.widths === "right" ? right[at] : (left[at] + right[at]) / 2;
  }

  fill(at) {
    const {data} = this, {colors} = data;
    if (data.right) {
      if (!data.stands_out[at]) return mixed(colors.same, colors.same, 0);
      const by = this.difference(at), part = Math.sqrt(Math.abs(by) / this.most);
      return by > 0 ? mixed(colors.more_faint, colors.more, part) : mixed(colors.less_faint, colors.less, part);
    }
    // Neighbours differ in their shade, and a name keeps its shade wherever it is.
    const shade = (data.name[at] * 0.618034) % 1;
    return mixed(colors[data.kinds[data.name[at]]], "#ffffff", 0.45 * shade);
  }

  // Where each frame begins, in the widths that are chosen: children stand side by side from their parent's beginning.
  placed() {
    const x = new Float64Array(this.count), next = new Float64Array(this.count);
    for (let at = 0; at < this.count; at++) {
      const parent = this.parent[at];
      if (parent >= 0) { x[at] = next[parent]; next[parent] += this.value(at); }
      next[at] = x[at];
    }
    return x;
  }

  render() {
    this.width = this.box.clientWidth || 900;
    const {data, zoomed} = this, x = this.placed(), whole = (!zoomed && data.span) || this.value(zoomed) || 1;
    const above = new Set();
    for (let at = this.parent[zoomed]; at >= 0; at = this.parent[at]) above.add(at);
    const pieces = [];
    let deepest = 0;
    for (let at = 0; at < this.end[zoomed]; at++) {
      if (at < zoomed && !above.has(at)) continue;
      const from = above.has(at) ? 0 : (x[at] - x[zoomed]) / whole * this.width;
      const wide = above.has(at) ? this.width : this.value(at) / whole * this.width;
      if (wide < MIN_PX) { at = this.end[at] - 1; continue; }
      deepest = Math.max(deepest, data.depth[at]);
      pieces.push(this.piece(at, from, wide, above.has(at)));
    }
    const height = (deepest + 1) * ROW;
    this.box.innerHTML = `<svg xmlns="${SVG}" viewBox="0 0 ${this.width} ${height}" role="img" font-size="${FONT}">${pieces.join("")}</svg>`;
    this.svg = this.box.firstElementChild;
    this.svg.setAttribute("font-family", data.font);
    this.svg.setAttribute("aria-label", `${data.title}: ${this.count} frames`);
    this.out.disabled = !zoomed;
  }

  piece(at, from, wide, above) {
    const {data} = this, name = data.name[at], hit = this.hits?.[name];
    const rgb = this.fill(at), light = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] > 140;
    const room = Math.floor((wide - 6) / this.letter);
    const full = (data.odd.includes(name) ? "† " : "") + data.names[name];
    const words = room >= full.length ? full : room > 2 ? full.slice(0, room - 1) + "…" : "";
    const stroke = hit ? ` stroke="${data.colors.hit}" stroke-width="2"` : "";
    const inset = hit && wide > 3 ? 1 : 0;
    const rect = `<rect x="${(from + inset).toFixed(2)}" y="${data.depth[at] * ROW + inset}" width="${Math.max(wide - (wide > 2 ? GAP : 0) - 2 * inset, 0.3).toFixed(2)}" height="${ROW - 1 - 2 * inset}" fill="rgb(${rgb})" rx="1.5"${stroke}/>`;
    const text = words && `<text x="${(from + 3.5).toFixed(1)}" y="${data.depth[at] * ROW + ROW - 6}" fill="${light ? "#161616" : "#fff"}">${words.replaceAll("&", "&amp;").replaceAll("<", "&lt;")}</text>`;
    return `<g data-at="${at}"${this.hits && !hit ? ' opacity="0.3"' : above ? ' opacity="0.55"' : ""}>${rect}${text}</g>`;
  }

  zoom(at) { this.zoomed = at; this.tip.hidden = true; this.render(); }

  at(event) {
    const it = event.target.closest("g[data-at]");
    return it ? Number(it.dataset.at) : null;
  }

  // What matches, each stack once: a frame below one that matches is in it already.
  find() {
    const {data} = this, pattern = this.search.value;
    let words = "";
    this.hits = null;
    this.search.setCustomValidity("");
    if (pattern) {
      try {
        const expression = new RegExp(pattern, /[A-Z]/.test(pattern) ? "" : "i");
        this.hits = data.names.map((name, at) => at > 0 && expression.test(name));
        words = this.matched();
      } catch {
        this.search.setCustomValidity("not a valid regular expression");
        words = "not a valid regular expression";
      }
    }
    this.found.textContent = words;
    this.render();
  }

  matched() {
    const {data} = this;
    let left = 0, right = 0, frames = 0;
    for (let at = 0; at < this.count; at++) frames += this.hits[data.name[at]] ? 1 : 0;
    for (let at = 0; at < this.count; at++) {
      if (!this.hits[data.name[at]]) continue;
      left += data.left[at];
      right += data.right ? data.right[at] : 0;
      at = this.end[at] - 1;
    }
    if (!frames) return "nothing matches";
    const share = (part, of) => `${percent(of[0] ? part / of[0] : 0)}, ${amount(data, part)}`;
    const many = `${frames.toLocaleString("en")} frame${frames === 1 ? "" : "s"}: `;
    return many + (data.right ? `${share(left, data.left)} → ${share(right, data.right)}` : share(left, data.left));
  }

  point(event) {
    const at = this.at(event), {tip} = this;
    tip.hidden = at === null;
    if (at === null) return;
    if (Number(tip.dataset.at) !== at) { tip.dataset.at = at; tip.replaceChildren(...this.describe(at)); }
    const {width, height} = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 12))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  }

  describe(at) {
    const {data} = this, name = data.name[at], side = (values, own) =>
      `${amount(data, values[at])} (${percent(values[0] ? values[at] / values[0] : 0)}), itself ${amount(data, own[at])}`;
    const lines = data.right
      ? [`${data.left_name}: ${side(data.left, data.own_left)}`, `${data.right_name}: ${side(data.right, data.own_right)}`,
         `difference ${amount(data, this.difference(at), true)}${data.half ? ` ± ${amount(data, data.half[at])}` : ""}: ${data.stands_out[at] ? "stands out" : "does not stand out"}`]
      : [side(data.left, data.own_left)];
    if (data.unit_words) lines.push(data.unit_words);
    if (data.odd.includes(name)) lines.push("† this function enables interrupts: samples from before that are charged to it");
    const title = made("strong", {textContent: data.names[name]});
    return [title, ` ${data.kinds[name] || ""}`, ...lines.map(textContent => made("div", {textContent}))];
  }

  save() {
    const address = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(this.svg)], {type: "image/svg+xml"}));
    made("a", {href: address, download: "flame.svg"}).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }
}
