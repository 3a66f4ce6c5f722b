// The live monitor as a widget. Everything that comes from packets is put into the page as text (textContent), never as HTML.
// The name of each parameter, its title, an example that is shown in the empty field, and what else is possible.
const FIELDS = [
  ["interface", "interface", "", ""],
  ["source", "source", "10.0.0.0/8", "an address or a prefix, IPv4 or IPv6"],
  ["destination", "destination", "10.0.0.2", "an address or a prefix, IPv4 or IPv6"],
  ["port", "port", "53", "of the source or the destination: 53, or 5000-5010"],
  ["protocol", "protocol", "udp", "arp, gre, icmp, icmp6, ip, ip6, sctp, tcp, udp"],
  ["vlan", "VLAN", "10", "its number"],
  ["inside", "inside a tunnel", "vxlan", "vxlan, geneve, gre, ipip: the other fields are of the inner packet"],
  ["expression", "expression (libpcap)", "udp and port 53", "what else must hold (pcap-filter)"],
  ["display", "display filter (Wireshark)", "tcp.flags.syn == 1", "which packets are kept (needs tshark)"],
  ["fields", "fields (Wireshark)", "ip.ttl,_ws.col.Info", "values that are added to each packet (needs tshark)"],
  ["sample", "sampling", "one_in:100", "all, one_in:N, random:P, interval:N:S, first:B"],
];
// The fields of the filter in the kernel, of what is kept, and of sampling stand together.
const GROUPS = { interface: "Watch", source: "Select", display: "Keep", sample: "Sample" }; // by their first field
const LOST = ["dropped_count", "unexamined_count"];
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999"];
const SHOWN_S = 30; // in a chart
const BEAT_MS = 1000; // between two signs of life
const MAX_ROWS = 100;
const STYLE = `
.labkit-monitor { font: 13px sans-serif; color: var(--jp-ui-font-color1, #222); background: var(--jp-layout-color1, #fff); padding: 8px; }
.labkit-monitor fieldset { border: 0; margin: 0 0 6px; padding: 0; display: flex; flex-wrap: wrap; gap: 8px; align-items: end; }
.labkit-monitor h4 { font: bold 12px sans-serif; margin: 8px 0 2px; flex-basis: 100%; }
.labkit-monitor label { display: flex; flex-direction: column; font-size: 11px; color: var(--jp-ui-font-color2, #555); }
.labkit-monitor input, .labkit-monitor select { font: 13px monospace; min-width: 10em; }
.labkit-monitor input, .labkit-monitor select, .labkit-monitor button { color: var(--jp-ui-font-color1, #222); background: var(--jp-layout-color0, #fff); border: 1px solid var(--jp-border-color1, #bbb); padding: 2px 6px; }
.labkit-monitor input::placeholder { color: var(--jp-ui-font-color2, #555); opacity: 0.55; }
.labkit-monitor .counts { font: 13px monospace; margin: 6px 0; white-space: pre-wrap; }
.labkit-monitor .counts .lost { color: var(--jp-error-color1, #b00020); font-weight: bold; }
.labkit-monitor .problem { color: var(--jp-error-color1, #b00020); min-height: 1.2em; }
.labkit-monitor .hosts { display: flex; flex-wrap: wrap; gap: 0 32px; }
.labkit-monitor .hosts > div, .labkit-monitor .packets { max-height: 22em; max-width: 100%; overflow: auto; margin-top: 8px; }
.labkit-monitor table { border-collapse: collapse; font: 12px monospace; }
.labkit-monitor td, .labkit-monitor th { padding: 1px 8px; text-align: left; white-space: nowrap; }
.labkit-monitor th { color: var(--jp-ui-font-color2, #555); border-bottom: 1px solid var(--jp-border-color2, #ddd); }
.labkit-monitor .number { text-align: right; }
.labkit-monitor .packets tbody tr { cursor: pointer; }
.labkit-monitor .packets tbody tr:hover, .labkit-monitor .packets tbody tr.chosen { background: var(--jp-layout-color2, #eee); }
.labkit-monitor pre { font: 12px monospace; color: inherit; background: var(--jp-layout-color2, #f4f4f4); padding: 6px; white-space: pre-wrap; }
.labkit-monitor canvas { display: block; box-sizing: border-box; width: 100%; height: 140px; margin-bottom: 6px; border: 1px solid var(--jp-border-color2, #ddd); }
@media screen and (prefers-color-scheme: dark) {
  body:has(.labkit-monitor.page) {
    --jp-ui-font-color1: #ddd; --jp-ui-font-color2: #aaa; --jp-layout-color0: #111; --jp-layout-color1: #111; --jp-layout-color2: #262626;
    --jp-border-color1: #666; --jp-border-color2: #444; --jp-error-color1: #ff8a80; background: #111;
  }
}
`;

function element(parent, name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  parent.appendChild(made);
  return made;
}

function row(table, cells) {
  const line = element(table, "tr");
  for (const cell of cells) element(line, "td", String(cell), typeof cell === "number" ? "number" : "");
  return line;
}

