/* The mesh, as grids of processors: the last two axes are the rows and columns of a grid, those before them make
several grids. A single axis is wrapped into lines. */

const LONGEST_LINE = 32;
const MOST_WITH_NUMBERS = 16;
const MOST_IN_LEGEND = 12;
const cells = [];

/** How the mesh is laid out: `lines` x `columns` processors in each grid; dense ones have no room for numbers. */
function gridShape() {
  const columns = axisSizes.length > 1 ? axisSizes.at(-1) : Math.min(numProcessors, LONGEST_LINE);
  const lines = axisSizes.length > 1 ? axisSizes.at(-2) : Math.ceil(numProcessors / columns);
  return { lines, columns, isDense: Math.max(lines, columns) > MOST_WITH_NUMBERS };
}

function buildMesh() {
  const { lines, columns } = gridShape();
  const perGrid = Math.min(lines * columns, numProcessors);
  const grids = [];
  for (let first = 0; first < numProcessors; first += perGrid) grids.push(buildGrid(first, perGrid));
  fill("processors", grids);
  byId("processors-title").textContent = plural(numProcessors, "processor");
  listenToMesh(byId("processors"));
  view(["tensor"], colourMesh);
  view(["tensor", "processor"], () => showProcessor(Number(state.processor)));
}

function listenToMesh(root) {
  root.addEventListener("pointerover", (event) => showProcessor(processorAt(event) ?? Number(state.processor)));
  root.addEventListener("pointerleave", () => showProcessor(Number(state.processor)));
  root.addEventListener("focusin", (event) => update({ processor: String(processorAt(event)) }));
  root.addEventListener("click", (event) => processorAt(event) !== null && cells[processorAt(event)].focus());
  root.addEventListener("keydown", moveByKey);
}

function buildGrid(first, size) {
  const { lines, columns, isDense } = gridShape();
  const grid = element("div", { class: `grid ${isDense ? "dense" : ""}` });
  if (!isDense) grid.append(...gridHeadings(columns));
  for (let processor = first; processor < first + size; processor += 1) {
    const line = (processor - first) / columns;
    if (!isDense && Number.isInteger(line)) grid.append(heading(axisNames.length > 1 ? line : ""));
    const cell = element("button", { class: "cell", type: "button", tabindex: "-1", "data-processor": processor });
    cells.push(cell);
    grid.append(cell);
  }
  const outer = axisNames.slice(0, -2);
  const place = coordinatesOf(first);
  const title = outer.map((axis) => `${axis} ${place[axis]}`).join(", ");
  const style = { "--columns": columns, "--lines": lines };
  return element("div", { class: "panel", style }, element("p", { class: "axes" }, gridTitle(title)), grid);
}

/** Where a grid is along the leading axes, and the names of the axes that run down and across it. */
function gridTitle(place) {
  const [down, across] = axisNames.length > 1 ? axisNames.slice(-2) : [null, axisNames[0]];
  const names = [place, down ? `${down} ↓` : "", across ? `${across} →` : ""];
  return names.filter(Boolean).join("   ");
}

function gridHeadings(columns) {
  const numbers = [...Array(columns).keys()].map((column) => heading(column));
  return [heading(""), ...numbers];
}

function heading(text) {
  return element("span", { class: "heading", "aria-hidden": "true" }, text);
}

function processorAt(event) {
  const cell = event.target.closest("[data-processor]");
  return cell ? Number(cell.dataset.processor) : null;
}

function moveByKey(event) {
  const { lines, columns } = gridShape();
  const steps = {
    ArrowLeft: -1,
    ArrowRight: 1,
    ArrowUp: -columns,
    ArrowDown: columns,
    PageUp: -lines * columns,
    PageDown: lines * columns,
    Home: -numProcessors,
    End: numProcessors,
  };
  if (!Object.hasOwn(steps, event.key)) return;
  event.preventDefault();
  const target = processorAt(event) + steps[event.key];
  const isJump = event.key === "Home" || event.key === "End";
  const reached = isJump ? Math.max(0, Math.min(numProcessors - 1, target)) : target;
  cells[reached]?.focus();
}

function chosenTensor() {
  return data.tensors[Number(state.tensor)];
}

