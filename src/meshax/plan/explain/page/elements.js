"use strict";

/* Elements and numbers: what every part of the page is made of. */

/** Makes an element. Strings among the children become text, never markup: nothing in the data can inject any. */
function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) setProperty(node, name, value);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function setProperty(node, name, value) {
  if (value === null || value === undefined) return;
  if (typeof value === "function") node.addEventListener(name, value);
  else if (name === "style") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
  else node.setAttribute(name, value);
}

function byId(id) {
  return document.getElementById(id);
}

function fill(id, ...children) {
  byId(id).replaceChildren(...children.flat());
}

function emptyState(text) {
  return element("p", { class: "empty" }, text);
}

/** Quiet words beside others. */
function note(text) {
  return element("span", { class: "note" }, text);
}

/** Three significant digits and a unit. */
function scaled(value, units) {
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 && Number.isInteger(value) ? 0 : value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[unit]}`.trim();
}

function formatBytes(value) {
  return scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"]);
}

function formatCount(value) {
  return scaled(value, ["", "k", "M", "G", "T", "P", "E"]);
}

function formatSeconds(value) {
  if (value === 0) return "0 s";
  if (value >= 1) return scaled(value, ["s"]);
  return scaled(value * 1e9, ["ns", "µs", "ms", "s"]);
}

function formatExact(value) {
  return value.toLocaleString("en-US");
}

function formatShare(part, whole) {
  const share = whole > 0 ? (100 * part) / whole : 0;
  return share > 0 && share < 0.1 ? "< 0.1%" : `${share < 10 ? share.toFixed(1) : share.toFixed(0)}%`;
}

function plural(number, noun) {
  return `${formatExact(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function sumOf(parts) {
  return sum(parts.map((part) => part.value));
}

function product(values) {
  return values.reduce((total, value) => total * value, 1);
}

/** The items of each key, in the order in which the keys first appear. */
function groupBy(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return groups;
}

/** One horizontal bar of parts {name, value, style}; `whole` is what the full width stands for; more is shortened. */
function stackedBar(parts, whole, format) {
  const drawn = parts.filter((part) => part.value > 0);
  const length = Math.max(whole, sumOf(drawn));
  const segments = drawn.map((part) =>
    element("span", {
      class: `segment ${part.style}`,
      title: `${part.name}: ${format(part.value)}`,
      style: { width: `${(100 * part.value) / length}%` },
    }),
  );
  const isCut = sumOf(drawn) > whole * 1.001;
  return element("span", { class: isCut ? "track cut" : "track", "aria-hidden": "true" }, segments);
}

/** The names of colours, each with a swatch and perhaps a value. */
function keyList(parts, format) {
  const items = parts.map((part) =>
    element(
      "li",
      {},
      element("span", { class: `swatch ${part.style}`, "aria-hidden": "true" }),
      element("span", {}, part.name),
      format ? element("strong", { title: formatExact(part.value) }, format(part.value)) : null,
    ),
  );
  return element("ul", { class: "keys" }, items);
}
