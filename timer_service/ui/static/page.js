// Live updates and buttons to copy commands. Each page works without this file.
"use strict";

const main = document.getElementById("content");

function addCopyButtons() {
  if (!navigator.clipboard) return; // browsers have a clipboard for localhost and https only
  for (const command of main.querySelectorAll("pre.command")) {
    const box = document.createElement("div");
    const button = document.createElement("button");
    box.className = "with-copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(command.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not allowed";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    command.replaceWith(box);
    box.append(command, button);
  }
}

// The service closes a connection after ten seconds.
const LONGEST_ANSWER = 11_000;

function startUpdates(seconds) {
  const place = document.getElementById("updates");
  const button = document.createElement("button");
  const text = document.createElement("span");
  button.type = "button";
  place.append(text, button);
  let paused = false;
  let asking = false;
  let waiting = false;
  let shown = timeOfDay();

  function show() {
    const rest = waiting ? `Updates pause while a link or button has the focus or text is selected. This page is from ${shown}.` : `Updated every ${seconds} seconds.`;
    text.textContent = paused ? "Updates are paused." : rest;
    button.textContent = paused ? "Resume updates" : "Pause updates";
  }

  async function update() {
    if (paused || asking || document.hidden) return;
    asking = true;
    try {
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(LONGEST_ANSWER) });
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("content");
      waiting = isUsed();
      if (waiting) {
        main.querySelector("[role=alert]")?.replaceWith(fresh.querySelector(".verdict") ?? "");
      } else {
        keepPlaces(() => main.replaceChildren(...fresh.children));
        addCopyButtons();
        shown = timeOfDay();
      }
      show();
    } catch {
      showOutage(shown);
      text.textContent = "Trying again.";
    } finally {
      asking = false;
    }
  }

  button.addEventListener("click", () => { paused = !paused; show(); });
  const resume = () => { if (waiting && !isUsed()) update(); };
  main.addEventListener("focusout", () => setTimeout(resume)); // after another part has got the focus
  document.addEventListener("selectionchange", resume);
  document.addEventListener("visibilitychange", update);
  setInterval(update, seconds * 1000);
  show();
}

function timeOfDay() {
  return `${new Date().toISOString().slice(11, 19)} UTC`;
}

// What the page shows may be over. So a verdict of before must not stay.
function showOutage(shown) {
  const verdict = main.querySelector(".verdict") ?? document.createElement("p");
  verdict.className = "verdict bad";
  verdict.setAttribute("role", "alert");
  verdict.textContent = `The service does not answer. This page is from ${shown}.`;
  main.querySelector("h1").after(verdict);
}

// An update would take the focus of a link or the selection away from the reader, so it waits.
function isUsed() {
  const focused = document.activeElement;
  return (main.contains(focused) && focused.matches("a, button, input, select")) || !getSelection().isCollapsed;
}

// Parts that scroll or unfold keep their place and the focus.
function keepPlaces(change) {
  const folds = () => [...main.querySelectorAll("details")];
  const opened = folds().map((each) => each.open);
  const parts = () => [...main.querySelectorAll(".scroll, pre, summary")];
  const places = parts().map((each) => [each.scrollLeft, each.scrollTop]);
  const focused = parts().indexOf(document.activeElement);
  change();
  folds().forEach((each, number) => { each.open = opened[number] ?? each.open; });
  parts().forEach((each, number) => { [each.scrollLeft, each.scrollTop] = places[number] ?? [0, 0]; });
  parts()[focused]?.focus({ preventScroll: true });
}

// The first box of a tall graph is in the middle of its column, which may be out of sight, above all on a phone.
function showFirstBox() {
  const graph = main.querySelector(".graph");
  const box = graph?.querySelector(".box rect");
  const top = box ? box.y.baseVal.value : 0;
  if (top + 30 > graph?.clientHeight) graph.scrollTop = top - graph.clientHeight / 2;
}

addCopyButtons();
showFirstBox();
for (const each of document.querySelectorAll(".bar [aria-current], .tabs [aria-current]")) {
  each.scrollIntoView({ block: "nearest", inline: "center" }); // on a phone, it may be out of sight
}
if (main.dataset.refresh) startUpdates(Number(main.dataset.refresh));
