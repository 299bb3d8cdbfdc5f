// Upload of ONNX files that are chosen or dropped on the page: one after the other, as they are, with
// the session's own token. What the server refuses is shown as it said it.

import { say } from "/static/base.js";

const zone = document.getElementById("upload");
const list = document.getElementById("uploads");
const field = document.getElementById("upload-files");
const waiting = [];
let is_busy = false;

function entry(file) {
  const item = document.createElement("li");
  const name = Object.assign(document.createElement("bdi"), { textContent: file.name });
  const bar = Object.assign(document.createElement("progress"), { max: 1, value: 0 });
  bar.setAttribute("aria-label", `Upload of ${file.name}`);
  const note = Object.assign(document.createElement("span"), { textContent: "waiting" });
  item.append(name, bar, note);
  list.append(item);
  list.hidden = false;
  return { item, bar, note };
}

function ended({ item, bar, note }, text, name = "") {
  bar.remove();
  note.textContent = text;
  item.className = name ? "is-done" : "is-refused";
  say(`${item.firstChild.textContent}: ${text}`);
  if (!name) return;
  const address = new URL(`/models/${encodeURIComponent(name)}`, location.href);
  const experiment = new URLSearchParams(location.search).get("experiment");
  if (experiment) address.searchParams.set("experiment", experiment);
  note.before(Object.assign(document.createElement("a"), { textContent: name, href: address }));
}

function send(file, shown) {
  return new Promise((resolve) => {
    const address = new URL(zone.dataset.to, location.href);
    address.searchParams.set("file", file.name);
    const request = new XMLHttpRequest(); // fetch tells no progress
    request.open("POST", address);
    request.responseType = "json";
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.setRequestHeader("X-Edgeloop-Token", zone.dataset.token);
    request.upload.addEventListener("progress", ({ loaded, total }) => {
      shown.bar.value = loaded / total;
      shown.note.textContent = loaded < total ? `${Math.floor((100 * loaded) / total)} %` : "is checked";
    });
    request.addEventListener("load", () => {
      const content = request.response ?? {};
      if (request.status !== 200) {
        const detail = typeof content.detail === "string" ? content.detail : `the server answered ${request.status}`;
        ended(shown, detail);
      } else {
        ended(shown, content.is_new ? content.outlook : "already uploaded: same content", content.name);
      }
      resolve();
    });
    request.addEventListener("error", () => {
      ended(shown, "The connection broke off: reload the page and try again.");
      resolve();
    });
    request.send(file);
  });
}

async function work() {
  if (is_busy) return;
  is_busy = true;
  document.body.dataset.busy = "yes";
  for (let next = waiting.shift(); next; next = waiting.shift()) await send(...next);
  is_busy = false;
  if (list.querySelector(".is-refused")) return; // a page that is loaded again would not show why
  delete document.body.dataset.busy;
  document.dispatchEvent(new CustomEvent("edgeloop:change", { detail: { all: true } }));
}

function take(files) {
  for (const file of files) {
    const shown = entry(file);
    const most = Number(zone.dataset.most);
    if (!file.name.toLowerCase().endsWith(".onnx")) ended(shown, "Not an ONNX file.");
    else if (file.size > most) ended(shown, `Larger than ${most / 1e6} MB: use edgeloop upload.`);
    else waiting.push([file, shown]);
  }
  work();
}

const holds_files = (event) => event.dataTransfer?.types.includes("Files");
let depth = 0; // of elements that a file is dragged over

document.addEventListener("dragenter", (event) => {
  if (!holds_files(event)) return;
  depth += 1;
  zone.classList.add("is-over");
});
document.addEventListener("dragleave", (event) => {
  if (!holds_files(event)) return;
  depth = Math.max(0, depth - 1);
  if (!depth) zone.classList.remove("is-over");
});
document.addEventListener("dragover", (event) => { if (holds_files(event)) event.preventDefault(); });
document.addEventListener("drop", (event) => {
  if (!holds_files(event)) return;
  event.preventDefault(); // else the browser leaves the page for the file
  depth = 0;
  zone.classList.remove("is-over");
  take(event.dataTransfer.files);
});
const button = zone.querySelector("button");
button.parentElement.hidden = false; // works with scripts only
button.addEventListener("click", () => field.click());
field.addEventListener("change", () => {
  take([...field.files]);
  field.value = "";
});
addEventListener("beforeunload", (event) => { if (is_busy) event.preventDefault(); });
