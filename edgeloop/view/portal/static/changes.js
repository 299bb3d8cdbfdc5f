// Reset, priority, tags, note and delete of a model, abort and resubmit of a job: sent as JSON with the session's own token, so that no other page can
// send them. What the server refuses is shown as it said it.

import { say } from "/static/base.js";

const refused = document.getElementById("refused");
const BODIES = {
  annotation: (form) => ({
    tags: form.elements.tags.value.split(",").map((tag) => tag.trim()).filter(Boolean),
    comment: form.elements.comment.value,
  }),
  reset: (form) => ({ stages: form.elements.stage.value ? [form.elements.stage.value] : [] }),
  priority: (form) => {
    const text = form.elements.priority.value;
    return { priority: text === "" ? null : Number(text) };
  },
};

// Usually a sentence; what a body may not contain comes as a list, one entry for each place.
function sentence(detail) {
  if (!Array.isArray(detail)) return detail;
  return detail.map(({ loc, msg }) => [...loc.slice(1), msg].join(": ")).join("; ");
}

async function send(form) {
  refused.hidden = true;
  if (form.dataset.after) document.body.dataset.leaving = "yes"; // live.js need not look again
  const answer = await fetch(form.dataset.change, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Edgeloop-Token": form.dataset.token },
    body: JSON.stringify(BODIES[form.dataset.kind]?.(form) ?? {}),
  });
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    delete document.body.dataset.leaving;
    throw new Error(sentence(content.detail) ?? `the server answered ${answer.status}`);
  }
  say("Done.");
  const { after } = form.dataset; // {}: the name of what the change made
  if (after) location.assign(after.replace("{}", encodeURIComponent(content.name)));
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.dataset.change === undefined) return;
  if (event.defaultPrevented && form.dataset.sure !== "yes") return; // a dialog asks first
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    await send(form);
  } catch (error) {
    refused.querySelector("span").textContent = error.message;
    refused.hidden = false;
  }
  button.disabled = false;
  delete form.dataset.sure;
});
