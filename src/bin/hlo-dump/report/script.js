"use strict";
(() => {
  const data = id => JSON.parse(document.getElementById(id)?.textContent || "null");
  const SVG = "http://www.w3.org/2000/svg";
  const draw = (parent, name, attributes, text) => {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    return parent.appendChild(element);
  };
  const scaled = (value, base, units, unit) => {
    let power = 0;
    while (value >= base && power < units.length) { value /= base; power += 1; }
    const digits = power === 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
    return value.toFixed(digits) + " " + (power ? units[power - 1] : "") + unit;
  };
  const bytes = value => value < 1024 ? value + " B" : scaled(value, 1024, ["Ki", "Mi", "Gi", "Ti", "Pi"], "B");
  const operations = value => scaled(value, 1000, ["k", "M", "G", "T", "P", "E"], "FLOP").trim();

  // Tables: a filter, and columns that sort.
  for (const input of document.querySelectorAll("input[data-table]")) {
    const rows = [...document.getElementById(input.dataset.table).tBodies[0].rows];
    const count = document.getElementById(input.dataset.table + "-count");
    const all = count.textContent;
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every(word => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = words.length ? shown + " found, " + all : all;
    });
  }
  const sort = header => {
    const table = header.closest("table"), column = header.cellIndex;
    const down = header.getAttribute("aria-sort") !== "descending";
    for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => {
      const cell = row.cells[column];
      return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
    };
    const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    const rows = [...table.tBodies[0].rows].sort((a, b) => compare(key(a), key(b)) * (down ? -1 : 1));
    table.tBodies[0].append(...rows);
  };
  for (const header of document.querySelectorAll("th")) {
    header.addEventListener("click", () => sort(header));
    header.addEventListener("keydown", event => { if (event.key === "Enter") sort(header); });
  }

  // The memory curve: what is live under the pointer.
  const points = data("memory-data"), curve = document.getElementById("memory-curve");
  if (points && curve) {
    const cursor = document.getElementById("memory-cursor");
    const [, , width, height] = curve.getAttribute("viewBox").split(" ").map(Number);
    curve.addEventListener("pointermove", event => {
      const place = curve.getBoundingClientRect();
      const x = (event.clientX - place.left) * width / place.width;
      let at = 0;
      while (at + 1 < points.length && points[at + 1].x <= x) at += 1;
      const point = points[at];
      cursor.replaceChildren();
      draw(cursor, "line", { x1: point.x, x2: point.x, y1: 26, y2: height - 28 });
      draw(cursor, "circle", { cx: point.x, cy: point.y, r: 4 });
      const text = point.bytes + (point.name ? "  " + point.name : "");
      const long = 14 + 6.6 * text.length, left = Math.min(Math.max(point.x + 10, 80), width - long);
      draw(cursor, "rect", { x: left, y: 30, width: long, height: 22, rx: 5 });
      draw(cursor, "text", { x: left + 7, y: 45 }, text);
    });
    curve.addEventListener("pointerleave", () => cursor.replaceChildren());
  }

  // The graph: boxes in boxes. Each open box lays out what is in it, in layers along the arrows between its children.
  const graph = data("graph-data"), canvas = document.getElementById("scope-graph");
  if (!graph || !canvas) return;
  const PAD = 14, HEAD = 44, GAP_X = 18, GAP_Y = 34, LETTER = 7, WIDEST = 1080, SIDE = 13;
  const scopes = graph.scopes.map((scope, id) => ({ ...scope, id, children: [], edges: [], open: false, depth: 0 }));
  for (const scope of scopes) {
    if (scope.parent !== null) {
      scope.depth = scopes[scope.parent].depth + 1;
      scopes[scope.parent].children.push(scope);
    }
  }
  for (const edge of graph.edges) scopes[scopes[edge.from].parent].edges.push(edge);
  const whole = scopes[0], timed = whole.seconds !== null;
  const weight = scope => timed ? scope.seconds : scope.flops;

  const facts = scope => {
    const list = [scope.instructions + (scope.instructions === 1 ? " op" : " ops")];
    if (scope.flops > 0) list.push(operations(scope.flops));
    if (weight(whole) > 0) list.push((100 * weight(scope) / weight(whole)).toFixed(1) + " %");
    return list.join(" · ");
  };
  // Boxes of one layer do not depend on each other; an arrow against the order of the program closes a loop and is left out.
  const layersOf = scope => {
    const layer = new Map(scope.children.map(child => [child.id, 0]));
    for (const child of scope.children) {
      for (const edge of scope.edges) {
        if (edge.from === child.id && edge.to > child.id) {
          layer.set(edge.to, Math.max(layer.get(edge.to), layer.get(child.id) + 1));
        }
      }
    }
    const layers = [];
    for (const child of scope.children) (layers[layer.get(child.id)] ||= []).push(child);
    return { layer, layers: layers.filter(Boolean) };
  };
  const measure = scope => {
    const title = Math.max(scope.name.length * LETTER + 34, facts(scope).length * 6.2 + 20, scope.sent ? 150 : 0);
    if (!scope.open || !scope.children.length) {
      Object.assign(scope, { w: Math.min(Math.max(title, 110), 330), h: scope.sent ? 62 : 46 });
      return;
    }
    scope.children.forEach(measure);
    const { layer, layers } = layersOf(scope);
    // Arrows past a layer, and those back, go around at the sides.
    const far = scope.edges.filter(edge => Math.abs(layer.get(edge.to) - layer.get(edge.from)) !== 1 || edge.to < edge.from);
    scope.lanes = Math.min(far.length, 7);
    let y = HEAD + (scope.sent ? 14 : 0) + 6, right = 0;
    const center = new Map();
    for (const row of layers) {
      const above = child => {
        const from = scope.edges.filter(edge => edge.to === child.id && center.has(edge.from)).map(edge => center.get(edge.from));
        return from.length ? from.reduce((a, b) => a + b) / from.length : child.id;
      };
      row.map(child => [above(child), child]).sort((a, b) => a[0] - b[0] || a[1].id - b[1].id).forEach(([, child], at) => { row[at] = child; });
      let x = PAD, tall = 0;
      for (const child of row) {
        if (x > PAD && x + child.w > WIDEST - PAD * scope.depth * 2) { y += tall + GAP_X; x = PAD; tall = 0; }
        Object.assign(child, { x, y });
        center.set(child.id, x + child.w / 2);
        x += child.w + GAP_X;
        tall = Math.max(tall, child.h);
        right = Math.max(right, x - GAP_X);
      }
      y += tall + GAP_Y;
    }
    const wide = Math.max(right, Math.min(title, 600) - PAD);
    for (const row of layers) {
      const lines = new Map();
      for (const child of row) lines.set(child.y, [...(lines.get(child.y) || []), child]);
      for (const line of lines.values()) {
        const last = line[line.length - 1], shift = (wide - last.x - last.w) / 2;
        for (const child of line) child.x += shift;
      }
    }
    Object.assign(scope, { w: wide + PAD + scope.lanes * SIDE, h: y - GAP_Y + PAD, inner: wide, layer });
  };
  const path = (scope, edge, number) => {
    const from = scopes[edge.from], to = scopes[edge.to];
    const forward = edge.to > edge.from;
    if (forward && scope.layer.get(edge.to) - scope.layer.get(edge.from) === 1 && from.y + from.h < to.y) {
      const x1 = from.x + from.w / 2, y1 = from.y + from.h, x2 = to.x + to.w / 2, y2 = to.y - 3, half = (y1 + y2) / 2;
      return `M${x1},${y1}C${x1},${half} ${x2},${half} ${x2},${y2}`;
    }
    const x1 = from.x + from.w, y1 = from.y + from.h - 12, x2 = to.x + to.w + 3, y2 = to.y + 14;
    const side = scope.inner + 4 + (number % 7) * SIDE;
    return `M${x1},${y1}C${side},${y1} ${side},${y1} ${side},${(y1 + y2) / 2}S${side},${y2} ${x2},${y2}`;
  };
  const paint = (scope, parent) => {
    const leaf = !scope.children.length;
    const box = draw(parent, "g", { class: "box" + (leaf ? " leaf" : "") + (scope.open ? " open" : ""), "data-scope": scope.id,
      transform: `translate(${scope.x || 0},${scope.y || 0})`, tabindex: leaf ? -1 : 0 });
    draw(box, "rect", { width: scope.w, height: scope.h, rx: 8 });
    const share = weight(whole) > 0 ? weight(scope) / weight(whole) : 0;
    if (!scope.open && share > 0.002) draw(box, "rect", { class: "heat", width: scope.w, height: scope.h, rx: 8, opacity: 0.06 + 0.4 * share });
    const letters = Math.floor((scope.w - 34) / LETTER);
    const name = scope.name.length > letters ? "…" + scope.name.slice(1 - letters) : scope.name;
    draw(box, "text", { class: "name", x: 12, y: 20 }, (leaf ? "" : scope.open ? "▾ " : "▸ ") + name);
    draw(box, "text", { class: "facts", x: 12, y: 37 }, facts(scope));
    if (scope.sent) draw(box, "text", { class: "sent", x: 12, y: 53 }, "sends " + bytes(scope.sent));
    draw(box, "title", {}, scope.name + "\n" + facts(scope) + (scope.sent ? "\nsends " + bytes(scope.sent) : "") + "\n" + scope.opcodes);
    if (!scope.open) return;
    const arrows = draw(box, "g", {});
    let aside = 0;
    for (const edge of scope.edges) {
      const next = scope.layer.get(edge.to) - scope.layer.get(edge.from) === 1 && edge.to > edge.from;
      const line = draw(arrows, "path", { class: "edge" + (edge.to < edge.from ? " back" : ""), d: path(scope, edge, next ? 0 : aside++),
        "stroke-width": Math.min(1 + Math.log2(1 + edge.bytes / 256) / 4, 6), "marker-end": "url(#arrow)",
        "data-from": edge.from, "data-to": edge.to });
      draw(line, "title", {}, scopes[edge.from].name + " → " + scopes[edge.to].name + "\n" + edge.values + " values, " + bytes(edge.bytes));
    }
    scope.children.forEach(child => paint(child, box));
  };
  const redraw = () => {
    canvas.replaceChildren();
    const marker = draw(draw(canvas, "defs", {}), "marker", { id: "arrow", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 9, markerHeight: 9,
      markerUnits: "userSpaceOnUse", orient: "auto" });
    draw(marker, "path", { d: "M0,0L8,4L0,8Z" });
    measure(whole);
    canvas.setAttribute("viewBox", `-2 -2 ${whole.w + 4} ${whole.h + 4}`);
    canvas.setAttribute("width", whole.w + 4);
    canvas.setAttribute("height", whole.h + 4);
    paint(whole, canvas);
    document.getElementById("graph-count").textContent = canvas.querySelectorAll(".box").length + " of " + scopes.length + " scopes";
  };
  const toggle = target => {
    const scope = scopes[target.closest(".box")?.dataset.scope];
    if (scope?.children.length) { scope.open = !scope.open; redraw(); }
  };
  canvas.addEventListener("click", event => toggle(event.target));
  canvas.addEventListener("keydown", event => { if (event.key === "Enter") toggle(event.target); });
  canvas.addEventListener("pointerover", event => {
    const id = event.target.closest(".box")?.dataset.scope;
    for (const line of canvas.querySelectorAll(".edge")) line.classList.toggle("lit", line.dataset.from === id || line.dataset.to === id);
  });
  const openTo = level => {
    // As many as can be read: all of a small program, the first levels of a large one.
    let boxes = 1;
    for (const scope of scopes) {
      scope.open = scope.depth < level && boxes + scope.children.length <= 400;
      boxes += scope.open ? scope.children.length : 0;
    }
    redraw();
  };
  for (const button of document.querySelectorAll("button[data-levels]")) {
    button.addEventListener("click", () => openTo(Number(button.dataset.levels)));
  }
  // Levels are opened while what is open stays small.
  const upTo = level => scopes.filter(scope => scope.depth <= level).length;
  let level = 1;
  while (level < 6 && upTo(level + 1) <= 26) level += 1;
  openTo(level);
  document.documentElement.dataset.ready = "yes";
})();
