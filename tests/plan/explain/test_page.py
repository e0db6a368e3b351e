"""The report page in a real browser: what it shows, and what its controls do."""

import time

import pytest

import decoder
import meshax as mx
from meshax.plan.explain.html import render
from plan.explain.browser import open_browser
from plan.explain.written_reports import EMPTY, HOSTILE, LARGE, SOURCE, collective, dim, report, tensor, time_of, work

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture
def show(browser, tmp_path):
    """Opens a report; whatever a test does with it, nothing may fail inside or go out."""

    def show(data, choices="", width=1280, height=900, dark=False):
        path = tmp_path / "report.html"
        path.write_text(render(data), encoding="utf-8")
        browser.set_viewport(width, height, dark)
        browser.open(path, choices)
        return browser

    yield show
    assert browser.complaints() == []
    assert browser.requests() == []


def texts(browser, selector):
    return browser.run(f"[...document.querySelectorAll({selector!r})].map((node) => node.textContent.trim())")


def text(browser, selector):
    (found,) = texts(browser, selector)
    return found


def choose(browser, selector, value):
    browser.run(
        f"""(() => {{
            const control = document.querySelector({selector!r});
            control.value = {value!r};
            control.dispatchEvent(new Event("change", {{bubbles: true}}));
        }})()"""
    )


def processor(index):
    return f'[data-processor="{index}"]'


def slices_of(browser):
    return texts(browser, "#processors .cell")


def bars(browser):
    names = texts(browser, "#bars .bar-label")
    return dict(zip(names, texts(browser, "#bars .bar-value"), strict=True))


def test_the_header_has_the_totals(show):
    page = show(report())
    assert text(page, "h1") == "step"
    assert texts(page, "#setting dd") == ["rows:2 cols:4 8 processors", 'Layout("batch:rows hidden:cols")']
    assert texts(page, ".figure") == ["1.41 MB", "77.4 M", "246 k", "3.04 MB", "26.0 µs"]


def test_the_hardware_at_first(show):
    page = show(report(hardware="tpu-v2"))
    assert "tpu-v2" in text(page, "#hardware-times .bar[aria-pressed=true] .bar-label")


def test_hardware_changes_the_times(show):
    page = show(report(), "measure=seconds")
    assert bars(page)["step.py:8"] == "6.00 µs"
    choose(page, "#hardware", "tpu-v2")
    assert texts(page, ".figure")[-1] == "64.0 µs"
    assert bars(page)["step.py:8"] == "12.0 µs"
    assert "tpu-v2" in text(page, "#hardware-times .bar[aria-pressed=true] .bar-label")
    page.click("#hardware-times .bar")
    assert texts(page, ".figure")[-1] == "26.0 µs"


@pytest.mark.parametrize(
    "name, slices, where, slice_text",
    [
        ("w['in']", "0 1 2 3 0 1 2 3", 5, "hidden[256:512]of 1,024, over cols"),
        ("images", "0 0 0 0 1 1 1 1", 5, "batch[64:128]of 128, over rows"),
        ("h", "0 1 2 3 4 5 6 7", 6, "hidden[512:768]of 1,024, over cols"),
        ("uneven", "0 1 2 3 0 1 2 3", 7, "classes[9:10] + 2 paddingof 10, over cols"),
        ("mixed", "0 1 2 3 4 5 6 7", 6, "batch[96:112]of 128, over rows+cols"),
        ("few", "0 1 2 – – – – –", 4, "classes: only paddingof 3, over rows+cols"),
        ("loss", "0 0 0 0 0 0 0 0", 3, "a single number"),
    ],
)
def test_a_tensor_colours_the_processors(show, name, slices, where, slice_text):
    page = show(report())
    choose(page, "#tensor", str([t["name"] for t in report()["tensors"]].index(name)))
    assert slices_of(page) == slices.split()
    colours = page.run("cells.map((cell) => cell.style.getPropertyValue('--slice'))")
    held = slices.split()
    assert all(
        (colours[i] == colours[j]) == (held[i] == held[j]) for i in range(8) for j in range(8) if "–" not in held
    )
    page.point_at(processor(where))
    assert slice_text in texts(page, "#processor li")
    assert text(page, "#processor strong") == f"rows {where // 4}, cols {where % 4}"
    assert len(texts(page, "#picture .block.chosen")) == 1


def test_the_keyboard_moves_between_processors(show):
    page = show(report(), "tensor=4")
    page.run(f"document.querySelector({processor(0)!r}).focus()")
    for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
        page.press(key)
    assert page.run("document.activeElement.getAttribute('aria-label')") == (
        "rows 1, cols 2: batch[64:128] hidden[512:768]"
    )
    assert text(page, "#processor strong") == "rows 1, cols 2"
    assert text(page, "#picture .block.chosen") == "6"
    page.press("End")
    page.press("ArrowRight")  # there is nothing further
    assert text(page, "#processor strong") == "rows 1, cols 3"


