/* The user's source, with the cost of each line in the margin. */

/** The costs of the lines whose source is here: "file.py:14" -> its row. */
const byLine = new Map();

const MARGIN = [
  { label: "Sent", style: "heat-sent", of: (cost) => cost.sent, format: formatBytes },
  { label: "FLOPs", style: "heat-flops", of: (cost) => cost.flops, format: formatCount },
  { label: "Coll.", style: "", of: (cost) => cost.collectives, format: formatExact, title: "Collectives a step" },
];

function buildSource() {
  const costs = lineCosts();
  const largest = MARGIN.map((column) => Math.max(...[...costs.values()].map(column.of), Number.MIN_VALUE));
  const files = Object.entries(data.sources).map(([name, file]) => drawFile(name, file, costs, largest));
  const missing = [...costs].filter(([line]) => !byLine.has(line));
  if (missing.length) files.push(drawMissing(missing, largest));
  fill("files", files.length ? files : emptyState("No source to show, and no line that costs anything."));
  scrollToCosts();
  view(["filter"], () => {
    for (const row of document.querySelectorAll("tr.costly")) {
      row.classList.toggle("filtered", state.filter === `line:${row.dataset.line}`);
    }
  });
}

/** Scrolls long files to their first line that costs something. */
function scrollToCosts() {
  for (const scroller of byId("files").querySelectorAll(".scroller")) {
    const row = scroller.querySelector(".costly") ?? scroller;
    const depth = row.getBoundingClientRect().top - scroller.getBoundingClientRect().top;
    scroller.scrollTop = depth - scroller.clientHeight / 4;
  }
}

/** What each line sends, computes, and how many collectives it makes. */
function lineCosts() {
  const costs = new Map();
  const costOf = (line) => {
    if (!costs.has(line)) costs.set(line, { sent: 0, flops: 0, collectives: 0 });
    return costs.get(line);
  };
  for (const collective of data.collectives) {
    const cost = costOf(GROUPS.line.of(collective));
    cost.sent += sentBytes(collective);
    cost.collectives += collective.count;
  }
  for (const work of data.work) costOf(GROUPS.line.of(work)).flops += work.flops;
  return costs;
}

function drawFile(name, { first, lines }, costs, largest) {
  const rows = lines.map((text, index) => {
    const line = `${name}:${first + index}`;
    const row = drawLine(line, first + index, text, costs.get(line), largest);
    byLine.set(line, row);
    return row;
  });
  const isCostly = rows.some((row) => row.classList.contains("costly"));
  const summary = element("summary", {}, element("code", {}, name), note(` ${plural(lines.length, "line")}`));
  return element("details", isCostly ? { open: "" } : {}, summary, sourceTable(rows, name));
}

function drawMissing(missing, largest) {
  const rows = missing.map(([line, cost]) => drawLine(line, "", line, cost, largest));
  const title = "Lines whose source is not here";
  const summary = element("summary", {}, title, note(` ${rows.length}`));
  return element("details", { open: "" }, summary, sourceTable(rows, title));
}

function sourceTable(rows, name) {
  const headings = MARGIN.map((column) => element("th", { scope: "col", title: column.title }, column.label));
  headings.push(element("th", { scope: "col" }, "Line"), element("th", { scope: "col", class: "code" }, "Source"));
  const head = element("thead", {}, element("tr", {}, headings));
  const table = element("table", { class: "source" }, head, element("tbody", {}, rows));
  return element("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": name }, table);
}

function drawLine(line, number, text, cost, largest) {
  const margin = MARGIN.map((column, index) => drawMargin(column, cost ? column.of(cost) : 0, largest[index]));
  const isSending = cost?.collectives > 0;
  const show = () => filterByLine(line);
  const label = `Collectives of ${line}`;
  const link = element("button", { type: "button", class: "link", click: show, "aria-label": label }, number || "show");
  const properties = { "data-line": line, class: `${cost ? "costly" : ""} ${isSending ? "sending" : ""}` };
  return element(
    "tr",
    isSending ? { ...properties, click: (event) => event.target.closest("button") || show() } : properties,
    margin,
    element("td", { class: "number" }, isSending ? link : number),
    element("td", { class: "code" }, element("code", {}, text)),
  );
}

function drawMargin(column, value, largest) {
  if (!value) return element("td", { class: "margin" });
  const heat = `${(100 * Math.sqrt(value / largest)).toFixed(0)}%`;
  return element("td", { class: `margin ${column.style}`, style: { "--heat": heat } }, column.format(value));
}

function filterByLine(line) {
  update({ filter: `line:${line}`, group: "line" });
  jumpTo(byId("table-head"));
}

/** Shows a line of source, and marks it for a moment. */
function goToLine(line) {
  const row = byLine.get(line);
  row.closest("details").open = true;
  row.scrollIntoView({ block: "center" });
  row.classList.remove("arrived");
  void row.offsetWidth; // so that a second visit starts the animation again
  row.classList.add("arrived");
  row.querySelector("button")?.focus({ preventScroll: true });
}

function jumpTo(node) {
  node.scrollIntoView({ block: "start" });
}
