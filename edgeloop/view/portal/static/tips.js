// What a mark of a chart is, beside the pointer or the focus, at once. Its words are in the `title`
// of the mark, which screen readers and pages without scripts use.

const tip = document.getElementById("tip");
let shown = null; // the mark, and its title while ours is shown instead

function mark_of(target) {
  if (!target.closest(".tips")) return null;
  const anchor = target.closest("a");
  const mark = target.closest("path") ?? anchor?.querySelector("path");
  return mark?.querySelector("title") ? mark : null;
}

function show(mark, x, y) {
  hide();
  const title = mark.querySelector("title");
  const [name, ...rest] = title.textContent.split("; ");
  title.remove();
  shown = { mark, title };
  tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: name }));
  for (const line of rest) {
    tip.append(Object.assign(document.createElement("div"), { textContent: line }));
  }
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 12))}px`;
  tip.style.top = `${y + 16 + box.height > innerHeight ? y - box.height - 12 : y + 16}px`;
}

function hide() {
  if (shown) shown.mark.append(shown.title);
  shown = null;
  tip.hidden = true;
}

document.addEventListener("mouseover", (event) => {
  const mark = mark_of(event.target);
  if (mark) show(mark, event.clientX, event.clientY);
  else if (shown && shown.mark !== event.target) hide();
});
document.addEventListener("focusin", (event) => {
  const mark = mark_of(event.target);
  if (!mark) { hide(); return; }
  const box = mark.getBoundingClientRect();
  show(mark, box.left + box.width / 2, box.top + box.height / 2);
});
document.addEventListener("focusout", hide);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