def test_the_filter_narrows_the_tensors(show):
    page = show(report())
    page.click("#tensor-filter")
    page.type("classes inside")
    assert texts(page, "#tensor option") == ["uneven  [classes:10/cols, batch:128]", "few  [classes:3/rows+cols]"]
    assert slices_of(page) == ["0", "1", "2", "3", "0", "1", "2", "3"]
    page.type(" nonsense")
    assert texts(page, "#tensor option") == ["no tensor has this"]


@pytest.mark.parametrize(
    "group, expected",
    [
        ("line", {"step.py:15": "813 kB", "step.py:8": "590 kB", "step.py:10": "3.84 kB", "elsewhere.py:3": "4 B"}),
        ("axis", {"rows": "813 kB", "cols": "594 kB", "rows+cols": "4 B"}),
        ("kind", {"all-reduce": "817 kB", "all-gather": "590 kB", "permute": "4 B"}),
        ("phase", {"backward": "813 kB", "forward": "594 kB", "update": "4 B"}),
    ],
)
def test_bars_by(show, group, expected):
    page = show(report())
    page.click(f"#group label:has([value={group}])")
    assert bars(page) == expected


def test_bars_measure_time_too(show):
    page = show(report())
    page.click("#measure label:has([value=seconds])")
    assert bars(page) == {"step.py:8": "6.00 µs", "step.py:15": "4.00 µs"} | {
        line: "2.00 µs" for line in ("step.py:10", "elsewhere.py:3")
    }


def test_a_bar_filters_the_table(show):
    page = show(report(), "group=axis")
    page.click('#bars [data-filter="axis:cols"]')
    assert texts(page, "#table tbody td:nth-child(2)") == ["cols", "cols"]
    assert "axis cols: 2 collectives" in text(page, "#filter")
    page.click("#filter button")
    assert len(texts(page, "#table tbody tr")) == 5


def test_the_table_sorts(show):
    page = show(report())
    sent = "#table tbody td:nth-child(5)"
    assert texts(page, sent) == ["802,816", "589,824", "10,240", "3,840", "4"]
    page.click('#table [data-column="Bytes sent"] button')
    assert texts(page, sent) == ["4", "3,840", "10,240", "589,824", "802,816"]
    page.click('#table [data-column="Line"] button')
    lines = ["elsewhere.py:3", "step.py:8", "step.py:10", "step.py:15", "step.py:15"]
    assert texts(page, "#table tbody td:last-child") == lines
    assert page.run("document.querySelector('[data-column=Line]').ariaSort") == "ascending"


def test_source_and_table_point_at_each_other(show):
    page = show(report())
    row = 'tr[data-line="step.py:8"]'
    assert texts(page, f"{row} td") == ["590 kB", "25.7 M", "3", "8", SOURCE[7].strip()]
    page.click(f"{row} .code")
    assert texts(page, "#table tbody td:last-child") == ["step.py:8"]
    page.click("#table tbody .link")
    assert page.run(f"document.querySelector({row!r}).classList.contains('arrived')")
    inside = (
        f"(() => {{ const y = document.querySelector({row!r}).getBoundingClientRect().y; return y > 0 && y < 900 }})()"
    )
    assert page.run(inside)


def test_times_memory_and_warnings(show):
    page = show(report())
    assert texts(page, "#line-times .bar-label")[:2] == ["step.py:14 einsum", "step.py:8 einsum, relu"]
    assert texts(page, "#line-times .bar-value")[1] == "4.00 µs75% compute"
    assert texts(page, "#memory-bar li")[0] == "parameters813 kB"
    assert texts(page, "#warning-list li") == [
        "step.py:9 einsum: the processors along cols all compute the same 328 k FLOPs. "
        "Split over them, it would save 75%.",
        "classes:10 is stored as 12, so that all blocks are equal: 17% of it is padding.",
        "vocab:model splits no tensor of this program.",
        "rings cols: nothing goes around along it.",
        "w['in'] [pixels:784, hidden:1024/cols]: 803 kB on each processor, the same along rows.",
    ]
    assert text(page, "#num-warnings") == "5"


def test_the_address_keeps_the_choices(show):
    page = show(report())
    choose(page, "#tensor", "5")
    page.click('#bars [data-filter="line:step.py:8"]')
    choices = page.run("location.hash.slice(1)")
    page = show(report(), choices)
    assert page.run("document.querySelector('#tensor').value") == "5"
    assert len(texts(page, "#table tbody tr")) == 1


@pytest.mark.parametrize("choices", ["tensor=99&processor=-1&group=toString&hardware=x", "filter=constructor:x", "%"])
def test_an_address_of_nonsense_is_ignored(show, choices):
    page = show(report(), choices)
    assert len(texts(page, "#table tbody tr")) == 5


def test_nothing_to_show_is_said(show):
    page = show(EMPTY)
    assert texts(page, ".empty") == [
        "The report names no tensors: the mesh is all there is to show.",
        "No communication: under this layout the processors work alone.",
        "No times: the report was made for no hardware.",
        "No memory was counted.",
        "No source to show, and no line that costs anything.",
        "Nothing to warn of.",
    ]
    assert text(page, "#processor") == "rows 0, cols 0 (processor 0)"


