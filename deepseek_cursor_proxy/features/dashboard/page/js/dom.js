// Elements by code. Text from the network only ever becomes a text node: nothing here parses HTML.
//
//   h("td.number", { title: "…" }, "12")     an element with classes; attributes may be left out,
//   s("rect.series", { x: 0 })                children are nodes, text or null; the same in SVG

const SVG = "http://www.w3.org/2000/svg";

export function h(names, ...contents) {
  const [tag, ...classes] = names.split(".");
  return fill(document.createElement(tag), classes, contents);
}

export function s(names, ...contents) {
  const [tag, ...classes] = names.split(".");
  return fill(document.createElementNS(SVG, tag), classes, contents);
}

function fill(element, classes, contents) {
  const [first] = contents;
  const hasAttributes = first && typeof first === "object" && !(first instanceof Node) && !Array.isArray(first);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  if (hasAttributes) Object.entries(first).forEach(([name, value]) => setAttribute(element, name, value));
  element.append(...(hasAttributes ? contents.slice(1) : contents).flat().filter((child) => child !== null));
  return element;
}

function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else element.setAttribute(name, value === true ? "" : value);
}

// A changed text alone costs a layout: most updates change nothing.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.getAttribute("class") !== name) element.setAttribute("class", name);
}

// Say it to screen readers, without moving the focus.
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
