// The list of the costliest layers and the graph beside it: pointing at a line shows its box, where
// only the graph's own frame is scrolled, never the page. A click or Enter on a box or a line opens
// the panel with all that is known of the layer; Escape closes it and leads back.

import { say } from "/static/base.js";

function show(line) {
  const frame = line.closest(".network")?.querySelector(".map");
  for (const box of frame?.querySelectorAll(".is-shown") ?? []) box.classList.remove("is-shown");
  const wanted = ["network-", "network-n-"].map((prefix) => document.getElementById(prefix + line.dataset.box));
  for (const box of wanted) {
    box?.classList.add("is-shown");
    const place = box?.getBoundingClientRect();
    if (!place?.height) continue; // the other drawing is the one on this screen
    const middle = place.top + place.height / 2 - frame.getBoundingClientRect().top;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    frame.scrollBy({ top: middle - frame.clientHeight / 2, behavior: calm ? "auto" : "smooth" });
  }
}

for (const kind of ["mouseover", "focusin"]) {
  document.addEventListener(kind, (event) => {
    const line = event.target.closest?.("[data-box]");
    if (line) show(line);
  });
}

let opener = null; // the box or line whose layer is in the panel

function boxes(number) {
  return ["network-", "network-n-"].map((prefix) => document.getElementById(prefix + number)).filter(Boolean);
}

function mark(number) {
  for (const box of document.querySelectorAll(".map .is-open")) box.classList.remove("is-open");
  for (const box of number === null ? [] : boxes(number)) box.classList.add("is-open");
}

function close() {
  const panel = document.getElementById("layer");
  if (!panel || panel.hidden) return;
  const had_focus = panel.contains(document.activeElement);
  panel.hidden = true;
  mark(null);
  if (had_focus && opener?.isConnected) opener.focus({ preventScroll: true });
}

async function open(link, number) {
  const panel = document.getElementById("layer");
  const address = new URL(panel.dataset.from, location.href);
  address.searchParams.set("box", number);
  const answer = await fetch(address);
  if (!answer.ok) {
    const sentence = "The layer could not be read: reload the page.";
    panel.lastElementChild.replaceChildren(Object.assign(document.createElement("p"), { textContent: sentence }));
    say(sentence);
  } else {
    panel.lastElementChild.innerHTML = await answer.text(); // escaped by the server, as every page
  }
  opener = link;
  panel.hidden = false;
  mark(number);
  panel.querySelector("h3")?.focus({ preventScroll: true });
  panel.scrollTop = 0;
  panel.scrollIntoView({ block: "nearest" });
}

document.addEventListener("click", (event) => {
  if (event.target.closest?.("#layer > button")) { close(); return; }
  const link = event.target.closest?.(".map a.box, [data-box]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const number = link.dataset.box ?? link.id.match(/\d+$/)[0];
  open(link, number).catch(() => say("The portal does not answer."));
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