def test_lines_without_source_are_listed(show):
    page = show(report(sources={}))
    page.click('tr[data-line="step.py:15"] .link')
    assert len(texts(page, "#table tbody tr")) == 2


@pytest.mark.parametrize(
    "mesh, grids, cells",
    [({"all": 1}, 1, 1), ({"data": 100}, 1, 100), ({"pods": 2, "rows": 3, "cols": 4}, 2, 24)]
    + [({"a": 2, "b": 3, "rows": 4, "cols": 5}, 6, 120)],
)
def test_meshes_of_any_number_of_axes(show, mesh, grids, cells):
    page = show(report(mesh=mesh, tensors=[tensor("x", dim("batch", 12, "+".join(mesh), cells))]))
    assert len(texts(page, "#processors .grid")) == grids
    assert len(slices_of(page)) == cells
    page.point_at(processor(cells - 1))
    last = ", ".join(f"{axis} {size - 1}" for axis, size in mesh.items())
    assert text(page, "#processor strong") == last


def test_512_processors_are_quick(show):
    start = time.monotonic()
    page = show(LARGE)
    assert time.monotonic() - start < 5
    assert len(slices_of(page)) == 512
    choose_rows = (
        "(() => { const start = performance.now(); update({tensor: '1'}); return performance.now() - start })()"
    )
    assert page.run(choose_rows) < 1000
    page.point_at(processor(16 * 31 + 3))
    assert texts(page, "#processor code") == ["batch[992:1000] + 24 padding"]
    assert page.run("document.querySelector('#processors').getBoundingClientRect().height") < 900


def test_hostile_text_is_shown_as_text(show):
    hostile = [{**t, "name": HOSTILE} for t in report()["tensors"]]
    line = f"{HOSTILE}:1"
    data = report(
        program=HOSTILE,
        layout=HOSTILE,
        tensors=hostile,
        collectives=[collective(HOSTILE, HOSTILE, [1], 4, line, HOSTILE, op=HOSTILE)],
        work=[work(line, HOSTILE, 1, 1e-6)],
        duplicates=[{"line": line, "op": HOSTILE, "axes": [HOSTILE], "flops": 1, "share": 0.5}],
        replicated=[{"name": HOSTILE, "dims": HOSTILE, "bytes": 1, "axes": [HOSTILE]}],
        unused_rules=[HOSTILE],
        padding={HOSTILE: {"size": 1, "stored": 2, "waste": 0.5}},
        time={HOSTILE: time_of(1, 1, 1)},
        sources={HOSTILE: {"first": 1, "lines": [HOSTILE]}},
    )
    page = show(data)
    page.click("#bars .bar")
    assert text(page, "h1") == HOSTILE
    assert text(page, ".source .code code") == HOSTILE
    assert page.run("document.querySelectorAll('b, img').length") == 0
    assert page.run("typeof hacked") == "undefined"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 800, 1280])
@pytest.mark.parametrize("data", [report(), LARGE, EMPTY], ids=["small", "large", "empty"])
def test_nothing_overflows(show, data, width, dark):
    page = show(data, width=width, dark=dark)
    assert page.run("document.documentElement.scrollWidth") == width
    outside = """[...document.querySelectorAll("main *")].filter((node) => !node.closest(".scroller, .panel, .sr")
        && node.getBoundingClientRect().right > innerWidth + 0.5).map((node) => node.outerHTML.slice(0, 80))"""
    assert page.run(outside) == []


CONTRAST = """(selector) => {
    const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const channels = (colour) => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data];
    };
    const luminance = (colour) => {
        const linear = channels(colour).slice(0, 3).map((c) => c / 255).map(
            (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    };
    const paper = (node) => {
        const colour = getComputedStyle(node).backgroundColor;
        return channels(colour)[3] === 255 ? colour : paper(node.parentElement);
    };
    return Math.min(...[...document.querySelectorAll(selector)].map((node) => {
        const pair = [luminance(getComputedStyle(node).color), luminance(paper(node))].sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05);
    }));
}"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    "selector",
    [
        "h1",
        ".note",
        ".lead",
        "dt",
        ".link",
        ".badge",
        ".chip",
        "nav a",
        "th button",
        ".cell:not(.hollow)",
        "label span",
    ],
)
def test_text_can_be_read(show, selector, dark):
    page = show(report(), "filter=kind:all-reduce&tensor=4", dark=dark)
    assert page.run(f"({CONTRAST})({selector!r})") >= 4.5


def test_controls_have_names(show):
    page = show(report())
    unnamed = """[...document.querySelectorAll("button, select, input")].filter((node) =>
        !(node.textContent.trim() || node.ariaLabel || node.labels?.length)).map((node) => node.outerHTML)"""
    assert page.run(unnamed) == []


def test_a_report_of_a_program_is_shown(show):
    program = mx.spmd(decoder.sgd, mx.Mesh("data:2 model:4", abstract=True), "batch:data heads:model d_ff:model")
    explained = program.explain(decoder.init(), *decoder.tokens())
    page = show(explained.as_dict())
    assert len(texts(page, "#table tbody tr")) == len(explained.collectives)
    assert texts(page, ".empty") == []
    assert "decoder.py" in text(page, "#files summary code")
