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

  function show(problem) {
    text.textContent = problem || (paused ? "Updates are paused." : `Updated every ${seconds} seconds.`);
    button.textContent = paused ? "Resume updates" : "Pause updates";
  }

  async function update() {
    // An update would take the focus or the selection away from the reader.
    if (paused || document.hidden || main.contains(document.activeElement) || !getSelection().isCollapsed) return;
    try {
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("content");
      keepScroll(() => main.replaceChildren(...fresh.children));
      addCopyButtons();
      show();
    } catch {
      show("The service does not answer. Trying again.");
    }
  }

  button.addEventListener("click", () => { paused = !paused; show(); });
  setInterval(update, seconds * 1000);
  show();
}

function keepScroll(change) {
  const places = [...main.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
  change();
  main.querySelectorAll(".scroll").forEach((each, number) => {
    if (places[number]) [each.scrollLeft, each.scrollTop] = places[number];
  });
}

addCopyButtons();
if (main.dataset.refresh) startUpdates(Number(main.dataset.refresh));
