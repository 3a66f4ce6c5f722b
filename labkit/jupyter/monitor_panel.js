// The live monitor as a widget. Everything that comes from packets is put into the page as text (textContent), never as HTML.
const FIELDS = [
  ["interface", "interface", ""],
  ["source", "source", "10.0.0.1 or 10.0.0.0/8"],
  ["destination", "destination", "10.0.0.2"],
  ["port", "port", "53 or 5000-5010"],
  ["protocol", "protocol", "arp, gre, icmp, icmp6, ip, ip6, sctp, tcp, udp"],
  ["vlan", "VLAN", "10"],
  ["inside", "inside a tunnel", "vxlan, geneve, gre, ipip"],
  ["expression", "expression (libpcap)", "udp and port 53"],
  ["display", "display filter (Wireshark)", "tcp.flags.syn == 1"],
  ["fields", "fields (Wireshark)", "ip.ttl,_ws.col.Info"],
  ["sample", "sampling", "all, one_in:100, interval:10:1"],
];
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999"];
const MAX_POINTS = 300;
const MAX_ROWS = 100;
const STYLE = `
.labkit-monitor { font: 13px sans-serif; color: var(--jp-ui-font-color1, #222); background: var(--jp-layout-color1, #fff); padding: 8px; }
.labkit-monitor fieldset { border: 0; margin: 0 0 6px; padding: 0; display: flex; flex-wrap: wrap; gap: 8px; align-items: end; }
.labkit-monitor label { display: flex; flex-direction: column; font-size: 11px; color: var(--jp-ui-font-color2, #555); }
.labkit-monitor input, .labkit-monitor select { font: 13px monospace; min-width: 10em; }
.labkit-monitor input, .labkit-monitor select, .labkit-monitor button { color: inherit; background: var(--jp-layout-color0, #fff); border: 1px solid var(--jp-border-color1, #bbb); padding: 2px 6px; }
.labkit-monitor .counts { font: 13px monospace; margin: 6px 0; }
.labkit-monitor .problem { color: var(--jp-error-color1, #b00020); min-height: 1.2em; }
.labkit-monitor table { border-collapse: collapse; font: 12px monospace; margin-top: 6px; }
.labkit-monitor td, .labkit-monitor th { padding: 1px 8px; text-align: left; }
.labkit-monitor td.number { text-align: right; }
.labkit-monitor .packets { max-height: 22em; overflow: auto; }
.labkit-monitor .packets tr { cursor: pointer; }
.labkit-monitor pre { font: 12px monospace; color: inherit; background: var(--jp-layout-color2, #f4f4f4); padding: 6px; white-space: pre-wrap; }
.labkit-monitor canvas { width: 100%; height: 140px; border: 1px solid var(--jp-border-color2, #ddd); }
`;

function element(parent, name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  parent.appendChild(made);
  return made;
}

function row(table, cells, kind = "td") {
  const line = element(table, "tr");
  for (const cell of cells) element(line, kind, String(cell), typeof cell === "number" ? "number" : "");
  return line;
}

