/* Which slice of a tensor a processor holds: arithmetic only, nothing drawn.

A processor is a number, row-major over the axes of the mesh. A dim split over axes is cut into as many blocks as these
have processors; the last blocks may end in padding, or be nothing else. */

const axisNames = Object.keys(data.mesh);
const axisSizes = Object.values(data.mesh);
const numProcessors = product(axisSizes);

function coordinatesOf(processor) {
  const coordinates = {};
  for (let axis = axisNames.length - 1; axis >= 0; axis -= 1) {
    coordinates[axisNames[axis]] = processor % axisSizes[axis];
    processor = Math.floor(processor / axisSizes[axis]);
  }
  return coordinates;
}

function coordinatesText(processor) {
  const coordinates = coordinatesOf(processor);
  return axisNames.map((axis) => `${axis} ${coordinates[axis]}`).join(", ") || "the only one";
}

function numBlocks(dim) {
  return product(dim.axes.map((axis) => data.mesh[axis]));
}

/** The block of a dim that a processor holds: its place among the axes of the dim, the first axis major. */
function blockIndex(dim, coordinates) {
  return dim.axes.reduce((index, axis) => index * data.mesh[axis] + coordinates[axis], 0);
}

/** The elements [start, stop) of a block, and how much padding follows them. */
function blockRange(dim, index) {
  const start = Math.min(index * dim.block, dim.size);
  const stop = Math.min(start + dim.block, dim.size);
  return { start, stop, padding: numBlocks(dim) > 1 ? dim.block - (stop - start) : 0 };
}

function rangeText(dim, index) {
  const { start, stop, padding } = blockRange(dim, index);
  if (start === stop && padding > 0) return `${dim.name}: only padding`;
  return `${dim.name}[${start}:${stop}]${padding > 0 ? ` + ${padding} padding` : ""}`;
}

function splitDims(tensor) {
  return tensor.dims.filter((dim) => numBlocks(dim) > 1);
}

/** The slice of a tensor on a processor: the block of each split dim, and a number, row-major over these. */
function sliceOn(tensor, processor) {
  const coordinates = coordinatesOf(processor);
  return sliceOf(tensor, splitDims(tensor).map((dim) => blockIndex(dim, coordinates)));
}

function sliceOf(tensor, blocks) {
  const dims = splitDims(tensor);
  const number = dims.reduce((index, dim, place) => index * numBlocks(dim) + blocks[place], 0);
  const ranges = dims.map((dim, place) => blockRange(dim, blocks[place]));
  return { number, blocks, isEmpty: ranges.some(({ start, stop }) => start === stop) };
}

function sliceText(tensor, slice) {
  const dims = splitDims(tensor);
  return dims.length ? dims.map((dim, place) => rangeText(dim, slice.blocks[place])).join(" ") : "the whole tensor";
}

/** The hue tells the blocks of the first split dim apart, the lightness those of the others. */
function sliceColour(tensor, slice) {
  const counts = splitDims(tensor).map(numBlocks);
  if (!counts.length) return "oklch(0.83 0.07 250)";
  const hue = (250 + (360 * slice.blocks[0]) / counts[0]) % 360;
  const others = product(counts.slice(1));
  const shade = others > 1 ? (slice.number % others) / (others - 1) : 0.4 + 0.25 * (slice.blocks[0] % 2);
  return `oklch(${(0.9 - 0.26 * shade).toFixed(3)} ${(0.06 + 0.06 * shade).toFixed(3)} ${hue.toFixed(1)})`;
}

function dimText(dim) {
  return `${dim.name}:${dim.size}${dim.axes.length ? `/${dim.axes.join("+")}` : ""}`;
}

function dimsText(tensor) {
  return `[${tensor.dims.map(dimText).join(", ")}]`;
}
