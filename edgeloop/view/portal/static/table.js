// The live table: when the store changes, the rows of this page that changed are fetched, and only
// those are drawn again. Filter, order, page and the place on the screen stay as they are.

import { calmly, say } from "/static/base.js";

const HIGHLIGHT_MS = 4000;
const KEPT_COLUMNS = "edgeloop-columns";
const body = document.getElementById("rows");
const filter = document.getElementById("filter");

function parsed(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  return holder.content;
}

function replace_part(id, html) {
  const part = document.getElementById(id);
  if (part && part.innerHTML !== html) part.innerHTML = html;
}

function still(row) {
  const copy = row.cloneNode(true);
  for (const time of copy.querySelectorAll("time")) time.remove();
  return copy.textContent;
}

function place_rows(answer) {
  const old = new Map([...body.children].map((row) => [row.dataset.mark, row]));
  const before = new Map([...body.children].map((row) => [row.dataset.name, still(row)]));
  const fresh = new Map([...parsed(answer.html).children].map((row) => [row.dataset.mark, row]));
  const changed = [];
  answer.marks.forEach((mark, place) => {
    const row = old.get(mark) ?? fresh.get(mark);
    if (!row) return;
    // A renewed lease is worth a new row, but not that anybody looks up.
    if (!old.has(mark) && before.get(row.dataset.name) !== still(row)) {
      row.classList.add("is-new");
      setTimeout(() => row.classList.remove("is-new"), HIGHLIGHT_MS);
      changed.push(row.dataset.name);
    }
    show_tick(row);
    if (body.children[place] !== row) body.insertBefore(row, body.children[place] ?? null);
  });
  while (body.children.length > answer.marks.length) body.lastElementChild.remove();
  if (changed.length) {
    const shown = changed.slice(0, 3).join(", ");
    say(changed.length > 3 ? `${changed.length} models changed` : `${shown} changed`);
  }
}

// Ticks stay while one filters and turns pages: this tab remembers the names.
const choice = document.getElementById("compare");
const untick = document.getElementById("untick");
const experiment = new URLSearchParams(location.search).get("experiment") ?? "";
const ticks_key = `edgeloop-ticked ${experiment}`;
const ticked = new Set(JSON.parse(sessionStorage.getItem(ticks_key) ?? "[]"));

function show_tick(row) {
  const box = row.querySelector("input[name=name]");
  if (box) box.checked = ticked.has(box.value);
}

function show_ticks() {
  if (!choice) return;
  sessionStorage.setItem(ticks_key, JSON.stringify([...ticked]));
  const here = new Set([...(body?.querySelectorAll("input[name=name]") ?? [])].map((b) => b.value));
  choice.querySelectorAll("input[name=name]").forEach((input) => input.remove());
  for (const name of ticked) {
    if (here.has(name)) continue;
    choice.append(Object.assign(document.createElement("input"), { type: "hidden", name: "name", value: name }));
  }
  const button = choice.querySelector("button");
  button.disabled = ticked.size < 2;
  button.textContent = ticked.size < 2 ? "Compare: tick two or more" : `Compare ${ticked.size} models`;
  untick.hidden = ticked.size === 0;
}

body?.addEventListener("change", (event) => {
  const { name, value, checked } = event.target;
  if (name !== "name") return;
  if (checked) ticked.add(value); else ticked.delete(value);
  show_ticks();
});
untick?.addEventListener("click", () => {
  ticked.clear();
  for (const row of body?.children ?? []) show_tick(row);
  show_ticks();
});
for (const row of body?.children ?? []) show_tick(row);
show_ticks();

// The chosen columns are in the address; this browser remembers them for the next visit.
const columns = document.getElementById("columns");
const asked = new URLSearchParams(location.search);
const kept_columns = localStorage.getItem(KEPT_COLUMNS);
if (asked.has("columns")) {
  localStorage.setItem(KEPT_COLUMNS, asked.getAll("columns").join(","));
} else if (kept_columns && columns) {
  asked.set("columns", kept_columns);
  location.replace(`${location.pathname}?${asked}`);
}
document.getElementById("usual")?.addEventListener("click", () => localStorage.removeItem(KEPT_COLUMNS));
document.addEventListener("click", (event) => {
  if (columns?.open && !columns.contains(event.target)) columns.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !columns?.open) return;
  columns.open = false;
  columns.querySelector("summary").focus();
});

async function refresh() {
  const marks = body ? [...body.children].map((row) => row.dataset.mark) : [];
  const query = new URLSearchParams(location.search);
  query.set("known", marks.join(","));
  const answer = await fetch(`/parts/table?${query}`, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const content = await answer.json();
  const nothing = document.getElementById("no-models");
  if (nothing && !content.marks.length && nothing.dataset.waits === undefined) {
    replace_part("banner", content.banner); // still empty: what is being done here is not disturbed
    return;
  }
  const columns = body?.closest("table").dataset.columns;
  if (columns !== content.columns || (content.marks.length === 0) !== (marks.length === 0)) {
    if (document.body.dataset.busy) return; // with uploads, which a reload would end
    location.reload(); // from an empty page to a table, or back; or to other columns
    return;
  }
  replace_part("chips", content.chips);
  replace_part("pages", content.pages);
  replace_part("banner", content.banner);
  place_rows(content);
}

document.addEventListener("edgeloop:change", calmly(refresh));

// '/' goes to the filter, as in many tables.
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && filter) {
    event.preventDefault();
    filter.focus();
    filter.select();
  }
});
