/* Communication: bars of what is sent, and the table of collectives that a bar or a line of source filters. */

const KINDS = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "permute"];

const COLUMNS = [
  { label: "Collective", of: (c) => c.kind, cell: (c) => [kindSwatch(c.kind), c.kind] },
  { label: "Axes", of: (c) => c.axes.join("+") },
  { label: "Operand", of: (c) => c.bytes, cell: (c) => element("code", {}, `${c.dtype}[${c.shape.join(",")}]`) },
  { label: "Times", of: (c) => c.count, isNumber: true },
  { label: "Bytes sent", of: (c) => sentBytes(c), isNumber: true },
  { label: "Time", of: (c) => sentSeconds(c), isNumber: true, isTime: true, format: formatSeconds },
  { label: "Hidden", of: (c) => hiddenSeconds(c), isNumber: true, isOfOverlap: true, format: formatSeconds },
  { label: "Phase", of: (c) => c.phase },
  { label: "Operation", of: (c) => c.op, cell: (c) => element("span", { title: c.scope }, c.op) },
  { label: "Line", of: (c) => c.line, cell: (c) => lineLink(c.line) },
];

let sorting = { column: "Bytes sent", isDescending: true };

/** In one step: `wire_bytes` is of one execution, `seconds` of all. */
function sentBytes(collective) {
  return collective.wire_bytes * collective.count;
}

function sentSeconds(collective) {
  return collective.seconds?.[state.hardware] ?? 0;
}

/** Of these seconds, those that computation hides. */
function hiddenSeconds(collective) {
  return collective.hidden_seconds?.[state.hardware] ?? 0;
}

function measured(collective) {
  return state.measure === "seconds" ? sentSeconds(collective) : sentBytes(collective);
}

function formatMeasure(value) {
  return state.measure === "seconds" ? formatSeconds(value) : formatBytes(value);
}

function kindStyle(kind) {
  return `kind-${KINDS.indexOf(kind)}`;
}

function kindSwatch(kind) {
  return element("span", { class: `swatch ${kindStyle(kind)}`, "aria-hidden": "true" });
}

function buildCommunication() {
  if (!data.collectives.length) {
    byId("communication").querySelectorAll(".controls, #table").forEach((node) => node.remove());
    fill("bars", emptyState("No communication: under this layout the processors work alone."));
    return;
  }
  radioGroup("group", Object.entries(GROUPS).map(([value, { label }]) => [value, label]));
  radioGroup("measure", hardwareNames.length ? [["bytes", "Bytes"], ["seconds", "Time"]] : [["bytes", "Bytes"]]);
  const used = KINDS.filter((kind) => data.collectives.some((collective) => collective.kind === kind));
  fill("kinds", keyList(used.map((kind) => ({ name: kind, style: kindStyle(kind) }))));
  buildTable();
  view(["group", "measure", "hardware"], drawBars);
  view(["filter", "group"], pressBars);
  view(["filter", "hardware"], drawRows);
}

function drawBars() {
  const groups = [...groupBy(data.collectives, GROUPS[state.group].of)];
  const totals = groups.map(([name, members]) => ({ name, members, value: sum(members.map(measured)) }));
  totals.sort((a, b) => b.value - a.value);
  const largest = Math.max(...totals.map((total) => total.value), Number.MIN_VALUE);
  fill("bars", totals.map((total) => drawBar(total, largest)));
  pressBars();
}

function drawBar({ name, members, value }, largest) {
  const parts = KINDS.map((kind) => ({
    name: kind,
    style: kindStyle(kind),
    value: sum(members.filter((member) => member.kind === kind).map(measured)),
  }));
  const key = `${state.group}:${name}`;
  const toggle = () => update({ filter: state.filter === key ? "" : key });
  return element(
    "button",
    { class: "bar", type: "button", "data-filter": key, click: toggle },
    element("span", { class: "bar-label" }, name),
    stackedBar(parts, largest, formatMeasure),
    element("span", { class: "bar-value" }, formatMeasure(value)),
  );
}

function pressBars() {
  for (const bar of byId("bars").children) bar.setAttribute("aria-pressed", bar.dataset.filter === state.filter);
}

/** The collectives that the filter `group:name` lets through. */
function filteredCollectives() {
  if (!state.filter) return data.collectives;
  const [group, ...name] = state.filter.split(":");
  return data.collectives.filter((collective) => GROUPS[group].of(collective) === name.join(":"));
}

function tableColumns() {
  const shown = { isTime: hardwareNames.length > 0, isOfOverlap: hardwareNames.length > 0 && data.overlap };
  return COLUMNS.filter((column) => Object.entries(shown).every(([kind, isShown]) => !column[kind] || isShown));
}

function buildTable() {
  const headings = tableColumns().map((column) =>
    element(
      "th",
      { scope: "col", class: column.isNumber ? "number" : null, "data-column": column.label },
      element("button", { type: "button", click: () => sortBy(column) }, column.label),
    ),
  );
  fill("table", element("table", {}, element("thead", {}, element("tr", {}, headings)), element("tbody")));
}

function sortBy(column) {
  const isSame = sorting.column === column.label;
  sorting = { column: column.label, isDescending: isSame ? !sorting.isDescending : Boolean(column.isNumber) };
  drawRows();
}

function drawRows() {
  const column = COLUMNS.find(({ label }) => label === sorting.column);
  const direction = sorting.isDescending ? -1 : 1;
  const shown = [...filteredCollectives()].sort((a, b) => direction * compare(column.of(a), column.of(b)));
  byId("table").querySelector("tbody").replaceChildren(...shown.map(drawRow));
  for (const heading of byId("table").querySelectorAll("th")) {
    const isSorted = heading.dataset.column === sorting.column;
    heading.setAttribute("aria-sort", isSorted ? (sorting.isDescending ? "descending" : "ascending") : "none");
  }
  fill("filter", describeFilter(shown));
}

function compare(a, b) {
  return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
}

function drawRow(collective) {
  const cells = tableColumns().map((column) => {
    const format = column.format ?? (column.isNumber ? formatExact : String);
    const content = column.cell ? column.cell(collective) : format(column.of(collective));
    return element("td", { class: column.isNumber ? "number" : null }, content);
  });
  return element("tr", {}, cells);
}

function describeFilter(shown) {
  const sent = `${plural(shown.length, "collective")}, ${formatBytes(sum(shown.map(sentBytes)))}`;
  if (!state.filter) return element("span", { class: "note" }, sent);
  const [group, ...name] = state.filter.split(":");
  const label = `${GROUPS[group].label.toLowerCase()} ${name.join(":")}`;
  const clear = () => update({ filter: "" });
  return element(
    "button",
    { type: "button", class: "chip", click: clear, "aria-label": `${sent}. Show all, not only ${label}` },
    `${label}: ${sent}`,
    element("span", { "aria-hidden": "true" }, " ×"),
  );
}

/** A line of the user's: a link to it where the source is here, else its name. */
function lineLink(line) {
  if (!byLine.has(line)) return element("span", {}, line || "unknown");
  return element("button", { type: "button", class: "link", click: () => goToLine(line) }, line);
}
