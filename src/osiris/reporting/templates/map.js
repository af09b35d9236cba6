"use strict";
/* All text from the collection goes through textContent: names may hold markup. */
const $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent), count = data.names.length;
const raw = text => { const s = atob(text), out = new Uint8Array(s.length); for (let i = 0; i < s.length; i++) out[i] = s.charCodeAt(i); return out; };
const numbers = (text, Kind) => new Kind(raw(text).buffer);
const X = numbers(data.x, Float32Array), Y = numbers(data.y, Float32Array), near = numbers(data.near, Uint32Array);
const cosines = raw(data.cosines), novelty = numbers(data.novelty, Float32Array), step = numbers(data.step, Uint16Array);
const widths = numbers(data.width, Uint32Array), heights = numbers(data.height, Uint32Array);
for (const kind of Object.values(data.kinds)) kind.codes = numbers(kind.codes, Uint16Array);
const known = data.atlas ? raw(data.atlas.known) : new Uint8Array(count);
const medoid = new Uint8Array(count);
for (const row of data.medoids) medoid[row] = 1;
const plural = (n, word) => n.toLocaleString("en") + " " + word + (n === 1 ? "" : "s");

/* The map is scaled into a square of side 2, with y upwards turned down. */
{
  let low = [Infinity, Infinity], high = [-Infinity, -Infinity];
  for (let i = 0; i < count; i++) {
    low = [Math.min(low[0], X[i]), Math.min(low[1], Y[i])];
    high = [Math.max(high[0], X[i]), Math.max(high[1], Y[i])];
  }
  const scale = 2 / (Math.max(high[0] - low[0], high[1] - low[1]) || 1);
  for (let i = 0; i < count; i++) {
    X[i] = (X[i] - (low[0] + high[0]) / 2) * scale;
    Y[i] = -(Y[i] - (low[1] + high[1]) / 2) * scale;
  }
}

/* ---- state ---- */
const state = { colour: Object.keys(data.kinds)[0], step: -1, query: "", hidden: new Set(), chosen: -1, over: -1, tab: "nearest" };
const view = { x: 0, y: 0, k: 300 };
const shown = new Uint8Array(count).fill(2); /* 0: not there, 1: faint, 2: there */
let dark = matchMedia("(prefers-color-scheme:dark)").matches, width = 0, height = 0, ratio = 1, dirty = true, frames = 0;

/* ---- colours ---- */
const rgb = (h, s, l) => { /* h in turns */
  const f = n => { const k = (n + h * 12) % 12; return Math.round(255 * (l - s * Math.min(l, 1 - l) * Math.max(-1, Math.min(k - 3, 9 - k, 1)))); };
  return [f(0), f(8), f(4)];
};
const PLAIN = [[0, 114, 179], [213, 94, 0], [0, 140, 105], [178, 60, 130], [184, 130, 0], [86, 160, 220], [120, 85, 180], [150, 60, 50], [90, 120, 40], [60, 80, 110]];
const NIGHT = [[86, 180, 233], [245, 133, 63], [69, 196, 157], [224, 138, 193], [242, 196, 77], [150, 200, 255], [176, 150, 245], [240, 133, 122], [170, 205, 110], [150, 170, 200]];
function ramp(t) { /* viridis-like, from calm to bright */
  const stops = dark ? [[62, 74, 137], [49, 104, 142], [38, 150, 137], [110, 206, 88], [253, 231, 37]] : [[180, 190, 205], [98, 146, 186], [40, 120, 130], [205, 110, 30], [190, 30, 45]];
  const at = Math.min(0.9999, Math.max(0, t)) * (stops.length - 1), n = Math.floor(at), f = at - n;
  return stops[n].map((v, j) => Math.round(v + f * (stops[n + 1][j] - v)));
}
const order = Float32Array.from(novelty).sort();
const most = order[Math.floor(0.98 * (count - 1))] || 1, least = order[Math.floor(0.02 * (count - 1))] || 0;
function colourOf(kind, code) {
  const size = data.kinds[kind].names.length;
  if (data.kinds[kind].names[code] === "") return dark ? [90, 97, 105] : [170, 176, 184];
  if (kind === "month" && size > 4) return rgb(0.62 + 0.78 * code / size, 0.62, dark ? 0.64 : 0.45);
  return size <= PLAIN.length ? (dark ? NIGHT : PLAIN)[code] : rgb((code * 0.61803) % 1, 0.58, (dark ? 0.62 : 0.44) + 0.07 * (code % 2));
}
const colours = new Uint8Array(4 * count);
function colourAll() {
  const kind = data.kinds[state.colour];
  for (let i = 0; i < count; i++) {
    const c = kind ? colourOf(state.colour, kind.codes[i]) : ramp((novelty[i] - least) / (most - least || 1));
    colours.set(c, 4 * i);
    colours[4 * i + 3] = shown[i] === 2 ? 235 : shown[i] === 1 ? 50 : 0;
  }
  upload();
}
const css = (i, alpha = 1) => `rgba(${colours[4 * i]},${colours[4 * i + 1]},${colours[4 * i + 2]},${alpha})`;

