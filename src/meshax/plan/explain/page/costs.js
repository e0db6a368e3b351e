/* The totals at the top, the predicted time and the memory. */

const MOST_LINES = 12;
let showsAllLines = false;

function buildHeader() {
  byId("program").textContent = data.program;
  const mesh = axisNames.map((axis) => `${axis}:${data.mesh[axis]}`).join(" ");
  fill(
    "setting",
    definition("Mesh", element("code", {}, mesh), note(` ${plural(numProcessors, "processor")}`)),
    definition("Layout", element("code", {}, data.layout)),
  );
  for (const name of hardwareNames) byId("hardware").append(element("option", { value: name }, name));
  byId("hardware-label").hidden = !hardwareNames.length;
  byId("hardware").addEventListener("change", (event) => update({ hardware: event.target.value }));
  view(["hardware"], () => {
    byId("hardware").value = state.hardware;
    drawTotals();
  });
}

function definition(term, ...description) {
  return element("div", {}, element("dt", {}, term), element("dd", {}, description));
}

function drawTotals() {
  const doneTwice = data.duplicated_flops ? `${formatShare(data.duplicated_flops, data.flops)} of all` : "none";
  fill(
    "totals",
    total("Bytes sent", formatBytes(data.wire_bytes), plural(data.collectives.length, "collective")),
    total("FLOPs", formatCount(data.flops), formatExact(data.flops)),
    total("FLOPs done twice", formatCount(data.duplicated_flops), doneTwice),
    total("Peak memory", formatBytes(data.memory.peak), `${formatExact(data.memory.peak)} B`),
    totalTime(),
  );
}

function total(name, value, remark) {
  return definition(name, element("span", { class: "figure" }, value), note(remark));
}

function totalTime() {
  const time = data.time[state.hardware];
  return time
    ? total("Predicted step", formatSeconds(time.total), `on ${state.hardware}`)
    : total("Predicted step", "–", "no hardware given");
}

/** A kernel's time counts as compute or as memory, whichever limits it; what is hidden happens beside them. */
function timeParts({ compute, memory, exposed = 0 }) {
  return [
    { name: "compute", style: "time-compute", value: compute },
    { name: "memory", style: "time-memory", value: memory },
    { name: "exposed communication", style: "time-communication", value: exposed },
  ];
}

function hiddenPart({ hidden }) {
  return { name: "hidden communication", style: "time-hidden", value: hidden };
}

function buildTime() {
  if (!hardwareNames.length) {
    fill("hardware-times", emptyState("No times: the report was made for no hardware."));
    return;
  }
  view(["hardware"], () => {
    drawHardwareTimes();
    drawLineTimes();
  });
}

function drawHardwareTimes() {
  const parts = Object.fromEntries(hardwareNames.map((name) => [name, timeParts(data.time[name])]));
  const longest = timeScale();
  const bars = hardwareNames.map((name) => {
    const label = `${name}: ${formatSeconds(data.time[name].total)}, ${describeParts(parts[name])}`;
    return element(
      "button",
      {
        class: "bar",
        type: "button",
        "aria-pressed": name === state.hardware,
        "aria-label": label,
        click: () => chooseHardware(name),
      },
      element("span", { class: "bar-label" }, name),
      stackedBar(parts[name], longest, formatSeconds),
      element("span", { class: "bar-value" }, formatSeconds(data.time[name].total)),
    );
  });
  const { assumes } = data.time[state.hardware];
  const isCut = bars.some((bar) => bar.querySelector(".cut"));
  const shortened = isCut ? "A bar that fades is shortened." : "";
  const remark = element("p", { class: "note" }, `On ${state.hardware}. Assumed: ${assumes}. ${shortened}`);
  const keys = keyList([...parts[state.hardware], hiddenPart(data.time[state.hardware])], formatSeconds);
  fill("hardware-times", element("div", { class: "bars" }, bars), keys, remark);
}

/** What the full width of a bar stands for: the longest step that is not much longer than the chosen hardware's. */
function timeScale() {
  const totals = hardwareNames.map((name) => data.time[name].total);
  return Math.max(...totals.filter((total) => total <= 4 * data.time[state.hardware].total), Number.MIN_VALUE);
}

function describeParts(parts) {
  return parts.map((part) => `${part.name} ${formatSeconds(part.value)}`).join(", ");
}

/** Chooses hardware by its bar, and keeps the focus there though the bars are drawn anew. */
function chooseHardware(name) {
  update({ hardware: name });
  byId("hardware-times").querySelectorAll(".bar")[hardwareNames.indexOf(name)].focus();
}

function drawLineTimes() {
  const known = data.work.filter((work) => work.seconds?.[state.hardware]);
  const lines = [...groupBy(known, GROUPS.line.of)].map(([line, works]) => lineTime(line, works));
  lines.sort((a, b) => b.value - a.value);
  if (!lines.length) {
    fill("line-times", emptyState("No work was counted."));
    return;
  }
  const shown = showsAllLines ? lines : lines.slice(0, MOST_LINES);
  const rows = shown.map((line) => drawLineTime(line, Math.max(lines[0].value, Number.MIN_VALUE)));
  const rest = lines.length - shown.length;
  const label = `Show ${plural(rest, "more line")}`;
  const more = element("button", { type: "button", class: "link", click: showAllLines }, label);
  fill("line-times", element("h3", {}, "By line"), element("div", { class: "bars" }, rows), rest ? more : "");
}

function showAllLines() {
  showsAllLines = true;
  drawLineTimes();
}

function lineTime(line, works) {
  const spent = (kind) => sum(works.map((work) => work.seconds[state.hardware][kind]));
  const parts = timeParts({ compute: spent("compute"), memory: spent("memory") });
  const ops = [...new Set(works.map((work) => work.op).filter(Boolean))];
  return { line, ops, parts, value: sumOf(parts) };
}

function drawLineTime({ line, ops, parts, value }, longest) {
  const larger = parts.reduce((a, b) => (b.value > a.value ? b : a));
  const remark = value ? `${formatShare(larger.value, value)} ${larger.name}` : "";
  return element(
    "div",
    { class: "bar still" },
    element("span", { class: "bar-label" }, lineLink(line), note(` ${ops.slice(0, 3).join(", ")}`)),
    stackedBar(parts, longest, formatSeconds),
    element("span", { class: "bar-value" }, formatSeconds(value), note(remark)),
  );
}

function buildMemory() {
  const classes = Object.entries(data.memory).filter(([name]) => name !== "peak");
  const parts = classes.map(([name, value], index) => ({ name, style: `memory-${index}`, value }));
  const whole = Math.max(sumOf(parts), data.memory.peak);
  if (!whole) {
    fill("memory-bar", emptyState("No memory was counted."));
    return;
  }
  const bar = stackedBar(parts, whole, formatBytes);
  bar.append(element("span", { class: "peak", style: { left: `${(100 * data.memory.peak) / whole}%` } }));
  const keys = keyList([...parts, { name: "peak", style: "memory-peak", value: data.memory.peak }], formatBytes);
  keys.classList.add("wide");
  fill("memory-bar", element("div", { class: "thick" }, bar), keys);
}
