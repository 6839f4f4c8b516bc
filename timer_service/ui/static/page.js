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

function startUpdates(seconds) {
  const place = document.getElementById("updates");
  const button = document.createElement("button");
  const text = document.createElement("span");
  button.type = "button";
  place.append(text, button);
  let paused = false;
  let asking = false;

  function show(problem) {
    text.textContent = problem || (paused ? "Updates are paused." : `Updated every ${seconds} seconds.`);
    button.textContent = paused ? "Resume updates" : "Pause updates";
  }

  async function update() {
    if (paused || asking || document.hidden || isUsed()) return;
    asking = true;
    try {
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("content");
      keepPlaces(() => main.replaceChildren(...fresh.children));
      addCopyButtons();
      show();
    } catch {
      show("The service does not answer. Trying again.");
    } finally {
      asking = false;
    }
  }

  button.addEventListener("click", () => { paused = !paused; show(); });
  setInterval(update, seconds * 1000);
  show();
}

// An update would take the focus of a link or the selection away from the reader.
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