/* ---- points: WebGL, or rectangles where there is none ---- */
const gl = $("dots").getContext("webgl2", { antialias: false, premultipliedAlpha: true });
let program, places, tints;
if (gl) {
  const shader = (kind, text) => { const s = gl.createShader(kind); gl.shaderSource(s, text); gl.compileShader(s); return s; };
  program = gl.createProgram();
  gl.attachShader(program, shader(gl.VERTEX_SHADER, `#version 300 es
    in vec2 place; in vec4 tint; uniform vec4 view; uniform float size; out vec4 colour;
    void main() { gl_Position = vec4((place - view.xy) * view.zw, 0, 1); gl_PointSize = tint.a > 0.0 ? size : 0.0; colour = tint; }`));
  gl.attachShader(program, shader(gl.FRAGMENT_SHADER, `#version 300 es
    precision highp float; in vec4 colour; uniform float size; out vec4 result;
    void main() { float d = length(gl_PointCoord - 0.5) * size; float a = colour.a * clamp(size / 2.0 - d, 0.0, 1.0);
      if (a <= 0.0) discard; result = vec4(colour.rgb * a, a); }`));
  gl.linkProgram(program); gl.useProgram(program);
  const both = new Float32Array(2 * count);
  for (let i = 0; i < count; i++) { both[2 * i] = X[i]; both[2 * i + 1] = Y[i]; }
  places = gl.createBuffer(); gl.bindBuffer(gl.ARRAY_BUFFER, places); gl.bufferData(gl.ARRAY_BUFFER, both, gl.STATIC_DRAW);
  const place = gl.getAttribLocation(program, "place"), tint = gl.getAttribLocation(program, "tint");
  gl.enableVertexAttribArray(place); gl.vertexAttribPointer(place, 2, gl.FLOAT, false, 0, 0);
  tints = gl.createBuffer(); gl.bindBuffer(gl.ARRAY_BUFFER, tints);
  gl.enableVertexAttribArray(tint); gl.vertexAttribPointer(tint, 4, gl.UNSIGNED_BYTE, true, 0, 0);
  gl.enable(gl.BLEND); gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
}
function upload() {
  if (gl) { gl.bindBuffer(gl.ARRAY_BUFFER, tints); gl.bufferData(gl.ARRAY_BUFFER, colours, gl.DYNAMIC_DRAW); }
  dirty = true;
}
const dotSize = () => Math.max(count > 30000 ? 2.2 : 3.5, Math.min(11, (count > 30000 ? 3 : 5.5) * Math.sqrt(view.k / fitted)));
function drawDots() {
  const size = dotSize() * ratio;
  if (gl) {
    gl.viewport(0, 0, gl.canvas.width, gl.canvas.height); gl.clearColor(0, 0, 0, 0); gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform4f(gl.getUniformLocation(program, "view"), view.x, view.y, 2 * view.k / width, -2 * view.k / height);
    gl.uniform1f(gl.getUniformLocation(program, "size"), size);
    gl.drawArrays(gl.POINTS, 0, count);
    return;
  }
  for (let i = 0; i < count; i++) {
    if (!shown[i]) continue;
    const [x, y] = toScreen(i);
    if (x < 0 || y < 0 || x > width || y > height) continue;
    pen.fillStyle = css(i, colours[4 * i + 3] / 255);
    pen.fillRect(x - size / ratio / 2, y - size / ratio / 2, size / ratio, size / ratio);
  }
}

