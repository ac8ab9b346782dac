"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);

  // tables: a click on a header sorts, a second click reverses the order; empty cells come last
  const value = (cell) => {
    const text = cell.textContent.trim();
    const found = text.replace(/,(?=\d{3})/g, "").match(/^[<>+]?\s*(-?\d+(\.\d+)?(e-?\d+)?)/i);
    return found ? parseFloat(found[1]) : text === "-" || text === "" ? null : text;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true });
  const sortBy = (table, column) => {
    const heads = [...table.tHead.rows[0].cells];
    const ascending = heads[column].getAttribute("aria-sort") === "descending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [value(row.cells[column]), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return ascending ? compare(a, b) : compare(b, a);
    });
    body.append(...rows.map(([, row]) => row));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => sortBy(table, column));
    });
  }

  // slices: all slices of a view are tiles of one sheet; a stage shows one tile
  const sheets = read("sheets");
  const share = (place, count) => (count > 1 ? (100 * place) / (count - 1) : 0);
  const show = (layer, sheet, view, place) => {
    if (layer.dataset.sheet !== sheet) {
      layer.dataset.sheet = sheet;
      layer.style.backgroundImage = sheet ? `url("${sheets[sheet]}")` : "none";
    }
    layer.style.backgroundSize = `${100 * view.across}% ${100 * view.down}%`;
    const column = place % view.across;
    const row = Math.floor(place / view.across);
    layer.style.backgroundPosition = `${share(column, view.across)}% ${share(row, view.down)}%`;
  };
  const setUp = (element, browser) => {
    const chosen = { view: 0, layer: browser.layers[0], fade: 0.7 };
    const stages = [...element.querySelectorAll("figure")].map((figure, index) => ({
      figure,
      views: browser.cases[index].views,
      places: browser.cases[index].views.map((view) => view.start),
      stage: figure.querySelector(".stage"),
      image: figure.querySelector(".image"),
      over: figure.querySelector(".over"),
      slider: figure.querySelector("input"),
      output: figure.querySelector("output"),
    }));
    const draw = (one) => {
      const view = one.views[chosen.view];
      const place = one.places[chosen.view];
      one.stage.style.aspectRatio = view.ratio;
      one.stage.style.maxWidth = `${26 * view.ratio}rem`;
      show(one.image, view.image, view, place);
      show(one.over, view.layers[chosen.layer] || "", view, place);
      one.over.style.opacity = chosen.fade;
      one.slider.max = view.count - 1;
      one.slider.value = place;
      one.slider.hidden = view.count < 2;
      one.output.textContent = view.count < 2 ? "" : `slice ${view.places[place] + 1} of ${view.total}`;
    };
    const move = (one, place) => {
      const count = one.views[chosen.view].count;
      one.places[chosen.view] = Math.min(count - 1, Math.max(0, place));
      draw(one);
    };
    for (const one of stages) {
      const step = (by) => move(one, one.places[chosen.view] + by);
      one.slider.addEventListener("input", () => move(one, Number(one.slider.value)));
      one.stage.addEventListener("wheel", (event) => {
        const before = one.places[chosen.view];
        if (!event.ctrlKey) step(event.deltaY > 0 ? 1 : -1);
        // beyond the last slice, scroll the page
        if (one.places[chosen.view] !== before) event.preventDefault();
      }, { passive: false });
      one.stage.addEventListener("keydown", (event) => {
        const last = one.views[chosen.view].count - 1;
        const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 5, PageDown: -5 };
        if (event.key in by) step(by[event.key]);
        else if (event.key === "Home") move(one, 0);
        else if (event.key === "End") move(one, last);
        else return;
        event.preventDefault();
      });
    }
    const drawAll = () => stages.forEach(draw);
    for (const group of element.querySelectorAll("[data-choice]")) {
      group.addEventListener("change", (event) => {
        const name = group.dataset.choice;
        chosen[name] = name === "view" ? Number(event.target.value) : event.target.value;
        drawAll();
      });
    }
    element.querySelector(".fade input").addEventListener("input", (event) => {
      chosen.fade = event.target.value / 100;
      drawAll();
    });
    drawAll();
  };
  const browsers = read("browsers");
  for (const element of document.querySelectorAll("[data-browser]")) {
    setUp(element, browsers[Number(element.dataset.browser)]);
  }

  // unfold everything for printing
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    unfolded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => unfolded.forEach((one) => { one.open = false; }));
})();
