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

  // cases: all slices of a view are tiles of one sheet; a stage shows one tile of one method
  const sheets = read("sheets");
  const pictures = new Map();
  const load = (sheet, then) => {
    if (!pictures.has(sheet)) {
      pictures.set(sheet, new Image());
      pictures.get(sheet).src = sheets[sheet];
    }
    const picture = pictures.get(sheet);
    if (picture.complete) then(picture);
    else picture.addEventListener("load", () => then(picture), { once: true });
  };
  const FINE = 576; // pixels of an overlay's longer side
  const drawTile = (canvas, sheet, view, place, contours) => {
    const wanted = `${sheet} ${place} ${contours}`;
    if (canvas.dataset.shown === wanted) return;
    canvas.dataset.shown = wanted;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    if (!sheet) return context.clearRect(0, 0, canvas.width, canvas.height);
    load(sheet, (picture) => {
      if (canvas.dataset.shown !== wanted) return; // another slice was chosen meanwhile
      const width = picture.naturalWidth / view.across;
      const height = picture.naturalHeight / view.down;
      const fine = Math.max(1, Math.round(FINE / Math.max(width, height)));
      const left = (place % view.across) * width;
      const top = Math.floor(place / view.across) * height;
      canvas.width = width * fine;
      canvas.height = height * fine;
      context.imageSmoothingEnabled = false;
      context.drawImage(picture, left, top, width, height, 0, 0, canvas.width, canvas.height);
      if (contours) outline(context, width, height, fine);
    });
  };
  // replace every region by its border; a pixel of the tile is a square of `fine` pixels
  const outline = (context, width, height, fine) => {
    const { data } = context.getImageData(0, 0, width * fine, height * fine);
    const colors = new Uint32Array(data.buffer);
    const at = (x, y) =>
      x < 0 || y < 0 || x >= width || y >= height ? 0 : colors[(y * width * fine + x) * fine];
    const thick = Math.min(fine, Math.max(1, Math.round((Math.max(width, height) * fine) / 250)));
    context.clearRect(0, 0, width * fine, height * fine);
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        const own = at(x, y);
        if (!own) continue;
        const start = (y * width * fine + x) * fine * 4;
        context.fillStyle = `rgb(${data[start]}, ${data[start + 1]}, ${data[start + 2]})`;
        const [left, top] = [x * fine, y * fine];
        if (at(x - 1, y) !== own) context.fillRect(left, top, thick, fine);
        if (at(x + 1, y) !== own) context.fillRect(left + fine - thick, top, thick, fine);
        if (at(x, y - 1) !== own) context.fillRect(left, top, fine, thick);
        if (at(x, y + 1) !== own) context.fillRect(left, top + fine - thick, fine, thick);
      }
    }
  };
  const share = (place, count) => (count > 1 ? (100 * place) / (count - 1) : 0);
  const make = (tag, className, parent) => {
    const element = document.createElement(tag);
    element.className = className;
    parent.append(element);
    return element;
  };

  const setUp = (viewer, cases) => {
    const control = (name) => viewer.querySelector(`[name=${name}]`);
    const number = (name) => Number(control(name).value);
    const output = viewer.querySelector("output");
    const pan = { x: 0, y: 0 };
    const stages = [];
    const view = () => cases[number("case")].views[number("view")];

    const addStage = () => {
      const figure = make("figure", "", viewer.querySelector(".stages"));
      const caption = make("figcaption", "", figure);
      const stage = make("div", "stage", figure);
      stage.tabIndex = 0;
      stage.setAttribute("role", "img");
      const pane = make("div", "pane", stage);
      const one = { figure, caption, stage, pane, image: make("div", "image", pane), over: make("canvas", "over", pane) };
      stages.push(one);
      stage.addEventListener("wheel", (event) => {
        // the wheel scrolls the page, unless this picture was clicked
        if (document.activeElement !== stage || event.ctrlKey) return;
        if (step(event.deltaY > 0 ? 1 : -1)) event.preventDefault();
      }, { passive: false });
      stage.addEventListener("keydown", (event) => {
        const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 5, PageDown: -5, Home: -1e6, End: 1e6 };
        const zoom = { "+": 50, "-": -50, 0: -1e6 };
        if (event.key in by) step(by[event.key]);
        else if (event.key in zoom) control("zoom").value = number("zoom") + zoom[event.key];
        else return;
        event.preventDefault();
        draw();
      });
      stage.addEventListener("pointermove", (event) => {
        if (!event.buttons || number("zoom") <= 100) return;
        pan.x += event.movementX / stage.clientWidth;
        pan.y += event.movementY / stage.clientHeight;
        draw();
      });
    };
    const drawStage = (one, shown, mask) => {
      one.figure.hidden = !mask;
      if (!mask) return;
      const place = number("place");
      const zoom = number("zoom") / 100;
      one.caption.textContent = mask.caption ? `${mask.label}: ${mask.caption}` : mask.label;
      one.stage.setAttribute("aria-label", `${shown.title}, ${one.caption.textContent}`);
      one.stage.style.aspectRatio = view().ratio;
      one.stage.style.maxWidth = `${26 * view().ratio}rem`;
      one.stage.style.touchAction = zoom > 1 ? "none" : "auto";
      one.pane.style.transform = `translate(${100 * pan.x}%, ${100 * pan.y}%) scale(${zoom})`;
      one.image.dataset.sheet = view().image;
      one.image.style.backgroundImage = `url("${sheets[view().image]}")`;
      one.image.style.backgroundSize = `${100 * view().across}% ${100 * view().down}%`;
      const column = place % view().across;
      const row = Math.floor(place / view().across);
      one.image.style.backgroundPosition = `${share(column, view().across)}% ${share(row, view().down)}%`;
      const layer = viewer.querySelector("[name=layer]:checked").value;
      const outlined = control("contours").checked && layer !== "uncertainty";
      one.over.style.opacity = number("opacity") / 100;
      drawTile(one.over, mask.layers[number("view")][layer] || "", view(), place, outlined);
    };
    const draw = () => {
      const shown = cases[number("case")];
      const reach = (number("zoom") / 100 - 1) / 2; // how far a zoomed picture can move
      for (const axis of ["x", "y"]) pan[axis] = Math.min(reach, Math.max(-reach, pan[axis]));
      while (stages.length < shown.masks.length) addStage();
      stages.forEach((one, index) => drawStage(one, shown, shown.masks[index]));
      const [span, level] = [number("window") / 100, number("level") / 100];
      for (const part of viewer.querySelector("feComponentTransfer").children) {
        part.setAttribute("slope", 1 / span);
        part.setAttribute("intercept", 0.5 - level / span);
      }
      const { count, places, total } = view();
      control("place").parentElement.hidden = count < 2;
      output.textContent = `slice ${places[number("place")] + 1} of ${total}`;
    };
    // whether there was such a slice; beyond the last one, the page scrolls
    const step = (by) => {
      const before = number("place");
      control("place").value = before + by;
      draw();
      return number("place") !== before;
    };
    const startView = () => {
      control("place").max = view().count - 1;
      control("place").value = view().start;
      draw();
    };
    const startCase = (place) => {
      control("case").value = place;
      const select = control("view");
      const old = select.selectedOptions[0]?.textContent;
      const names = cases[place].views.map(({ name }) => name);
      select.replaceChildren(...names.map((name, index) => new Option(name, index, false, name === old)));
      select.parentElement.hidden = names.length < 2;
      viewer.querySelector("[data-step='-1']").disabled = place === 0;
      viewer.querySelector("[data-step='1']").disabled = place === cases.length - 1;
      startView();
    };
    viewer.addEventListener("input", ({ target }) => {
      if (target.name === "case") startCase(number("case"));
      else if (target.name === "view") startView();
      else draw();
    });
    for (const button of viewer.querySelectorAll("[data-step]")) {
      button.addEventListener("click", () => startCase(number("case") + Number(button.dataset.step)));
    }
    viewer.querySelector("[data-reset]").addEventListener("click", () => {
      for (const name of ["opacity", "window", "level", "zoom"]) control(name).value = control(name).defaultValue;
      draw();
    });
    for (const link of document.querySelectorAll("a[data-case]")) {
      link.addEventListener("click", () => startCase(Number(link.dataset.case)));
    }
    startCase(0);
  };
  const cases = read("gallery");
  if (cases.length) setUp(document.querySelector(".viewer"), cases);

  // table of contents: mark the section that is being read
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const mark = () => {
    const above = [...links.keys()].filter((id) => document.getElementById(id).getBoundingClientRect().top < innerHeight / 3);
    for (const [id, link] of links) {
      if (id === above[above.length - 1]) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  addEventListener("scroll", mark, { passive: true });
  mark();

  // unfold everything for printing
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    unfolded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => unfolded.forEach((one) => { one.open = false; }));
})();