/* ---- thumbnails: those of a level do not cover each other, and each level has all of those before ---- */
const LEVELS = 26, TILE = () => Math.max(40, Math.min(60, width / 20));
let rank = new Uint8Array(count), fitted = 300, last = 0; /* last: the level from which all are drawn */
const shuffled = Uint32Array.from({ length: count }, (_, i) => i);
{ let seed = 1; for (let i = count - 1; i > 0; i--) { seed = (seed * 1103515245 + 12345) % 2147483648; const j = seed % (i + 1); [shuffled[i], shuffled[j]] = [shuffled[j], shuffled[i]]; } }
const distanceAt = level => TILE() * 1.14 / fitted * Math.pow(2, -level / 2);
function rankAll() {
  rank.fill(255);
  if (!data.atlas) return;
  const first = [...data.medoids].filter(i => shown[i] === 2), taken = [];
  let rest = [...first, ...Array.from(shuffled).filter(i => shown[i] === 2 && known[i])];
  for (let level = 0; level < LEVELS && rest.length; level++) {
    const apart = distanceAt(level), cells = new Map(), next = [];
    const key = (a, b) => a * 1048576 + b, cell = v => Math.floor((v + 2) / apart);
    const put = i => { const k = key(cell(X[i]), cell(Y[i])), list = cells.get(k); list ? list.push(i) : cells.set(k, [i]); };
    taken.forEach(put);
    for (const i of rest) {
      if (rank[i] !== 255) continue;
      const a = cell(X[i]), b = cell(Y[i]);
      let free = true;
      for (let u = a - 1; u <= a + 1 && free; u++) for (let v = b - 1; v <= b + 1 && free; v++)
        for (const j of cells.get(key(u, v)) || []) if (Math.max(Math.abs(X[i] - X[j]), Math.abs(Y[i] - Y[j])) < apart) { free = false; break; }
      if (free) { rank[i] = level; taken.push(i); put(i); } else next.push(i);
    }
    rest = next;
    last = level;
  }
}

/* ---- atlas ---- */
const sheets = [];
async function openSheets() {
  for (const [number, place] of [...document.querySelectorAll("script.sheet")].entries()) {
    const blob = new Blob([raw(place.textContent)], { type: "image/webp" });
    place.remove();
    try { sheets[number] = await createImageBitmap(blob); } catch { sheets[number] = null; }
    dirty = true;
    for (const late of document.querySelectorAll("canvas[data-sheet='" + number + "']")) paint(late, +late.dataset.row);
  }
  document.documentElement.dataset.pictures = "ready";
}
function source(i) { /* [sheet, x, y, w, h] */
  const { cell, sheet } = data.atlas, across = Math.floor(sheet / cell), per = across * across, at = i % per;
  const long = Math.max(widths[i], heights[i]) || 1, w = widths[i] ? Math.max(1, Math.round(cell * widths[i] / long)) : cell, h = heights[i] ? Math.max(1, Math.round(cell * heights[i] / long)) : cell;
  const left = (at % across) * cell + Math.floor((cell - w) / 2), top = Math.floor(at / across) * cell + Math.floor((cell - h) / 2);
  return [Math.floor(i / per), left, top, w, h];
}
function paint(canvas, i) {
  const [sheet, x, y, w, h] = source(i);
  canvas.width = w; canvas.height = h; canvas.dataset.row = i;
  if (sheets[sheet]) { canvas.getContext("2d").drawImage(sheets[sheet], x, y, w, h, 0, 0, w, h); delete canvas.dataset.sheet; } else canvas.dataset.sheet = sheet;
  return canvas;
}

