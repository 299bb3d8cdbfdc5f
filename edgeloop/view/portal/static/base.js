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
 *  a time, and not at all while the page is hidden. The last wish is always granted. */
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

/** `18:05` in the time of who looks, with the day if it is not today. */
export function clock(seconds) {
  const moment = new Date(seconds * 1000);
  const time = moment.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  if (moment.toDateString() === new Date().toDateString()) return time;
  return `${moment.toLocaleDateString([], { day: "numeric", month: "short" })}, ${time}`;
}

// What is shown is live while the portal answers and its store does; else it is as old as their
// last answer.
const link = { is_open: false, left_at: Date.now() / 1000, is_stale: false, read_at: 0 };

function show_link() {
  const sign = document.getElementById("live");
  if (!sign) return;
  const { is_open, left_at, is_stale, read_at } = link;
  const since = is_stale ? read_at : left_at;
  const is_live = is_open && !is_stale;
  sign.dataset.state = is_live ? "live" : "away";
  sign.textContent = is_live ? "live" : since ? `as of ${clock(since)}` : "no data yet";
  const silent = is_stale ? "The store" : "The portal";
  sign.title = is_live ? "" : `${silent} does not answer. Trying again.`;
}

function hear_of_store(banner, read_at) {
  Object.assign(link, { is_stale: Boolean(banner), read_at: Number(read_at) || 0 });
}

function follow(address) {
  const { stale } = document.body.dataset;
  hear_of_store(stale !== undefined, stale);
  const source = new EventSource(address);
  source.addEventListener("open", () => { link.is_open = true; show_link(); });
  source.addEventListener("error", () => {
    if (link.is_open) Object.assign(link, { is_open: false, left_at: Date.now() / 1000 });
    show_link();
  });
  source.addEventListener("change", (event) => {
    let detail = {};
    try { detail = JSON.parse(event.data); } catch { return; }
    link.is_open = true;
    hear_of_store(detail.banner, detail.read_at);
    show_link();
    document.dispatchEvent(new CustomEvent("edgeloop:change", { detail }));
  });
  // A page kept for 'back' must not hold a connection: browsers allow six to one server.
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}

// Forms of a live part are exchanged while one looks: so listen above them, and look again for the
// one that was meant when the answer comes.
document.addEventListener("submit", (event) => {
  const { confirm, sure } = event.target.dataset;
  const dialog = confirm && document.getElementById(confirm);
  if (!dialog || sure === "yes") return;
  event.preventDefault();
  dialog.returnValue = "";
  dialog.showModal();
  dialog.addEventListener("close", () => {
    const form = document.querySelector(`form[data-confirm="${confirm}"]`);
    if (dialog.returnValue !== "yes" || !form) return;
    form.dataset.sure = "yes";
    form.requestSubmit();
  }, { once: true });
});
// What is saved is the page as it is now: scripts change its address, such as for a selection.
document.addEventListener("click", (event) => {
  const save = event.target.closest("a[data-save]");
  if (!save) return;
  const query = new URLSearchParams(location.search);
  query.set("export", "1");
  save.search = `?${query}`;
});
for (const choice of document.querySelectorAll("[data-submits]")) {
  choice.addEventListener("change", () => choice.form.requestSubmit());
}
const events = document.body.dataset.events;
if (events) follow(events);
setInterval(tick, 1000);
tick();
