// Pages that are small enough to be asked for again as a whole: parts marked `data-live` that came
// out different are exchanged, all else (what is open, typed or scrolled) stays.
//
// `data-quiet` on a part: it changes all the time, so it is not announced. `data-own` inside a part:
// scripts of the page filled it, and it is kept.
// `data-live-model` on the body: only when that model changed. `data-every`: seconds, for pages
// about things that the table's events know nothing of.

import { calmly, say } from "/static/base.js";

async function refresh() {
  if (document.body.dataset.leaving) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.status === 404) { location.reload(); return; }
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  let changed = 0;
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(part.id);
    if (!fresh || differs(part, fresh) === false) continue;
    const open = new Set([...part.querySelectorAll("details[open]")].map((d) => d.id));
    for (const details of fresh.querySelectorAll("details")) details.open = open.has(details.id);
    const ticked = new Set([...part.querySelectorAll("input:checked")].map((box) => box.value));
    for (const box of fresh.querySelectorAll("input[type=checkbox]")) box.checked = ticked.has(box.value);
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    for (const own of part.querySelectorAll("[data-own]")) fresh.querySelector(`#${own.id}`)?.replaceWith(own);
    part.replaceWith(document.adoptNode(fresh));
    if (focused) same(fresh, focused)?.focus({ preventScroll: true });
    if (fresh.dataset.quiet === undefined) changed += 1;
  }
  if (changed) say("This page was brought up to date.");
}

// Where the focus was: the element with the same id, else the first with the same address.
function same(part, old) {
  if (old.id) return document.getElementById(old.id);
  return [...part.querySelectorAll("a[href]")].find((link) => link.href === old.href);
}

// Times tick on by themselves, so their text is no difference.
function differs(one, two) {
  const still = (element) => {
    const copy = element.cloneNode(true);
    for (const time of copy.querySelectorAll("time[data-ago]")) time.textContent = "";
    for (const details of copy.querySelectorAll("details")) details.removeAttribute("open");
    for (const own of copy.querySelectorAll("[data-own]")) own.remove();
    for (const box of copy.querySelectorAll(".is-open, .is-shown")) box.classList.remove("is-open", "is-shown");
    return copy.innerHTML;
  };
  return still(one) !== still(two);
}

const model = document.body.dataset.liveModel;
const again = calmly(refresh);
document.addEventListener("edgeloop:change", (event) => {
  const { changed = [], gone = [], all = false } = event.detail;
  const others = [...changed, ...gone];
  // An event without names is about the store itself: it went away, or came back.
  if (!model || all || others.length === 0 || others.includes(model)) again();
});
const every = Number(document.body.dataset.every);
if (every) setInterval(again, every * 1000);
