/* The picker of tensors, and the picture of the chosen one: its first two split dims, cut into blocks. */

const KINDS_OF_TENSOR = { argument: "Arguments", result: "Results", inside: "Inside the program" };

function buildTensorPicker() {
  if (!data.tensors.length) {
    fill("tensor-controls", emptyState("The report names no tensors: the mesh is all there is to show."));
    byId("picture-title").hidden = true;
    return;
  }
  byId("tensor").addEventListener("change", (event) => update({ tensor: event.target.value }));
  byId("tensor-filter").addEventListener("input", filterTensors);
  listTensors(data.tensors.map((_, index) => index));
  view(["tensor"], () => (byId("tensor").value = state.tensor));
}

function filterTensors() {
  const words = byId("tensor-filter").value.toLowerCase().split(/\s+/);
  const found = data.tensors.flatMap((tensor, index) => {
    const text = `${tensor.name} ${dimsText(tensor)} ${tensor.role ?? ""} ${tensor.kind}`.toLowerCase();
    return words.every((word) => text.includes(word)) ? [index] : [];
  });
  const isNarrowed = found.length < data.tensors.length;
  byId("tensor-matches").textContent = isNarrowed ? `${found.length} of ${data.tensors.length}` : "";
  listTensors(found);
  if (!found.length) return;
  const kept = found.includes(Number(state.tensor)) ? state.tensor : String(found[0]);
  byId("tensor").value = kept;
  update({ tensor: kept });
}

function listTensors(indices) {
  const groups = groupBy(indices, (index) => data.tensors[index].kind);
  const options = [...groups].map(([kind, members]) =>
    element("optgroup", { label: KINDS_OF_TENSOR[kind] ?? kind }, members.map(tensorOption)),
  );
  byId("tensor").disabled = !indices.length;
  fill("tensor", options.length ? options : element("option", {}, "no tensor has this"));
}

function tensorOption(index) {
  const tensor = data.tensors[index];
  const name = tensor.name.startsWith("[") ? "" : `${tensor.name}  `; // a nameless tensor is called by its dims
  return element("option", { value: index }, `${name}${dimsText(tensor)}`);
}

/** The two dims to draw, in the tensor's order: split ones first, then the largest. */
function drawnDims(tensor) {
  const whole = tensor.dims.filter((dim) => numBlocks(dim) === 1).sort((a, b) => b.size - a.size);
  const chosen = [...splitDims(tensor), ...whole].slice(0, 2);
  return tensor.dims.filter((dim) => chosen.includes(dim));
}

function drawPicture(tensor, slice) {
  const dims = drawnDims(tensor);
  const [down, across] = dims.length > 1 ? dims : [null, dims[0] ?? null];
  const rows = down ? numBlocks(down) : 1;
  const columns = across ? numBlocks(across) : 1;
  const blocks = [];
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      blocks.push(drawBlock(tensor, slice, { down, across, row, column }));
    }
  }
  const ratio = down && across ? Math.min(2.4, Math.max(1.25, across.size / down.size)) : 5;
  const isDense = Math.max(rows, columns) > MOST_WITH_NUMBERS;
  const label = `${tensor.name} ${dimsText(tensor)} in ${rows * columns} blocks; marked: ${sliceText(tensor, slice)}`;
  const picture = element(
    "div",
    {
      class: `blocks ${isDense ? "dense" : ""}`,
      role: "img",
      "aria-label": label,
      style: { "--rows": rows, "--columns": columns, "--ratio": ratio.toFixed(2) },
    },
    blocks,
  );
  fill(
    "picture",
    element(
      "figure",
      { class: "picture" },
      element("span", { class: "across" }, across ? `${dimText(across)} →` : ""),
      element("span", { class: "down" }, down ? `${dimText(down)} →` : ""),
      picture,
    ),
    element("p", { class: "note" }, pictureNote(tensor, dims)),
  );
}

/** One block of the picture. In split dims that are not drawn, it is where the chosen processor is. */
function drawBlock(tensor, slice, { down, across, row, column }) {
  const drawn = new Map([[down, row], [across, column]]);
  const own = sliceOf(tensor, splitDims(tensor).map((dim, place) => drawn.get(dim) ?? slice.blocks[place]));
  const isChosen = own.number === slice.number;
  const padding = [paddingShare(across, column), paddingShare(down, row)];
  const isMostlyPadding = padding.some((share) => share >= 50);
  return element(
    "span",
    {
      class: `block ${isChosen ? "same chosen" : ""} ${isMostlyPadding ? "mostly-padding" : ""}`,
      "data-slice": own.number,
      title: sliceText(tensor, own),
      style: {
        "--slice": sliceColour(tensor, own),
        "--padding-across": `${padding[0]}%`,
        "--padding-down": `${padding[1]}%`,
      },
      pointerenter: () => markSlice(own.number),
      pointerleave: () => markSlice(slice.number),
    },
    own.isEmpty ? "" : own.number,
  );
}

/** How many percent of a block are padding. */
function paddingShare(dim, index) {
  return dim ? (100 * blockRange(dim, index).padding) / dim.block : 0;
}

function pictureNote(tensor, drawn) {
  if (!tensor.dims.length) return "It has no dims.";
  const hidden = tensor.dims.filter((dim) => !drawn.includes(dim)).map(dimText);
  const isPadded = splitDims(tensor).some((dim) => numBlocks(dim) * dim.block > dim.size);
  const isSplit = splitDims(tensor).length > 0;
  const notes = [
    isSplit ? "Colours and numbers are those of the slices." : "It is not split: every processor holds all of it.",
    isPadded ? "Hatched: padding." : "",
    hidden.length ? `Not drawn: ${hidden.join(", ")}.` : "",
  ];
  return notes.filter(Boolean).join(" ");
}