/* ---- drawing ---- */
const pen = $("pictures").getContext("2d");
let left = 0, right = 0, top_ = 0, bottom = 0; /* margins that other things cover */
const toScreen = i => [(X[i] - view.x) * view.k + width / 2, (Y[i] - view.y) * view.k + height / 2];
let ground = "", tiles = []; /* drawn last time: [row, x, y, half width, half height] */
function tile(i, size, line) {
  const [x, y] = toScreen(i);
  if (x < -size || y < -size || x > width + size || y > height + size || size < 3) return;
  let w = 0.5, h = 0.5, from = null;
  if (known[i]) { from = source(i); const long = Math.max(from[3], from[4]); w = from[3] / long / 2; h = from[4] / long / 2; }
  w *= size; h *= size;
  if (!from || !sheets[from[0]]) { if (from === null) return; pen.fillStyle = css(i, 0.5); pen.fillRect(x - w, y - h, 2 * w, 2 * h); }
  else {
    const alpha = pen.globalAlpha;
    if (alpha < 1) { pen.globalAlpha = 1; pen.fillStyle = ground; pen.fillRect(x - w, y - h, 2 * w, 2 * h); pen.globalAlpha = alpha; }
    pen.drawImage(sheets[from[0]], from[1], from[2], from[3], from[4], x - w, y - h, 2 * w, 2 * h);
    if (line) { pen.lineWidth = line; pen.strokeStyle = css(i); pen.strokeRect(x - w - line / 2, y - h - line / 2, 2 * w + line, 2 * h + line); }
  }
  tiles.push([i, x, y, w, h]);
}
function draw() {
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  drawDots();
  tiles = [];
  const size = TILE(), level = 2 * Math.log2(view.k / fitted), large = size * Math.min(2.2, Math.max(1, 1 + (level - last) / 4));
  const rows = [];
  if (data.atlas) {
    const reachX = (width / 2 + large) / view.k, reachY = (height / 2 + large) / view.k;
    for (let i = 0; i < count; i++)
      if (rank[i] < level + 1 && shown[i] === 2 && Math.abs(X[i] - view.x) < reachX && Math.abs(Y[i] - view.y) < reachY) rows.push(i);
    rows.sort((a, b) => rank[b] - rank[a] || a - b);
    pen.globalAlpha = state.chosen >= 0 ? 0.45 : 1;
    for (const i of rows) tile(i, large * (rank[i] === 0 ? 1 : Math.min(1, level + 1 - rank[i])), medoid[i] && level < 3 ? 3 : 1.5);
    pen.globalAlpha = 1;
  }
  const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  if (state.chosen >= 0) {
    const [x, y] = toScreen(state.chosen), beside = nearestOf(state.chosen);
    pen.strokeStyle = accent; pen.lineWidth = 1.4;
    for (const [row, cosine] of beside) {
      const [a, b] = toScreen(row);
      pen.globalAlpha = 0.25 + 0.6 * cosine; pen.beginPath(); pen.moveTo(x, y); pen.lineTo(a, b); pen.stroke();
    }
    pen.globalAlpha = 1;
    for (const [row] of beside) known[row] ? tile(row, size * 0.86, 1.5) : ring(row, dotSize() / 2 + 2, accent, 1.5);
    known[state.chosen] ? tile(state.chosen, size * 1.5, 0) : 0;
    const drawn = tiles[tiles.length - 1];
    if (drawn && drawn[0] === state.chosen) { pen.lineWidth = 3; pen.strokeStyle = accent; pen.strokeRect(x - drawn[3] - 2, y - drawn[4] - 2, 2 * drawn[3] + 4, 2 * drawn[4] + 4); }
    else ring(state.chosen, dotSize() / 2 + 4, accent, 3);
  }
  if (state.over >= 0 && state.over !== state.chosen) ring(state.over, dotSize() / 2 + 3, accent, 2);
}
function ring(i, radius, colour, line) {
  const [x, y] = toScreen(i);
  pen.strokeStyle = colour; pen.lineWidth = line; pen.beginPath(); pen.arc(x, y, radius, 0, 7); pen.stroke();
}
const nearestOf = i => Array.from({ length: data.beside }, (_, j) => [near[i * data.beside + j], cosines[i * data.beside + j] / 255]);