// The names of the columns from `numbers` on stand above numbers, up to `texts`.
function head(table, names, numbers, texts = names.length) {
  const line = element(element(table, "thead"), "tr");
  names.forEach((name, at) => element(line, "th", name, at >= numbers && at < texts ? "number" : ""));
}

function si(value) {
  for (const [step, prefix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (value >= step) return `${(value / step).toPrecision(3)} ${prefix}`;
  return `${value.toPrecision(3)} `;
}

function rate(point, names, index) {
  return names.reduce((sum, name) => sum + (point.rates[name] || [0, 0])[index], 0);
}

// What has a line, with the names of its classes. Where there are more classes than colours, those with fewer bits share
// the last one.
function drawnClasses(points) {
  const names = [...new Set(points.flatMap((point) => Object.keys(point.rates)))];
  const bits = (name) => points.reduce((sum, point) => sum + rate(point, [name], 1), 0);
  const kept = names.length > COLOURS.length ? COLOURS.length - 1 : names.length;
  if (kept < names.length) names.sort((one, other) => bits(other) - bits(one));
  const others = names.slice(kept);
  const each = names.slice(0, kept).map((name) => [name, [name]]);
  return others.length ? [...each, [`${others.length} other classes`, others]] : each;
}

// One chart of rates by class: the newest point is at the right edge, and the greatest rate at the upper line. Where the
// classes stand one upon the other, the uppermost line is their sum.
function draw(canvas, points, unit, index, stacked) {
  const width = canvas.clientWidth || 600;
  const height = canvas.clientHeight || 140;
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.font = "12px sans-serif";
  const [top, bottom] = [22, height - 18];
  const text = getComputedStyle(canvas).color;
  context.strokeStyle = context.fillStyle = text;
  context.lineWidth = 0.3;
  for (const y of [top, (top + bottom) / 2, bottom]) {
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(width, y);
    context.stroke();
  }
  context.fillText(`${SHOWN_S} s ago`, 6, height - 4);
  context.textAlign = "right";
  context.fillText("now", width - 6, height - 4);
  const drawn = drawnClasses(points);
  const lines = []; // of each of them: for each point the lower and the upper value
  drawn.forEach(([_, names], number) => {
    lines.push(points.map((point, at) => {
      const below = stacked && number ? lines[number - 1][at][1] : 0;
      return [below, below + rate(point, names, index)];
    }));
  });
  const most = Math.max(0, ...lines.flat(2));
  context.fillText(most ? `${si(most)}${unit}` : `0 ${unit}`, width - 6, 14);
  context.textAlign = "left";
  context.lineWidth = 1.5;
  let legend = 6;
  drawn.forEach(([name, _], number) => {
    context.strokeStyle = context.fillStyle = COLOURS[number];
    const x = (at) => width * (1 - (points.at(-1).time_s - points[at].time_s) / SHOWN_S);
    const y = (value) => bottom - (value / (most || 1)) * (bottom - top);
    context.beginPath();
    lines[number].forEach(([_, upper], at) => context.lineTo(x(at), y(upper)));
    context.stroke();
    if (stacked) {
      for (let at = points.length - 1; at >= 0; at--) context.lineTo(x(at), y(lines[number][at][0]));
      context.globalAlpha = 0.25;
      context.fill();
      context.globalAlpha = 1;
    }
    context.fillRect(legend, 6, 9, 9);
    context.fillStyle = text;
    context.fillText(name, legend + 13, 14);
    legend += context.measureText(name).width + 28;
  });
}

function render({ model, el }) {
  const viewer = crypto.getRandomValues(new Uint32Array(2)).join("-");
  // A notebook has a theme of its own; the page follows the browser.
  const root = element(el, "div", undefined, model.get("is_page") ? "labkit-monitor page" : "labkit-monitor");
  element(root, "style", STYLE);
  const controls = element(root, "fieldset");
  const inputs = {};
  for (const [name, title, example, more] of FIELDS) {
    if (GROUPS[name]) element(controls, "h4", GROUPS[name]);
    const label = element(controls, "label", title);
    const input = element(label, name === "interface" ? "select" : "input");
    if (name === "interface") for (const each of model.get("interfaces")) element(input, "option", each);
    input.name = name;
    input.placeholder = example;
    input.title = more;
    input.value = model.get("choice")[name] || (name === "interface" ? model.get("interfaces")[0] : "");
    inputs[name] = input;
  }
  element(controls, "h4", ""); // the buttons have a line of their own
  const button = (text, act) => {
    const made = element(controls, "button", text);
    made.addEventListener("click", act);
    return made;
  };
  let paused = false;
  let points = [];
  let before = null;
  let refused = ""; // why the last request was not possible; later reports leave it there
  const problem = element(root, "div", "", "problem");
  const counts = element(root, "div", "no packets yet", "counts");
  element(root, "h4", "Packets per second, by class");
  const packetsChart = element(root, "canvas");
  element(root, "h4", "Bits per second of all classes, one upon the other");
  const bitsChart = element(root, "canvas");
  const hosts = element(root, "div", undefined, "hosts");
  const talkers = element(element(hosts, "div"), "table", undefined, "talkers");
  const conversations = element(element(hosts, "div"), "table", undefined, "conversations");
  const packetTable = element(element(root, "div", undefined, "packets"), "table");
  head(packetTable, ["last packets", "", "bytes", "headers"], 2, 3);
  packetTable.querySelector("th:last-child").colSpan = 99; // and the values of fields
  const list = element(packetTable, "tbody");
  const detail = element(root, "pre", "Click a packet to see its headers and bytes.", "detail");

  const empty = () => {
    points = [];
    before = null;
    list.replaceChildren();
    talkers.replaceChildren();
    conversations.replaceChildren();
    draw(packetsChart, points, "pps", 0);
    draw(bitsChart, points, "bit/s", 1, true);
  };
  button("apply", () => {
    const choice = { ...model.get("choice") }; // also what has no field here: keep_count, snap_bytes
    for (const name of Object.keys(inputs)) delete choice[name];
    for (const [name, input] of Object.entries(inputs)) if (input.value.trim()) choice[name] = input.value.trim();
    empty();
    problem.textContent = refused = "";
    model.send({ do: "apply", choice });
  });
  const pause = button("pause", () => {
    paused = !paused;
    pause.textContent = paused ? "go on" : "pause";
  });
  button("clear", () => model.send({ do: "clear" }));
  button("save pcapng", () => model.send({ do: "save", viewer }));

  function show(report) {
    const total = report.counts;
    counts.replaceChildren();
    for (const [name, value] of Object.entries(total))
      element(counts, "span", `${name.replace("_count", "")} ${value}  `, value && LOST.includes(name) ? "lost" : "");
    counts.dataset.selected = total.selected_count;
    problem.textContent = report.problem || (report.is_gone ? "The interface has gone." : refused || report.hint || "");
    if (paused) return;
    if (before && report.time_s > before.time_s) {
      const rates = {};
      const passed = report.time_s - before.time_s;
      for (const [name, [count, bytes]] of Object.entries(report.classes)) {
        const [oldCount, oldBytes] = before.classes[name] || [0, 0];
        rates[name] = [Math.max(0, count - oldCount) / passed, 8 * Math.max(0, bytes - oldBytes) / passed];
      }
      points.push({ time_s: report.time_s, rates });
      points = points.filter((point) => report.time_s - point.time_s <= SHOWN_S);
      draw(packetsChart, points, "pps", 0);
      draw(bitsChart, points, "bit/s", 1, true);
    }
    before = report;
    talkers.replaceChildren();
    head(talkers, ["top talkers", "packets sent", "bytes sent", "packets received", "bytes received"], 1);
    for (const cells of report.talkers) row(talkers, cells);
    conversations.replaceChildren();
    head(conversations, ["conversations", "source", "destination", "packets", "bytes"], 3);
    for (const cells of report.conversations) row(conversations, cells);
    for (const packet of report.packets) {
      const cells = [packet.time, packet.direction, packet.length_bytes, packet.stack, ...packet.fields];
      const line = row(list, cells);
      line.addEventListener("click", () => {
        for (const other of list.children) other.classList.toggle("chosen", other === line);
        detail.textContent = `${packet.layers.join("\n")}\n\n${packet.hex}`;
      });
      list.prepend(line);
    }
    while (list.childElementCount > MAX_ROWS) list.lastElementChild.remove();
  }

  // A browser slows the timers of a hidden page down to one a minute, so reports are a reason to answer, too.
  let answered = -BEAT_MS;
  const alive = () => {
    if (performance.now() - answered < BEAT_MS / 2) return;
    answered = performance.now();
    model.send({ do: "alive", viewer });
  };

  // A browser that is behind shows only the newest report.
  let waiting = null;
  const onMessage = (message, buffers) => {
    if (message.do === "report") {
      alive();
      if (!waiting) requestAnimationFrame(() => {
        if (!waiting) return;
        const [newest, packets] = waiting;
        waiting = null;
        show({ ...newest, packets });
      });
      // A hidden page draws no frames, so what waits is bounded here.
      waiting = [message, [...(waiting ? waiting[1] : []), ...message.packets].slice(-MAX_ROWS)];
    } else if (message.do === "cleared") {
      waiting = null;
      empty();
    } else if (message.do === "problem") {
      problem.textContent = refused = message.text;
    } else if (message.do === "file" && message.viewer === viewer) {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([buffers[0]], { type: "application/octet-stream" }));
      link.download = "monitor.pcapng";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }
  };
  // Another page of this panel may have chosen.
  const onChoice = () => {
    refused = "";
    const choice = model.get("choice");
    for (const [name, input] of Object.entries(inputs))
      if (input !== document.activeElement) input.value = choice[name] || "";
  };
  model.on("msg:custom", onMessage);
  model.on("change:choice", onChoice);
  const beat = setInterval(alive, BEAT_MS);
  alive();
  return () => {
    clearInterval(beat);
    model.off("msg:custom", onMessage);
    model.off("change:choice", onChoice);
    model.send({ do: "bye", viewer });
  };
}

export default { render };
