// A job's log, growing: asked for by offset, so that nothing is fetched twice. It follows its end
// until one scrolls up or pauses, and goes on where it was.

import { say } from "/static/base.js";

const log = document.getElementById("log");
const pause = document.getElementById("pause");
const state = document.getElementById("log-state");
const EVERY_MS = 1000;
const LARGE = 60_000;
const MOST_CHARACTERS = 2_000_000;
const COLOURS = /\u001b\[[0-9;?]*[A-Za-z]/g; // what a terminal would take for colours

let offset = Number(log.dataset.offset);
let paused = false;

const at_end = () => log.scrollHeight - log.scrollTop - log.clientHeight < 24;

function add(text) {
  const follows = at_end();
  log.append(text.replace(COLOURS, ""));
  if (log.childNodes.length > 1) log.normalize();
  const first = log.firstChild;
  if (first && first.length > MOST_CHARACTERS) first.deleteData(0, first.length - MOST_CHARACTERS);
  if (follows && !paused) log.scrollTop = log.scrollHeight;
}

async function more() {
  const address = new URL(log.dataset.source, location);
  address.searchParams.set("offset", offset);
  const answer = await fetch(address, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const part = await answer.json();
  const got = part.end - offset;
  offset = part.end;
  if (part.text) add(part.text);
  return { got, ended: part.is_final && part.end >= part.size };
}

async function run() {
  for (;;) {
    if (!paused && !document.hidden) {
      try {
        const { ended, got } = await more();
        if (ended && !got) {
          state.textContent = "the log has ended";
          pause.hidden = true;
          say("The log has ended.");
          return;
        }
        state.textContent = "following";
        if (got >= LARGE) continue; // far behind: no need to wait
      } catch (error) {
        state.textContent = `${error.message}; trying again`;
      }
    }
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}

pause.hidden = false;
pause.addEventListener("click", () => {
  paused = !paused;
  pause.textContent = paused ? "Follow" : "Pause";
  pause.setAttribute("aria-pressed", String(paused));
  state.textContent = paused ? "paused" : "following";
  if (!paused) log.scrollTop = log.scrollHeight;
});
log.scrollTop = log.scrollHeight;
run();