/* ---- the view ---- */
let flight = null;
function go(x, y, k, at_once) {
  if (at_once || matchMedia("(prefers-reduced-motion:reduce)").matches) { Object.assign(view, { x, y, k }); flight = null; }
  else flight = { from: { ...view }, to: { x, y, k }, start: performance.now() };
  dirty = true;
}
function fit(rows, at_once) {
  let low = [Infinity, Infinity], high = [-Infinity, -Infinity];
  for (const i of rows) { low = [Math.min(low[0], X[i]), Math.min(low[1], Y[i])]; high = [Math.max(high[0], X[i]), Math.max(high[1], Y[i])]; }
  if (!isFinite(low[0])) return;
  const room = [width - left - right, height - top_ - bottom];
  const k = Math.min(fitted * 24, Math.min(room[0] / Math.max(high[0] - low[0], 1e-3), room[1] / Math.max(high[1] - low[1], 1e-3)) * 0.94);
  go((low[0] + high[0]) / 2 + (right - left) / 2 / k, (low[1] + high[1]) / 2 + (bottom - top_) / 2 / k, k, at_once);
}
const all = () => Array.from({ length: count }, (_, i) => i);
function center(i, closer) {
  const k = Math.max(view.k, closer ? fitted * 4 : view.k);
  go(X[i] + (right - left) / 2 / k, Y[i] + (bottom - top_) / 2 / k, k);
}
function zoom(factor, x = width / 2, y = height / 2) {
  const k = Math.min(fitted * 3000, Math.max(fitted / 4, view.k * factor));
  view.x += (x - width / 2) * (1 / view.k - 1 / k); view.y += (y - height / 2) * (1 / view.k - 1 / k);
  view.k = k; flight = null; dirty = true;
}
function pan(dx, dy) { view.x -= dx / view.k; view.y -= dy / view.k; flight = null; dirty = true; }
function resize() {
  const box = $("stage").getBoundingClientRect();
  width = box.width; height = box.height; ratio = Math.min(2, devicePixelRatio || 1);
  for (const canvas of [$("dots"), $("pictures")]) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); }
  const small = width <= 760;
  left = small ? 8 : 40; right = small ? 8 : 380; top_ = small ? 96 : 70; bottom = (small ? 0.42 * height + 56 : 90);
  const before = fitted;
  fitted = Math.max(40, Math.min((width - left - right) / 2, (height - top_ - bottom) / 2)) * 0.94;
  if (!resize.done) { fit(all(), true); resize.done = true; } else view.k *= fitted / before;
  rankAll(); dirty = true;
}
function frame(now) {
  if (flight) {
    const t = Math.min(1, (now - flight.start) / 420), e = 1 - Math.pow(1 - t, 3), { from, to } = flight;
    view.k = from.k * Math.pow(to.k / from.k, e);
    const share = Math.abs(to.k - from.k) < 1e-9 ? e : (1 / from.k - 1 / view.k) / (1 / from.k - 1 / to.k);
    view.x = from.x + (to.x - from.x) * share; view.y = from.y + (to.y - from.y) * share;
    if (t >= 1) { Object.assign(view, to); flight = null; }
    dirty = true;
  }
  if (dirty) { dirty = false; draw(); frames++; }
  requestAnimationFrame(frame);
}

/* ---- which images are there ---- */
const folded = data.names.map(name => name.toLowerCase());
function filter() {
  const kind = data.kinds[state.colour], query = state.query.toLowerCase();
  let hits = 0;
  for (let i = 0; i < count; i++) {
    const there = !(kind && state.hidden.has(kind.codes[i])) && (state.step < 0 || step[i] <= state.step);
    const meant = (!query || folded[i].includes(query)) && (state.step < 0 || step[i] === state.step);
    shown[i] = there ? (meant ? 2 : 1) : 0;
    hits += shown[i] === 2;
  }
  rankAll(); colourAll();
  const parts = [query ? `${plural(hits, "image")} with “${state.query}” in the name` : plural(hits, "image")];
  if (state.step >= 0) parts.push("of " + data.steps[state.step]);
  $("status").textContent = parts.join(" ") + (query && hits ? " — Enter shows them" : "");
  if (query || state.tab === "found") { state.tab = query ? "found" : "nearest"; panel(); }
}
const found = () => all().filter(i => shown[i] === 2);

/* ---- pieces of the page ---- */
function make(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) name in made ? (made[name] = value) : made.setAttribute(name, value);
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}
function face(i, large) {
  if (data.link && (large || !known[i])) {
    const img = make("img", { alt: "", loading: "lazy", decoding: "async", src: data.link[i] });
    img.onerror = () => img.replaceWith(known[i] ? paint(make("canvas"), i) : dot(i));
    return img;
  }
  return known[i] ? paint(make("canvas"), i) : dot(i);
}
const dot = i => make("span", { className: "none", style: `background:${css(i)};width:38%;max-width:70px;aspect-ratio:1;border-radius:50%` });
function one(i, note, goes, more) {
  const card = make("button", { type: "button", className: "one", title: data.names[i] }, make("span", { className: "face" }, face(i)), make("small", { className: goes ? "go" : "", textContent: note }), more ? make("small", { textContent: more }) : "");
  card.dataset.row = i;
  card.onclick = () => { choose(i); center(i); };
  card.onmouseenter = card.onfocus = () => { state.over = i; dirty = true; };
  card.onmouseleave = card.onblur = () => { state.over = -1; dirty = true; };
  return card;
}
const grid = (rows, note, pair) => make("div", { className: pair ? "grid pair" : "grid" }, ...rows.map((i, j) => one(i, note(i, j))));
const base = name => name.slice(name.lastIndexOf("/") + 1);
const when = i => data.taken[i] || data.kinds.month.names[data.kinds.month.codes[i]];
const facts = i => [when(i), widths[i] ? `${widths[i]} × ${heights[i]}` : ""].filter(Boolean).join(" · ");