function colourMesh() {
  const tensor = chosenTensor();
  if (!tensor) return;
  const slices = cells.map((_, processor) => sliceOn(tensor, processor));
  cells.forEach((cell, processor) => paintCell(cell, tensor, slices[processor], processor));
  fill("legend", legend(tensor, slices));
}

function paintCell(cell, tensor, slice, processor) {
  cell.style.setProperty("--slice", sliceColour(tensor, slice));
  cell.classList.toggle("hollow", slice.isEmpty);
  cell.dataset.slice = slice.number;
  cell.textContent = slice.isEmpty ? "–" : slice.number;
  cell.setAttribute("aria-label", `${coordinatesText(processor)}: ${sliceText(tensor, slice)}`);
}

function legend(tensor, slices) {
  const groups = [...groupBy(slices, (slice) => slice.number).values()];
  groups.sort((a, b) => a[0].number - b[0].number);
  const full = groups.filter(([slice]) => !slice.isEmpty);
  const items = full.slice(0, MOST_IN_LEGEND).map(([slice]) => legendItem(tensor, slice, sliceText(tensor, slice)));
  const rest = full.length - items.length;
  const [hollow] = groups.find(([slice]) => slice.isEmpty) ?? [];
  if (hollow) items.push(legendItem(tensor, hollow, `${groups.length - full.length} of only padding`));
  const more = rest > 0 ? element("p", { class: "note" }, `and ${plural(rest, "more slice")}`) : null;
  const [copies, where] = [groups[0].length, groups.length > 1 ? "each on" : "on"];
  const summary = `${plural(groups.length, "slice")}, ${where} ${plural(copies, "processor")}`;
  const title = element("p", { class: "legend-title" }, summary);
  return [title, element("ol", { class: "legend" }, items), more].filter(Boolean);
}

function legendItem(tensor, slice, text) {
  const swatch = element(
    "span",
    { class: `swatch cell ${slice.isEmpty ? "hollow" : ""}`, style: { "--slice": sliceColour(tensor, slice) } },
    slice.isEmpty ? "–" : slice.number,
  );
  const show = () => markSlice(slice.number);
  const hide = () => showProcessor(Number(state.processor));
  return element(
    "li",
    { pointerenter: show, pointerleave: hide },
    swatch,
    element("code", {}, text),
  );
}

/** Shows one processor everywhere: its cell, those that hold the same slice, its slice in words, its block. */
function showProcessor(processor) {
  const tensor = chosenTensor();
  cells.forEach((cell, index) => {
    cell.tabIndex = index === Number(state.processor) ? 0 : -1;
    cell.classList.toggle("chosen", index === processor);
  });
  if (!tensor) {
    fill("processor", describePlace(processor));
    return;
  }
  const slice = sliceOn(tensor, processor);
  markSlice(slice.number);
  fill("processor", describeProcessor(tensor, slice, processor));
  drawPicture(tensor, slice);
}

function markSlice(number) {
  for (const node of document.querySelectorAll("[data-slice]")) {
    node.classList.toggle("same", Number(node.dataset.slice) === number);
  }
}

function describeProcessor(tensor, slice, processor) {
  const coordinates = coordinatesOf(processor);
  const copies = cells.filter((cell) => Number(cell.dataset.slice) === slice.number).length;
  const rows = tensor.dims.map((dim) => {
    const how = numBlocks(dim) > 1 ? `of ${formatExact(dim.size)}, over ${dim.axes.join("+")}` : "all of it";
    const range = element("code", {}, rangeText(dim, blockIndex(dim, coordinates)));
    return element("li", {}, range, element("span", { class: "note" }, how));
  });
  const others = copies === 1 ? "No other processor holds this slice." : `${copies} processors hold this slice.`;
  const size = tensor.bytes ? `${formatBytes(tensor.bytes)} of ${tensor.dtype} here. ` : "";
  return [
    describePlace(processor),
    element("ul", { class: "slices" }, rows.length ? rows : element("li", {}, "a single number")),
    element("p", { class: "note" }, `${size}${others}`),
  ];
}

function describePlace(processor) {
  return element("p", {}, element("strong", {}, coordinatesText(processor)), ` (processor ${processor})`);
}
