/* Builds the parts in the order of what they need from each other, then draws them all. */

function followJumps() {
  for (const link of document.querySelectorAll("[data-jump]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault(); // the address holds the choices, not the section
      const section = byId(link.dataset.jump);
      jumpTo(section);
      section.focus({ preventScroll: true });
    });
  }
}

buildHeader();
buildTensorPicker();
buildMesh();
buildCommunication();
buildTime();
buildMemory();
buildSource();
buildWarnings();
followJumps();
for (const { draw } of views) draw();
addEventListener("hashchange", () => update(readAddress()));