const TABS = {
  nearest: ["Image", () => {
    const i = state.chosen;
    if (i < 0) return [make("h2", { textContent: "Choose an image" }), make("p", { textContent: "Click an image or a point: its nearest images by the encoder are shown here and joined by lines. Images that lie together look alike to the encoder." }), make("h3", { textContent: "One image of each group" }), grid(data.medoids, j => "group " + (data.kinds.group.codes[j] + 1))];
    const kinds = Object.entries(data.kinds).filter(([kind]) => kind !== "month").map(([kind, { names, codes }]) => kind === "group" ? names[codes[i]] : names[codes[i]] && `${kind} ${names[codes[i]]}`);
    const name = data.link ? make("a", { href: data.link[i], target: "_blank", rel: "noopener", textContent: data.names[i] }) : data.names[i];
    return [make("div", { className: "large" }, face(i, true)), make("h2", {}, name), make("p", { textContent: facts(i) }), make("p", { textContent: [...kinds.filter(Boolean), `novelty ${novelty[i].toFixed(2)}`].join(" · ") }),
      make("h3", { textContent: "Nearest images" + (data.approximate ? " (approximate)" : "") }), grid(nearestOf(i).map(([row]) => row), (_, j) => cosines[i * data.beside + j] / 255 >= 0.995 ? "≈ 1" : (cosines[i * data.beside + j] / 255).toFixed(2))];
  }],
  found: ["Found", () => {
    const rows = found();
    return [make("h2", { textContent: plural(rows.length, "image") + (state.query ? ` with “${state.query}”` : "") }), grid(rows.slice(0, 90), i => base(data.names[i])), rows.length > 90 ? make("p", { textContent: `and ${rows.length - 90} more` }) : null];
  }],
  twins: ["Duplicates", () => {
    if (!data.twins.length) return [make("h2", { textContent: "No duplicates" })];
    const parts = [make("h2", { textContent: plural(data.twins.length, "group") }), make("p", { textContent: "The best file of each group stands first. Those marked “could go” are copies of it; series and look-alikes are other pictures." })];
    data.twins.slice(0, 200).forEach((group, n) => {
      parts.push(make("h3", { textContent: `${n + 1}  ${group.kind}` }));
      parts.push(make("div", { className: "grid pair" }, ...group.images.map((i, j) => one(i, (group.goes[j] ? "could go · " : "") + `${widths[i]} × ${heights[i]}`, group.goes[j], data.names[i]))));
    });
    if (data.twins.length > 200) parts.push(make("p", { textContent: `and ${data.twins.length - 200} more groups: osiris duplicates lists them.` }));
    return parts;
  }],
  novel: ["New", () => {
    const rows = found().sort((a, b) => novelty[b] - novelty[a]).slice(0, 60);
    return [make("h2", { textContent: "Least like what was there before" }), make("p", { textContent: "1 − similarity to the most similar image of an earlier month or episode" + (state.step >= 0 ? `, of ${data.steps[state.step]}.` : ".") }), grid(rows, i => novelty[i].toFixed(2))];
  }],
  help: ["Keys", () => [make("h2", { textContent: "Keys" }), make("table", { className: "keys" }, ...[["arrows", "move"], ["+  −", "zoom"], ["0", "show everything"], ["/", "search names; Enter shows what was found"], ["N  P", "next image, image before"], ["1 to 9", "the nearest images of the chosen one"], ["Space", "play the time line"], ["[  ]", "month or episode before, after"], ["C", "next colour"], ["T", "light or dark"], ["Esc", "choose nothing, show all times"]].map(([key, what]) => make("tr", {}, make("td", { textContent: key }), make("td", { textContent: what }))))]],
};
function panel() {
  $("tabs").replaceChildren(...Object.entries(TABS).filter(([name]) => name === state.tab || !["found", "help"].includes(name)).map(([name, [title]]) => {
    const tab = make("button", { type: "button", role: "tab", textContent: title, id: "tab-" + name });
    tab.setAttribute("aria-selected", name === state.tab);
    tab.onclick = () => { state.tab = name; panel(); };
    return tab;
  }));
  $("content").replaceChildren(...TABS[state.tab][1]().filter(Boolean));
  $("content").scrollTop = 0;
}
function choose(i) {
  state.chosen = i; dirty = true;
  state.tab = "nearest"; panel();
  if (i >= 0) $("status").textContent = `${data.names[i]}, ${facts(i)}`;
}
function legend() {
  const kind = data.kinds[state.colour];
  if (!kind) {
    const bar = make("div", { className: "bar" });
    bar.style.background = `linear-gradient(90deg,${[0, 0.25, 0.5, 0.75, 1].map(t => `rgb(${ramp(t)})`).join(",")})`;
    return $("legend").replaceChildren(bar, make("div", { className: "ends" }, make("span", { textContent: "known" }), make("span", { textContent: "new" })));
  }
  const sizes = new Uint32Array(kind.names.length);
  for (const code of kind.codes) sizes[code]++;
  $("legend").replaceChildren(...kind.names.slice(0, 300).map((name, code) => {
    const row = make("button", { type: "button", title: name || "none" }, make("i", { style: `background:rgb(${colourOf(state.colour, code)})` }), make("span", { textContent: name || "none" }), make("small", { textContent: sizes[code].toLocaleString("en") }));
    row.setAttribute("aria-pressed", !state.hidden.has(code));
    row.onclick = event => {
      if (event.shiftKey || event.ctrlKey || event.metaKey) state.hidden.has(code) ? state.hidden.delete(code) : state.hidden.add(code);
      else { /* this one alone, or all again */
        const alone = state.hidden.size === kind.names.length - 1 && !state.hidden.has(code);
        state.hidden = new Set(alone ? [] : kind.names.map((_, other) => other).filter(other => other !== code));
      }
      legend(); filter();
    };
    return row;
  }));
}
function recolour(kind) {
  state.colour = kind; state.hidden = new Set(); $("colour").value = kind;
  legend(); filter();
}
let playing = null;
function play() {
  if (playing) { clearInterval(playing); playing = null; }
  else {
    const next = () => { if (state.step >= data.steps.length - 1) { play(); toStep(-1); } else toStep(state.step + 1); };
    playing = setInterval(next, 1400);
    toStep(state.step >= data.steps.length - 1 ? 0 : state.step + 1);
  }
  $("play").textContent = playing ? "❚❚" : "▶";
}
function toStep(to) {
  state.step = Math.max(-1, Math.min(data.steps.length - 1, to));
  timeline(); filter();
  if (state.tab === "novel") panel();
}
function timeline() {
  if (data.steps.length < 2) return;
  if (!$("play")) {
    const sizes = new Uint32Array(data.steps.length);
    for (const one of step) sizes[one]++;
    const largest = Math.max(...sizes);
    $("time").append(make("button", { type: "button", id: "play", title: "Play (Space)", ariaLabel: "Play the time line", textContent: "▶", onclick: play }),
      make("div", { className: "steps" }, ...data.steps.map((name, n) => make("button", { type: "button", title: `${name}: ${plural(sizes[n], "image")}`, onclick: () => toStep(state.step === n ? -1 : n) }, make("i", { style: `height:${Math.max(4, 100 * sizes[n] / largest)}%` }), make("span", { textContent: name })))));
  }
  [...$("time").querySelectorAll(".steps button")].forEach((button, n) => { button.setAttribute("aria-pressed", n === state.step); button.classList.toggle("past", n < state.step); });
}

