// The list of the costliest layers and the graph beside it: pointing at a line shows its box. Only
// the graph's own frame is scrolled, never the page.

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
