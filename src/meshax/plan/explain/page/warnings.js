/* What a reader should look at first: work done twice, padding, rules without effect, large copies. */

function buildWarnings() {
  const groups = [
    ["FLOPs done twice", data.duplicates.map(duplicateWarning)],
    ["Padding", Object.entries(data.padding).filter(([, { waste }]) => waste > 0).map(paddingWarning)],
    ["Rules without effect", data.unused_rules.map(unusedWarning)],
    ["Between hosts", data.between_hosts.map((line) => element("li", {}, line))],
    ["Large tensors on many processors", data.replicated.map(replicatedWarning)],
  ].filter(([, items]) => items.length);
  const number = sum(groups.map(([, items]) => items.length));
  byId("num-warnings").textContent = number || "";
  fill("warning-list", groups.length ? groups.map(drawWarnings) : emptyState("Nothing to warn of."));
}

function drawWarnings([title, items]) {
  return element("div", { class: "warning" }, element("h3", {}, title), element("ul", {}, items));
}

function duplicateWarning({ line, op, axes, flops, share }) {
  return element(
    "li",
    {},
    lineLink(line),
    ` ${op || "a product"}: the processors along `,
    element("code", {}, axes.join("+")),
    ` all compute the same ${formatCount(flops)} FLOPs. Split over them, it would save ${formatShare(share, 1)}.`,
  );
}

function paddingWarning([dim, { size, stored, waste }]) {
  const why = ` is stored as ${formatExact(stored)}, so that all blocks are equal:`;
  return element("li", {}, element("code", {}, `${dim}:${size}`), `${why} ${formatShare(waste, 1)} of it is padding.`);
}

function unusedWarning(rule) {
  const why = rule.startsWith("rings ") ? ": nothing goes around along it." : " splits no tensor of this program.";
  return element("li", {}, element("code", {}, rule), why);
}

function replicatedWarning({ name, dims, bytes, axes }) {
  return element(
    "li",
    {},
    element("code", {}, `${name} ${dims}`),
    `: ${formatBytes(bytes)} on each processor, the same along `,
    element("code", {}, axes.join("+")),
    ".",
  );
}
