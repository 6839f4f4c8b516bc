// Returns a text for each fault that a reader with a screen reader, a keyboard or weak eyes would meet, beyond those of axe-core.
(() => {
  const faults = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const about = (element) => element.outerHTML.slice(0, 120);
  const fault = (what, element) => faults.push(element ? `${what}: ${about(element)}` : what);

  // Structure
  for (const [name, selector] of Object.entries({ header: "body > header", main: "body > main", footer: "body > footer" })) {
    if (all(selector).length !== 1) fault(`there is not one ${name}`);
  }

  // Names
  for (const element of all("svg")) if (element.getAttribute("aria-hidden") !== "true" && !element.getAttribute("aria-label")) fault("no name", element);
  for (const element of all("[role=group], section")) {
    if (!element.getAttribute("aria-label") && !element.getAttribute("aria-labelledby")) fault("no name", element);
  }
  const sections = all("section").map((section) => section.getAttribute("aria-labelledby"));
  if (new Set(sections).size !== sections.length) fault("sections need different labels");
  for (const element of all("svg a")) {
    const shown = element.querySelector("text").textContent;
    if (!element.getAttribute("aria-label").includes(shown)) fault("its name does not contain what is shown", element);
  }
  for (const element of all("[aria-labelledby]")) {
    if (!document.getElementById(element.getAttribute("aria-labelledby"))) fault("its label does not exist", element);
  }
  for (const element of all("pre[aria-label]:not([role])")) fault("a label needs a role", element);
  const ids = all("[id]").map((element) => element.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) fault(`the id ${id} is there twice`);
  for (const element of all("thead th")) if (element.scope !== "col") fault("no scope", element);
  for (const element of all("tbody th")) if (element.scope !== "row") fault("no scope", element);

  // Keyboard: what scrolls can get the focus
  for (const element of all(".scroll, pre")) {
    if (element.scrollWidth > element.clientWidth && element.tabIndex < 0) fault("it scrolls, but has no focus", element);
  }

  // Width: only marked parts scroll sideways
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) fault(`the page is ${page.scrollWidth} wide and the window ${page.clientWidth}`);

  // Nothing is cut, and on a phone only the graph scrolls sideways
  for (const element of all("main :is(dd, tbody th, tbody td, p, h1, h2)")) {
    if (element.scrollWidth > element.clientWidth + 1 && !element.matches(".unseen")) fault("its text does not fit", element);
  }
  for (const element of all("main :is(.scroll, pre)")) {
    const isCut = innerWidth <= 640 && element.scrollWidth > element.clientWidth;
    if (isCut && !element.matches(".graph")) fault("it scrolls sideways on a phone", element);
  }

  // Contrast of text (WCAG 2.2, 1.4.3)
  const parse = (colour) => { const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number); return { r, g, b, a }; };
  const light = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    const box = element.closest(".box");
    if (box) return parse(getComputedStyle(box.querySelector("rect")).fill);
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.a === 1) return colour;
    }
    return parse("rgb(255, 255, 255)");
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || seen.has(element) || element.closest("script, title, .unseen, .skip, option")) continue;
    seen.add(element);
    const style = getComputedStyle(element);
    const colour = parse(element.tagName === "text" ? style.fill : style.color);
    const [one, other] = [light(colour), light(ground(element))].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < needed) fault(`contrast ${contrast.toFixed(2)}`, element);
  }
  return faults;
})()
