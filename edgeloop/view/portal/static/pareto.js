// The chart: what a point is shows beside the pointer; a rectangle drawn over points, or Space on
// those reached with the Tab key, filters the table below. A selection is four limits in the
// address, so that it can be shared.

import { calmly, say } from "/static/base.js";

const chart = document.getElementById("chart");
const tip = document.getElementById("tip");
const LIMITS = ["x_min", "x_max", "y_min", "y_max"];
const FACTORS = ["x_factor", "y_factor"]; // of limits that were typed, in the units of the axes
const DRAG_PX = 5;
const HIT_R = 7;

let points = new Map(); // the link in the chart → { name, x, y, about }
let picked = new Set();
let drag = null;
let dragged = false; // the click that a drag ends with must not open a model

function read_points() {
  const list = JSON.parse(document.getElementById("points").textContent);
  points = new Map();
  const anchors = [...chart.querySelectorAll("a[href]")];
  const by_address = new Map(list.map((point) => [point.href, point]));
  for (const anchor of anchors) {
    const point = by_address.get(anchor.getAttribute("href"));
    if (!point) continue;
    points.set(anchor, point);
    anchor.querySelector("title")?.remove(); // our own says more, at once
    anchor.setAttribute("aria-label", point.about);
    anchor.setAttribute("draggable", "false");
    widen(anchor);
  }
}

/** An estimate is a ring, and its hole is no place to point at; so is the edge of a small mark. */
function widen(anchor) {
  const path = anchor.querySelector("path");
  if (!path || anchor.querySelector(".hit")) return;
  const disc = document.createElementNS(path.namespaceURI, "circle");
  disc.setAttribute("class", "hit");
  disc.setAttribute("r", HIT_R);
  disc.setAttribute("transform", path.getAttribute("transform") ?? "");
  anchor.append(disc);
}

function show_tip(anchor, x, y) {
  const point = points.get(anchor);
  if (!point) return;
  const [name, ...rest] = point.lines;
  tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: name }));
  for (const line of rest) {
    tip.append(Object.assign(document.createElement("div"), { textContent: line }));
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 12))}px`;
  tip.style.top = `${y + 16 + box.height > innerHeight ? y - box.height - 12 : y + 16}px`;
}

function middle(anchor) {
  const box = anchor.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
}

function mark() {
  chart.classList.toggle("has-selection", picked.size > 0);
  for (const anchor of points.keys()) anchor.classList.toggle("is-picked", picked.has(anchor));
}

function limits() {
  const chosen = [...picked].map((anchor) => points.get(anchor));
  const xs = chosen.map((point) => point.x);
  const ys = chosen.map((point) => point.y);
  return [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
}

async function choose(anchors) {
  picked = new Set(anchors);
  const query = new URLSearchParams(location.search);
  for (const name of [...LIMITS, ...FACTORS]) query.delete(name);
  if (picked.size) limits().forEach((value, place) => query.set(LIMITS[place], value));
  history.replaceState(null, "", `?${query}`);
  mark();
  await refresh_table();
}

async function refresh_table() {
  const answer = await fetch(`/pareto${location.search}`, { headers: { Accept: "text/html" } });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const id of ["chosen", "limits", "numbers", "drawing", "points"]) {
    const part = document.getElementById(id);
    const fresh = page.getElementById(id);
    if (part && fresh && part.innerHTML !== fresh.innerHTML) part.innerHTML = fresh.innerHTML;
  }
  read_points();
  restore();
  say(document.querySelector("#chosen h2")?.textContent.trim() ?? "");
}

/** After a reload, or when a link with a selection was opened. */
function restore() {
  const query = new URLSearchParams(location.search);
  const [left, right, low, high] = LIMITS.map((name) => {
    const text = query.get(name);
    const factor = Number(query.get(`${name[0]}_factor`)) || 1;
    return text === null || text === "" ? null : Number(text) / factor;
  });
  picked = new Set();
  if ([left, right, low, high].some((limit) => limit !== null)) {
    for (const [anchor, { x, y }] of points) {
      const inside = x >= (left ?? -Infinity) && x <= (right ?? Infinity)
        && y >= (low ?? -Infinity) && y <= (high ?? Infinity);
      if (inside) picked.add(anchor);
    }
  }
  mark();
}

function box_of(event) {
  return {
    left: Math.min(drag.x, event.clientX),
    right: Math.max(drag.x, event.clientX),
    top: Math.min(drag.y, event.clientY),
    bottom: Math.max(drag.y, event.clientY),
  };
}

function draw_brush(event) {
  const box = box_of(event);
  const home = chart.getBoundingClientRect();
  Object.assign(drag.brush.style, {
    left: `${box.left - home.left + chart.scrollLeft}px`,
    top: `${box.top - home.top}px`,
    width: `${box.right - box.left}px`,
    height: `${box.bottom - box.top}px`,
  });
}

function begin(event) {
  if (event.button !== 0 || !event.isPrimary || !event.target.closest("svg")) return;
  drag = { x: event.clientX, y: event.clientY, brush: null, id: event.pointerId };
}

function move(event) {
  if (!drag) return;
  const far = Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > DRAG_PX;
  if (!drag.brush && far) {
    chart.setPointerCapture(drag.id);
    drag.brush = Object.assign(document.createElement("div"), { className: "brush" });
    chart.append(drag.brush);
    tip.hidden = true;
  }
  if (drag.brush) draw_brush(event);
}

function end(event) {
  const was = drag;
  if (!was?.brush) { drag = null; return; }
  const box = box_of(event);
  drag = null;
  was.brush.remove();
  const inside = [...points.keys()].filter((anchor) => {
    if (!anchor.getClientRects().length) return false; // of the drawing for other screens
    const [x, y] = middle(anchor);
    return x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
  });
  dragged = true;
  setTimeout(() => { dragged = false; }, 0);
  choose(inside).catch((error) => say(error.message));
}

chart.addEventListener("pointerdown", begin);
chart.addEventListener("pointermove", move);
chart.addEventListener("pointerup", end);
chart.addEventListener("pointercancel", () => { drag?.brush?.remove(); drag = null; });
chart.addEventListener("click", (event) => { if (dragged) event.preventDefault(); }, true);
chart.addEventListener("dragstart", (event) => event.preventDefault());
chart.addEventListener("mouseover", (event) => {
  const anchor = event.target.closest("a");
  if (anchor && !drag?.brush) show_tip(anchor, event.clientX, event.clientY);
});
chart.addEventListener("mouseout", () => { tip.hidden = true; });
chart.addEventListener("focusin", (event) => {
  const anchor = event.target.closest("a");
  if (anchor) show_tip(anchor, ...middle(anchor));
});
chart.addEventListener("focusout", () => { tip.hidden = true; });
chart.addEventListener("keydown", (event) => {
  const anchor = event.target.closest("a");
  if (event.key === " " && anchor) {
    event.preventDefault();
    const chosen = new Set(picked);
    if (!chosen.delete(anchor)) chosen.add(anchor);
    choose(chosen).catch((error) => say(error.message));
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && picked.size) choose([]).catch((error) => say(error.message));
});
document.addEventListener("edgeloop:change", calmly(async () => {
  if (!drag) await refresh_table();
}));

read_points();
restore();
