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
  const PAD = 14, HEAD = 44, GAP_X = 18, GAP_Y = 38, LETTER = 7, WIDEST = 1080, SIDE = 9, LANES = 6;
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
  // An order in which arrows go onwards: of what is left the first that nothing left leads to, or, in a circle, the first of all.
  const order = scope => {
    const rank = new Map(), left = new Map(scope.children.map(child => [child.id, 0]));
    const onwards = new Map(scope.children.map(child => [child.id, []]));
    for (const edge of scope.edges) {
      left.set(edge.to, left.get(edge.to) + 1);
      onwards.get(edge.from).push(edge.to);
    }
    while (left.size) {
      let next = left.keys().next().value;
      for (const [id, count] of left) if (count === 0) { next = id; break; }
      rank.set(next, rank.size);
      left.delete(next);
      for (const id of onwards.get(next)) if (left.has(id)) left.set(id, left.get(id) - 1);
    }
    return rank;
  };
  // Boxes of one layer do not depend on each other; an arrow against the order closes a circle, and makes no layers.
  const layersOf = scope => {
    scope.rank = order(scope);
    const layer = new Map(scope.children.map(child => [child.id, 0]));
    const rank = scope.rank, edges = scope.edges.filter(edge => rank.get(edge.from) < rank.get(edge.to));
    edges.sort((a, b) => rank.get(a.from) - rank.get(b.from));
    for (const edge of edges) layer.set(edge.to, Math.max(layer.get(edge.to), layer.get(edge.from) + 1));
    const layers = [];
    for (const child of scope.children) (layers[layer.get(child.id)] ||= []).push(child);
    return layers.filter(Boolean);
  };
  const measure = scope => {
    const title = Math.max(scope.name.length * LETTER + 34, facts(scope).length * 6.2 + 20, scope.sent ? 150 : 0);
    if (!scope.open || !scope.children.length) {
      Object.assign(scope, { w: Math.min(Math.max(title, 110), 330), h: scope.sent ? 62 : 46 });
      return;
    }
    scope.children.forEach(measure);
    const layers = layersOf(scope);
    // Lines of boxes: a layer is one, or several where it is too wide.
    const lines = [], center = new Map();
    let y = HEAD + (scope.sent ? 14 : 0) + 12, right = 0;
    for (const row of layers) {
      const above = child => {
        const from = scope.edges.filter(edge => edge.to === child.id && center.has(edge.from)).map(edge => center.get(edge.from));
        return from.length ? from.reduce((a, b) => a + b) / from.length : child.id;
      };
      row.map(child => [above(child), child]).sort((a, b) => a[0] - b[0] || a[1].id - b[1].id).forEach(([, child], at) => { row[at] = child; });
      let x = PAD, line = null;
      for (const child of row) {
        if (!line || x + child.w > WIDEST - PAD * scope.depth * 2) {
          if (line) y = line.bottom + GAP_Y;
          lines.push(line = { top: y, bottom: y, boxes: [], number: lines.length });
          x = PAD;
        }
        Object.assign(child, { x, y, line });
        line.boxes.push(child);
        line.bottom = Math.max(line.bottom, y + child.h);
        center.set(child.id, x + child.w / 2);
        x += child.w + GAP_X;
        right = Math.max(right, x - GAP_X);
      }
      y = line.bottom + GAP_Y;
    }
    const wide = Math.max(right, Math.min(title, 600) - PAD);
    for (const { boxes } of lines) {
      const last = boxes[boxes.length - 1], shift = (wide - last.x - last.w) / 2;
      for (const child of boxes) child.x += shift;
    }
    // Arrows past a line, and those back, go between the lines to the side and there up or down.
    scope.aside = scope.edges.filter(edge => !isNear(edge));
    const lanes = Math.min(scope.aside.length, LANES);
    Object.assign(scope, { w: wide + PAD + (lanes ? 6 + lanes * SIDE : 0), h: y - GAP_Y + PAD, inner: wide });
  };
  const isNear = edge => scopes[edge.to].line.number === scopes[edge.from].line.number + 1;
  const path = (scope, edge) => {
    const from = scopes[edge.from], to = scopes[edge.to];
    const x1 = from.x + from.w / 2, y1 = from.y + from.h, x2 = to.x + to.w / 2, y2 = to.y - 3;
    if (isNear(edge)) {
      // Past the boxes beside it first.
      const bottom = from.line.bottom, half = (bottom + y2) / 2;
      return `M${x1},${y1}V${bottom}C${x1},${half} ${x2},${half} ${x2},${y2}`;
    }
    const lane = scope.aside.indexOf(edge) % LANES, side = scope.inner + 10 + lane * SIDE;
    const below = from.line.bottom + 6 + 2 * lane, above = to.line.top - 12 - 2 * lane, r = 6, way = above < below ? -1 : 1;
    return `M${x1},${y1}V${below - r}Q${x1},${below} ${x1 + r},${below}H${side - r}Q${side},${below} ${side},${below + way * r}`
      + `V${above - way * r}Q${side},${above} ${side - r},${above}H${x2 + r}Q${x2},${above} ${x2},${above + r}V${y2}`;
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
    for (const edge of scope.edges) {
      const line = draw(arrows, "path", { class: "edge" + (scope.rank.get(edge.to) < scope.rank.get(edge.from) ? " back" : ""), d: path(scope, edge),
        "stroke-width": Math.min(1 + Math.log2(1 + edge.bytes / 1024) / 6, 3.5), "marker-end": "url(#arrow)",
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
      scope.open = scope.children.length > 0 && scope.depth < level && boxes + scope.children.length <= 400;
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