function si(value) {
  for (const [step, prefix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (value >= step) return `${(value / step).toPrecision(3)} ${prefix}`;
  return `${value.toPrecision(3)} `;
}

// One chart of rates by class: the newest point is at the right edge.
function draw(canvas, points, unit, index) {
  const width = (canvas.width = canvas.clientWidth || 600);
  const height = (canvas.height = canvas.clientHeight || 140);
  const context = canvas.getContext("2d");
  const names = [...new Set(points.flatMap((point) => Object.keys(point.rates)))].slice(0, COLOURS.length);
  const most = Math.max(1e-9, ...points.flatMap((point) => names.map((name) => (point.rates[name] || [0, 0])[index])));
  context.clearRect(0, 0, width, height);
  context.font = "12px sans-serif";
  let legend = 6;
  names.forEach((name, number) => {
    context.strokeStyle = context.fillStyle = COLOURS[number];
    context.beginPath();
    points.forEach((point, at) => {
      const x = width - ((points.length - 1 - at) * width) / MAX_POINTS;
      const y = height - 4 - ((point.rates[name] || [0, 0])[index] / most) * (height - 24);
      if (at) context.lineTo(x, y);
      else context.moveTo(x, y);
    });
    context.stroke();
    context.fillText(name, legend, 13);
    legend += context.measureText(name).width + 14;
  });
  context.fillStyle = getComputedStyle(canvas).color;
  context.textAlign = "right";
  context.fillText(`${si(most)}${unit}`, width - 6, 13);
}

function render({ model, el }) {
  const viewer = crypto.getRandomValues(new Uint32Array(2)).join("-");
  const root = element(el, "div", undefined, "labkit-monitor");
  element(root, "style", STYLE);
  const controls = element(root, "fieldset");
  const inputs = {};
  for (const [name, title, hint] of FIELDS) {
    const label = element(controls, "label", title);
    const input = element(label, name === "interface" ? "select" : "input");
    if (name === "interface") for (const each of model.get("interfaces")) element(input, "option", each);
    input.name = name;
    input.placeholder = hint;
    input.value = model.get("choice")[name] || (name === "interface" ? model.get("interfaces")[0] : "");
    inputs[name] = input;
  }
  const button = (text, act) => {
    const made = element(controls, "button", text);
    made.addEventListener("click", act);
    return made;
  };
  let paused = false;
  let points = [];
  let before = null;
  const problem = element(root, "div", "", "problem");
  const counts = element(root, "div", "no packets yet", "counts");
  const packetsChart = element(root, "canvas");
  const bytesChart = element(root, "canvas");
  const talkers = element(root, "table", undefined, "talkers");
  const conversations = element(root, "table", undefined, "conversations");
  const list = element(element(root, "div", undefined, "packets"), "table");
  const detail = element(root, "pre", "Click a packet to see its headers and bytes.", "detail");

  const empty = () => {
    points = [];
    before = null;
    list.replaceChildren();
    talkers.replaceChildren();
    conversations.replaceChildren();
    draw(packetsChart, points, "packet/s", 0);
    draw(bytesChart, points, "byte/s", 1);
  };
  button("apply", () => {
    const choice = { ...model.get("choice") }; // also what has no field here: keep_count, snap_bytes
    for (const name of Object.keys(inputs)) delete choice[name];
    for (const [name, input] of Object.entries(inputs)) if (input.value.trim()) choice[name] = input.value.trim();
    empty();
    problem.textContent = "";
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
    counts.textContent = Object.entries(total).map(([name, value]) => `${name.replace("_count", "")} ${value}`).join("  ");
    counts.dataset.selected = total.selected_count;
    problem.textContent = report.problem || (report.is_gone ? "The interface has gone." : "");
    if (paused) return;
    if (before && report.time_s > before.time_s) {
      const rates = {};
      const passed = report.time_s - before.time_s;
      for (const [name, [count, bytes]] of Object.entries(report.classes)) {
        const [oldCount, oldBytes] = before.classes[name] || [0, 0];
        rates[name] = [Math.max(0, count - oldCount) / passed, Math.max(0, bytes - oldBytes) / passed];
      }
      points.push({ rates });
      points = points.slice(-MAX_POINTS);
      draw(packetsChart, points, "packet/s", 0);
      draw(bytesChart, points, "byte/s", 1);
    }
    before = report;
    talkers.replaceChildren();
    row(talkers, ["top talkers", "packets sent", "bytes sent", "packets received", "bytes received"], "th");
    for (const cells of report.talkers) row(talkers, cells);
    conversations.replaceChildren();
    row(conversations, ["conversations", "source", "destination", "packets", "bytes"], "th");
    for (const cells of report.conversations) row(conversations, cells);
    for (const packet of report.packets) {
      const cells = [packet.time, packet.direction, packet.length_bytes, packet.stack, ...packet.fields];
      const line = row(list, cells);
      line.addEventListener("click", () => (detail.textContent = `${packet.layers.join("\n")}\n\n${packet.hex}`));
      list.prepend(line);
    }
    while (list.childElementCount > MAX_ROWS) list.lastElementChild.remove();
  }

  // A browser that is behind shows only the newest report.
  let waiting = null;
  const onMessage = (message, buffers) => {
    if (message.do === "report") {
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
      problem.textContent = message.text;
    } else if (message.do === "file" && message.viewer === viewer) {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([buffers[0]], { type: "application/octet-stream" }));
      link.download = "monitor.pcapng";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }
  };
  model.on("msg:custom", onMessage);
  const alive = () => model.send({ do: "alive", viewer });
  const beat = setInterval(alive, 1000);
  alive();
  return () => {
    clearInterval(beat);
    model.off("msg:custom", onMessage);
    model.send({ do: "bye", viewer });
  };
}

export default { render };