/* ---- pointer ---- */
function at(x, y) {
  for (let n = tiles.length - 1; n >= 0; n--) { const [i, a, b, w, h] = tiles[n]; if (Math.abs(x - a) <= w && Math.abs(y - b) <= h) return i; }
  let best = -1, reach = 14 * 14;
  for (let i = 0; i < count; i++) {
    if (!shown[i]) continue;
    const a = (X[i] - view.x) * view.k + width / 2 - x, b = (Y[i] - view.y) * view.k + height / 2 - y, d = a * a + b * b - (shown[i] === 2 ? 16 : 0);
    if (d < reach) { reach = d; best = i; }
  }
  return best;
}
function tip(i, x, y) {
  const box = $("tip");
  box.hidden = i < 0;
  if (i < 0) return;
  if (box.dataset.row !== String(i)) {
    box.dataset.row = i;
    box.replaceChildren(...[known[i] ? paint(make("canvas"), i) : null, make("b", { textContent: data.names[i] }), make("small", { textContent: facts(i) })].filter(Boolean));
  }
  box.style.left = Math.max(4, Math.min(x + 16, width - box.offsetWidth - 8)) + "px";
  box.style.top = Math.max(4, Math.min(y + 16, height - box.offsetHeight - 8)) + "px";
}
const fingers = new Map();
let moved = 0;
const stage = $("pictures");
stage.addEventListener("pointerdown", event => { stage.setPointerCapture(event.pointerId); fingers.set(event.pointerId, [event.offsetX, event.offsetY]); moved = fingers.size > 1 ? 99 : 0; tip(-1); });
stage.addEventListener("pointermove", event => {
  const before = fingers.get(event.pointerId), now = [event.offsetX, event.offsetY];
  if (!before) {
    const i = at(...now);
    if (i !== state.over) { state.over = i; dirty = true; stage.classList.toggle("over", i >= 0); }
    return tip(i, ...now);
  }
  fingers.set(event.pointerId, now);
  moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
  if (fingers.size === 2) {
    const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
    zoom(Math.hypot(now[0] - other[0], now[1] - other[1]) / (Math.hypot(before[0] - other[0], before[1] - other[1]) || 1), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
  } else if (moved > 4) { stage.classList.add("moving"); pan(now[0] - before[0], now[1] - before[1]); }
});
const lift = event => {
  if (fingers.delete(event.pointerId) && event.type === "pointerup" && moved <= 4) choose(at(event.offsetX, event.offsetY));
  stage.classList.remove("moving");
};
stage.addEventListener("pointerup", lift);
stage.addEventListener("pointercancel", lift);
stage.addEventListener("pointerleave", () => { state.over = -1; tip(-1); dirty = true; });
stage.addEventListener("dblclick", event => zoom(2, event.offsetX, event.offsetY));
stage.addEventListener("wheel", event => { event.preventDefault(); tip(-1); zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.offsetX, event.offsetY); }, { passive: false });

