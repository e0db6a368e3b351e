/* What the reader has chosen. A view draws one part of the page, and again when a choice it depends on changes. */

const data = JSON.parse(byId("data").textContent);
const hardwareNames = Object.keys(data.time);

/** The ways to group collectives. */
const GROUPS = {
  line: { label: "Line", of: (collective) => collective.line || "unknown line" },
  axis: { label: "Axis", of: (collective) => collective.axes.join("+") },
  kind: { label: "Kind", of: (collective) => collective.kind },
  phase: { label: "Phase", of: (collective) => collective.phase },
};

/** The choices that the address keeps: the value at first, and whether a text is a legal value. */
const CHOICES = {
  hardware: { first: data.hardware ?? hardwareNames[0] ?? "", allows: (text) => hardwareNames.includes(text) },
  tensor: { first: String(mostSplitTensor()), allows: (text) => isIndex(text, data.tensors.length) },
  processor: { first: "0", allows: (text) => isIndex(text, product(Object.values(data.mesh))) },
  group: { first: "line", allows: (text) => Object.hasOwn(GROUPS, text) },
  measure: { first: "bytes", allows: (text) => text === "bytes" || (text === "seconds" && hardwareNames.length > 0) },
  filter: { first: "", allows: (text) => Object.hasOwn(GROUPS, text.split(":")[0]) },
};

const state = readAddress();
const views = [];

/** Registers a part of the page: `draw` runs at the start, and after a change of one of these choices. */
function view(choices, draw) {
  views.push({ choices, draw });
}

function isIndex(text, length) {
  return /^\d+$/.test(text) && Number(text) < length;
}

function update(changes) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  Object.assign(state, changes);
  for (const { choices, draw } of views) if (choices.some((name) => changed.includes(name))) draw();
  writeAddress();
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const chosen = Object.entries(CHOICES).map(([name, { first, allows }]) => {
    const text = given.get(name);
    return [name, text !== null && allows(text) ? text : first];
  });
  return Object.fromEntries(chosen);
}

/** Keeps what differs from the start in the address, so that a copied link or a reload shows the same. */
function writeAddress() {
  const chosen = Object.keys(CHOICES).filter((name) => state[name] !== CHOICES[name].first);
  const text = new URLSearchParams(chosen.map((name) => [name, state[name]])).toString();
  try {
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  } catch {
    // A page without an address of its own (in a notebook's frame, say) remembers nothing.
  }
}

/** The tensor to show at first: the one cut over most axes, of those the largest. */
function mostSplitTensor() {
  const numAxes = (tensor) => sum(tensor.dims.map((dim) => dim.axes.length));
  const ranked = data.tensors.map((tensor, index) => [numAxes(tensor), tensor.bytes, -index]);
  ranked.sort((a, b) => b[0] - a[0] || b[1] - a[1] || b[2] - a[2]);
  return ranked.length ? -ranked[0][2] : 0;
}

/** A group of radio buttons that sets one choice. */
function radioGroup(choice, options) {
  for (const [value, label] of options) {
    const input = element("input", { type: "radio", name: choice, value, change: () => update({ [choice]: value }) });
    byId(choice).append(element("label", {}, input, element("span", {}, label)));
  }
  view([choice], () => {
    for (const input of byId(choice).querySelectorAll("input")) input.checked = input.value === state[choice];
  });
}
