// What every page does: times that tick, the link to the server, dialogs before a change.
// The script of a page listens for `edgeloop:change` on the document.

const AT_MOST_EVERY_MS = 900;

export function say(text) {
  document.getElementById("said").textContent = text;
}

export function ago(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  const days = Math.floor(seconds / 86400);
  return days === 1 ? "1 day" : `${days} days`;
}

function tick() {
  const now = Date.now();
  for (const element of document.querySelectorAll("time[data-ago]")) {
    const seconds = Math.max(0, (now - Date.parse(element.dateTime)) / 1000);
    const text = ago(seconds);
    if (!Number.isNaN(seconds) && element.textContent !== text) element.textContent = text;
  }
}

/** Runs `work` at once, then at most once in a while however often it is asked for; never twice at
 *  a time, and not at all while nobody looks. The last wish is always granted. */
export function calmly(work) {
  let wanted = false;
  let busy = false;
  const go = async () => {
    if (busy || !wanted || document.hidden) return;
    busy = true;
    wanted = false;
    try {
      await work();
    } catch (error) {
      console.warn(`This page could not be brought up to date: ${error.message}`);
    }
    setTimeout(() => { busy = false; go(); }, AT_MOST_EVERY_MS);
  };
  document.addEventListener("visibilitychange", go);
  return () => { wanted = true; go(); };
}

function show_state(state, text) {
  const sign = document.getElementById("live");
  if (!sign || sign.dataset.state === state) return;
  sign.dataset.state = state;
  sign.textContent = text;
}

function follow(address) {
  const source = new EventSource(address);
  source.addEventListener("open", () => show_state("live", "live"));
  source.addEventListener("error", () => show_state("away", "connecting …"));
  for (const kind of ["change", "message", "stale", "fresh"]) {
    source.addEventListener(kind, (event) => {
      show_state("live", "live");
      let detail = {};
      try { detail = JSON.parse(event.data); } catch { return; }
      document.dispatchEvent(new CustomEvent("edgeloop:change", { detail }));
    });
  }
  // A page kept for 'back' must not hold a connection: browsers allow six to one server.
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}

function ask_before(form) {
  const dialog = document.getElementById(form.dataset.confirm);
  if (!dialog) return;
  form.addEventListener("submit", (event) => {
    if (form.dataset.sure === "yes") return;
    event.preventDefault();
    dialog.showModal();
  });
  dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "yes") return;
    form.dataset.sure = "yes";
    form.requestSubmit();
  });
}

for (const form of document.querySelectorAll("form[data-confirm]")) ask_before(form);
for (const choice of document.querySelectorAll("[data-submits]")) {
  choice.addEventListener("change", () => choice.form.requestSubmit());
}
const events = document.body.dataset.events;
if (events) follow(events);
setInterval(tick, 1000);
tick();