/* ---- keys ---- */
function nextImage(by) {
  const rows = found();
  if (!rows.length) return;
  const here = rows.indexOf(state.chosen), to = rows[(here + by + rows.length) % rows.length];
  choose(here < 0 && by < 0 ? rows[rows.length - 1] : to); center(state.chosen);
}
addEventListener("keydown", event => {
  const typing = ["INPUT", "SELECT"].includes(event.target.tagName);
  if (event.key === "Escape") { $("search").value = state.query = ""; if (playing) play(); state.chosen = -1; toStep(-1); state.tab = "nearest"; panel(); stage.focus(); return; }
  if (event.target === $("search") && event.key === "Enter") { const rows = found(); if (rows.length) { fit(rows); if (rows.length === 1) choose(rows[0]); } return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const pressed = event.target.tagName === "BUTTON" && [" ", "Enter"].includes(event.key);
  const keys = {
    ArrowLeft: () => pan(80, 0), ArrowRight: () => pan(-80, 0), ArrowUp: () => pan(0, 80), ArrowDown: () => pan(0, -80),
    "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: () => fit(all()), "/": () => $("search").focus(),
    n: () => nextImage(1), p: () => nextImage(-1), " ": () => data.steps.length > 1 && play(), "[": () => toStep(state.step - 1), "]": () => toStep(state.step + 1),
    c: () => { const kinds = [...$("colour").options].map(option => option.value); recolour(kinds[(kinds.indexOf(state.colour) + 1) % kinds.length]); },
    t: () => theme(!dark), "?": () => { state.tab = "help"; panel(); },
    Enter: () => { const i = at(width / 2 + (left - right) / 2, height / 2 + (top_ - bottom) / 2); if (i >= 0) choose(i); },
  };
  for (let digit = 1; digit <= 9; digit++) keys[digit] = () => { if (state.chosen >= 0 && digit <= data.beside) { choose(near[state.chosen * data.beside + digit - 1]); center(state.chosen); } };
  const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (act && !pressed) { event.preventDefault(); act(); }
});

/* ---- start ---- */
function theme(to) {
  dark = to; document.documentElement.dataset.theme = dark ? "dark" : "light";
  ground = getComputedStyle(document.body).backgroundColor;
  legend(); colourAll(); panel();
}
$("search").addEventListener("input", () => { state.query = $("search").value.trim(); filter(); });
for (const kind of [...Object.keys(data.kinds).filter(kind => data.kinds[kind].names.length > 1), "novelty"]) $("colour").append(make("option", { value: kind, textContent: kind }));
state.colour = $("colour").value;
$("colour").onchange = () => { recolour($("colour").value); stage.focus(); };
$("fit").onclick = () => fit(all());
$("theme").onclick = () => theme(!dark);
$("help").onclick = () => { state.tab = state.tab === "help" ? "nearest" : "help"; panel(); };
addEventListener("resize", resize);
resize(); theme(dark); timeline(); filter(); panel();
requestAnimationFrame(frame);
openSheets();
window.osirisMap = { state, view, where: toScreen, shown, frames: () => frames, names: data.names };
document.documentElement.dataset.ready = "true";
