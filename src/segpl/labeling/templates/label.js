"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const WINDOW = Math.random().toString(36).slice(2); // identifies this browser window
  const AUTOSAVE = 300; // ms after a stroke
  const POLL = 3000; // ms
  const UNDO = 30; // strokes
  const CT = { brain: [0, 80], "soft tissue": [-160, 240], lung: [-1350, 150], bone: [-200, 800], liver: [-45, 105] };
  const CLASS_KEYS = "123456789";
  const LOST = "No connection to segpl label. Drawing is paused. If the program has stopped, start it again and open its new address.";
  const NEWER = "A new run can predict this scan.";
  const ELSEWHERE = "This scan is also open in another window. Draw in one of them only.";
  const state = {
    scan: null, drawing: null, channel: 0, tool: "pen", pen: 1, plane: "multi", queue: [], version: 0, stored: 0, sending: null,
    force: false, isBusy: false, isOvertaken: false, wanted: "", isTraining: false, isLost: false, damaged: new Set(),
  };

  // requests

  const request = async (path, options = {}) => {
    const { query = {}, ...rest } = options;
    const answer = await fetch(`${path}?${new URLSearchParams({ window: WINDOW, ...query })}`, rest).catch(() => null);
    if (state.isLost === Boolean(answer)) {
      state.isLost = !answer;
      warn(answer ? "" : LOST);
      updateButtons();
    }
    if (!answer) throw new Error(LOST);
    if (answer.ok) return answer;
    const { error } = await answer.json().catch(() => ({ error: answer.statusText }));
    throw Object.assign(new Error(error), { status: answer.status });
  };
  const getJson = async (path, query) => (await request(path, { query })).json();
  const getBytes = async (path, query) => (await request(path, { query })).arrayBuffer();
  const ofCase = (name, what) => `case/${encodeURIComponent(name)}/${what}`;
  const packed = (bytes) =>
    new Response(new Blob([bytes]).stream().pipeThrough(new CompressionStream("gzip"))).blob();
  const postMask = async (path, mask, query) =>
    request(path, { method: "POST", query, body: await packed(mask), headers: { "Content-Encoding": "gzip" } });
  const post = (path, query) => request(path, { method: "POST", query, body: "" });

  // messages

  const say = (text) => { $("status").textContent = text; };
  const warn = (text, button = "", action = null) => {
    $("banner").hidden = !text;
    $("banner-text").textContent = text;
    $("banner-button").hidden = !button;
    $("banner-button").textContent = button;
    $("banner-button").onclick = action;
  };
  const complain = (error) => warn(error.message);
  const rgb = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));

  // a picture on a plain canvas

  class Picture {
    constructor(scan, image, mask) {
      this.scan = scan;
      [this.height, this.width] = scan.shape;
      this.values = new Float32Array(image);
      this.mask = new Uint8Array(mask);
      this.past = [];
      this.opacity = 0.5;
      this.shading = null;
      this.canvas = $("paper");
      this.canvas.width = this.width;
      this.canvas.height = this.height;
      this.context = this.canvas.getContext("2d");
      this.points = [];
      $("picture").hidden = false;
      this.canvas.onpointerdown = (event) => this.press(event);
      this.canvas.onpointermove = (event) => this.move(event);
      this.canvas.onpointerup = this.canvas.onpointercancel = () => this.release();
      this.fit();
    }

    fit() { // the largest size that keeps the shape of the pixels
      const [down, across] = this.scan.spacing;
      const [high, wide] = [this.height * down, this.width * across];
      const room = $("stage").getBoundingClientRect();
      const scale = Math.min((room.width - 16) / wide, (room.height - 16) / high) * (this.scale ?? 1);
      this.canvas.style.width = `${wide * scale}px`;
      this.canvas.style.height = `${high * scale}px`;
    }

    draw() {
      if (!this.range) return; // set last when a scan is opened
      const { width, height, mask } = this;
      const size = width * height;
      const [low, high] = this.range;
      const colors = this.scan.classes.map((one) => rgb(one.color));
      const picture = this.context.createImageData(width, height);
      const isColor = this.scan.channels.length === 3;
      const base = isColor ? 0 : this.channel * size;
      for (let at = 0; at < size; at++) {
        const heat = this.shading ? this.shading[at] / 255 : 0;
        for (let band = 0; band < 3; band++) {
          const value = this.values[isColor ? band * size + at : base + at];
          let shade = Math.max(0, Math.min(255, (255 * (value - low)) / (high - low)));
          if (heat) shade += (([255, 95, 210][band] - shade) * heat) / 1.3;
          if (mask[at]) shade += (colors[mask[at]][band] - shade) * this.opacity;
          picture.data[4 * at + band] = shade;
        }
        picture.data[4 * at + 3] = 255;
      }
      this.context.putImageData(picture, 0, 0);
    }

    place(event) {
      const box = this.canvas.getBoundingClientRect();
      return [
        Math.floor(((event.clientX - box.left) / box.width) * this.width),
        Math.floor(((event.clientY - box.top) / box.height) * this.height),
      ];
    }

    press(event) {
      if (event.button) return;
      this.canvas.setPointerCapture(event.pointerId);
      if (state.tool === "move") {
        this.grip = [event.clientX, event.clientY];
        return;
      }
      this.past = [...this.past, this.mask.slice()].slice(-UNDO);
      this.points = [this.place(event)];
      this.dab(this.points[0]);
      this.draw();
    }

    move(event) {
      if (this.grip) {
        $("picture").scrollBy(this.grip[0] - event.clientX, this.grip[1] - event.clientY);
        this.grip = [event.clientX, event.clientY];
      }
      if (!this.points.length) return;
      const to = this.place(event);
      const from = this.points[this.points.length - 1];
      const steps = Math.max(1, Math.abs(to[0] - from[0]), Math.abs(to[1] - from[1]));
      for (let step = 1; step <= steps; step++) {
        this.dab([0, 1].map((axis) => Math.round(from[axis] + ((to[axis] - from[axis]) * step) / steps)));
      }
      this.points.push(to);
      this.draw();
    }

    release() {
      this.grip = null;
      if (!this.points.length) return;
      if (state.tool === "fill") this.fill(this.points);
      this.points = [];
      this.draw();
      changed();
    }

    dab([x, y]) {
      const radius = state.tool === "fill" ? 0 : (this.size - 1) / 2;
      const reach = Math.ceil(radius);
      const value = state.tool === "eraser" ? 0 : state.pen;
      for (let row = y - reach; row <= y + reach; row++) {
        for (let column = x - reach; column <= x + reach; column++) {
          const isInside = row >= 0 && column >= 0 && row < this.height && column < this.width;
          if (isInside && Math.hypot(row - y, column - x) <= radius + 0.25) this.mask[row * this.width + column] = value;
        }
      }
    }

    fill(points) { // even-odd rule, at the centers of the pixels
      for (let row = 0; row < this.height; row++) {
        const crossings = [];
        points.forEach(([x, y], index) => {
          const [nextX, nextY] = points[(index + 1) % points.length];
          if (y > row !== nextY > row) crossings.push(x + ((row - y) / (nextY - y)) * (nextX - x));
        });
        crossings.sort((a, b) => a - b);
        for (let index = 0; index + 1 < crossings.length; index += 2) {
          const first = Math.max(0, Math.ceil(crossings[index]));
          const last = Math.min(this.width - 1, Math.floor(crossings[index + 1]));
          for (let column = first; column <= last; column++) this.mask[row * this.width + column] = state.pen;
        }
      }
    }

    undo() {
      if (!this.past.length) return;
      this.mask = this.past.pop();
      this.draw();
      changed();
    }

    zoom(factor, { clientX, clientY } = {}) { // around a place in the window, or the middle
      const [pane, room] = [$("picture"), $("picture").getBoundingClientRect()];
      const box = this.canvas.getBoundingClientRect();
      const place = [clientX ?? room.x + room.width / 2, clientY ?? room.y + room.height / 2];
      const share = [(place[0] - box.x) / box.width, (place[1] - box.y) / box.height];
      this.scale = Math.min(16, Math.max(1, (this.scale ?? 1) * factor));
      this.fit();
      const moved = this.canvas.getBoundingClientRect();
      pane.scrollBy(moved.x + share[0] * moved.width - place[0], moved.y + share[1] * moved.height - place[1]);
    }

    setTool() { this.canvas.style.cursor = state.tool === "move" ? "grab" : "crosshair"; }
    setPlane() {}
    step() {}
    setSize(size) { this.size = size; }
    setOpacity(opacity) { this.opacity = opacity; this.draw(); }
    setRange(range) { this.range = range; this.draw(); }
    setChannel(channel) { this.channel = channel; this.draw(); }
    setUncertainty(bytes) { this.shading = bytes && new Uint8Array(bytes); this.draw(); }
    close() { $("picture").hidden = true; this.canvas.onpointerdown = null; }
  }

  // a volume in NiiVue; the server sends it on RAS axes, so that its drawing has the same axes

  let viewer = null;
  const openViewer = async () => {
    if (viewer) return viewer;
    const probe = document.createElement("canvas").getContext("webgl2");
    if (!probe) {
      throw new Error(
        "This browser has no WebGL2, which volumes need. Turn on hardware acceleration in its settings, or use another browser.",
      );
    }
    const details = probe.getExtension("WEBGL_debug_renderer_info");
    const renderer = probe.getParameter(details?.UNMASKED_RENDERER_WEBGL ?? probe.RENDERER);
    const isSlow = /swiftshader|llvmpipe|software|basic render/i.test(renderer); // no GPU: seconds for each 3D view
    probe.getExtension("WEBGL_lose_context")?.loseContext();
    viewer = new niivue.Niivue({
      dragAndDropEnabled: false, isRadiologicalConvention: true, loadingText: "", maxDrawUndoBitmaps: UNDO,
      backColor: [0, 0, 0, 1], crosshairColor: [0.35, 0.7, 1, 0.8], fontColor: [1, 0.85, 0.3, 1], logLevel: "error",
      multiplanarShowRender: niivue.SHOW_RENDER[isSlow ? "NEVER" : "ALWAYS"], multiplanarLayout: niivue.MULTIPLANAR_TYPE.GRID,
      isOrientationTextVisible: true, crosshairGap: 6, crosshairWidth: 0.3, crosshairWidthUnit: "percent", isNearestInterpolation: true,
    });
    await viewer.attachToCanvas($("volume"));
    viewer.onLocationChange = ({ vox, values }) => {
      if (vox) $("place").textContent = `voxel ${vox.map((one) => one + 1).join(", ")}: ${Number(values[0]?.value ?? 0).toFixed(1)}`;
    };
    viewer.onDrawingChanged = (action) => { if (action === "draw" || action === "undo") changed(); };
    return viewer;
  };

  class Volume {
    static async open(scan, image, mask) {
      $("volume").hidden = false;
      const drawing = new Volume(scan, await openViewer());
      await drawing.load(image, mask);
      return drawing;
    }

    constructor(scan, nv) { this.scan = scan; this.nv = nv; }

    async load(image, mask) {
      const { nv, scan } = this;
      nv.closeDrawing();
      await this.setUncertainty(null);
      for (const volume of [...nv.volumes]) nv.removeVolume(volume);
      await nv.loadFromArrayBuffer(image, "scan.nii");
      nv.createEmptyDrawing();
      if (nv.drawBitmap.length !== mask.byteLength) throw new Error("the scan could not be shown");
      nv.drawBitmap.set(new Uint8Array(mask));
      nv.drawClearAllUndoBitmaps();
      nv.drawAddUndoBitmap();
      const colors = scan.classes.map((one, index) => [...rgb(one.color), index ? 255 : 0]);
      const [R, G, B, A] = [0, 1, 2, 3].map((band) => colors.map((color) => color[band]));
      nv.setDrawColormap({ R, G, B, A, labels: scan.classes.map((one) => one.name) });
      nv.refreshDrawing(true);
      nv.setPan2Dxyzmm([0, 0, 0, 1]);
      this.center();
    }

    center() { // the slices through the middle of the mask
      const { mask, scan: { shape: [across, down, deep] } } = this;
      const sums = [0, 0, 0];
      let count = 0;
      for (let z = 0, at = 0; z < deep; z++) {
        for (let y = 0; y < down; y++) {
          for (let x = 0; x < across; x++, at++) {
            if (!mask[at]) continue;
            sums[0] += x; sums[1] += y; sums[2] += z; count++;
          }
        }
      }
      const middle = this.scan.shape.map((size, axis) => (count ? sums[axis] / count : (size - 1) / 2));
      this.nv.scene.crosshairPos = middle.map((place, axis) => (Math.round(place) + 0.5) / this.scan.shape[axis]);
      this.nv.updateGLVolume();
      this.nv.createOnLocationChange();
    }

    get mask() { return this.nv.drawBitmap; }
    get axis() { return { sagittal: 0, coronal: 1 }[state.plane] ?? 2; }

    setTool() {
      this.nv.setDrawingEnabled(state.tool !== "move");
      this.nv.setPenValue(state.tool === "eraser" ? 0 : state.pen, state.tool === "fill");
    }

    setPlane() {
      const kinds = { axial: 0, coronal: 1, sagittal: 2, multi: 3, render: 4 };
      this.nv.setSliceType(kinds[state.plane]);
      this.nv.setOpacity(0, state.plane === "render" ? 0.3 : 1); // to see the mask inside
    }

    step(by) {
      const move = [0, 0, 0];
      move[this.axis] = by;
      this.nv.moveCrosshairInVox(...move);
    }

    zoom(factor) { // around the crosshair
      const { scene } = this.nv;
      const [x, y, z, before] = scene.pan2Dxyzmm;
      const after = Math.min(16, Math.max(1, before * factor));
      const place = this.nv.frac2mm(scene.crosshairPos);
      const pan = [x, y, z].map((one, axis) => one + (before - after) * place[axis]);
      this.nv.setPan2Dxyzmm(after === 1 ? [0, 0, 0, 1] : [...pan, after]);
    }

    setSize(size) { this.nv.opts.penSize = size; }
    setOpacity(opacity) { this.nv.setDrawOpacity(opacity); }
    setRange([low, high]) {
      Object.assign(this.nv.volumes[0], { cal_min: low, cal_max: high });
      this.nv.updateGLVolume();
    }

    setChannel(channel) { this.nv.setFrame4D(this.nv.volumes[0].id, channel); }

    async setUncertainty(bytes) {
      const { nv } = this;
      if (bytes && nv.volumes.length < 2) {
        await nv.loadFromArrayBuffer(bytes, "uncertainty.nii");
        Object.assign(nv.volumes[1], { cal_min: 25, cal_max: 255, colormap: "warm" });
      }
      if (nv.volumes.length > 1) nv.setOpacity(1, bytes ? 0.6 : 0); // 3D shows a map even after its removal
    }

    undo() { this.nv.drawUndo(); }

    interpolate() { // between drawn slices of the class, by signed distance; other classes stay
      const { mask, axis, scan: { shape } } = this;
      const strides = [1, shape[0], shape[0] * shape[1]];
      const [u, v] = [0, 1, 2].filter((one) => one !== axis);
      const read = (slice) => {
        const inside = new Uint8Array(shape[u] * shape[v]);
        for (let b = 0, at = 0; b < shape[v]; b++) {
          for (let a = 0; a < shape[u]; a++, at++) {
            inside[at] = mask[slice * strides[axis] + a * strides[u] + b * strides[v]] === state.pen ? 1 : 0;
          }
        }
        return inside;
      };
      let last = null;
      let count = 0;
      for (let slice = 0; slice < shape[axis]; slice++) {
        const inside = read(slice);
        if (!inside.includes(1)) continue;
        if (last !== null && slice - last.slice > 1) {
          const [from, to] = [last.inside, inside].map((one) => signedDistance(one, shape[u], shape[v]));
          for (let between = last.slice + 1; between < slice; between++, count++) {
            const share = (between - last.slice) / (slice - last.slice);
            for (let b = 0, at = 0; b < shape[v]; b++) {
              for (let a = 0; a < shape[u]; a++, at++) {
                const place = between * strides[axis] + a * strides[u] + b * strides[v];
                if (!mask[place] && from[at] * (1 - share) + to[at] * share > 0) mask[place] = state.pen;
              }
            }
          }
        }
        last = { slice, inside };
      }
      if (!count) return say("Nothing to interpolate: no empty slice lies between two drawn ones.");
      this.nv.drawAddUndoBitmap();
      this.nv.refreshDrawing(true);
      changed();
    }

    fit() {}
    close() { $("volume").hidden = true; }
  }

  const signedDistance = (inside, width, height) => { // positive inside; chamfer distance
    const side = (value) => {
      const far = width + height;
      const found = Float32Array.from(inside, (one) => (one === value ? far : 0));
      const sweep = (order, steps) => {
        for (const at of order) {
          const [x, y] = [at % width, Math.floor(at / width)];
          for (const [dx, dy] of steps) {
            if (x + dx < 0 || x + dx >= width || y + dy < 0 || y + dy >= height) continue;
            found[at] = Math.min(found[at], found[at + dx + dy * width] + Math.hypot(dx, dy));
          }
        }
      };
      const all = [...inside.keys()];
      sweep(all, [[-1, 0], [0, -1], [-1, -1], [1, -1]]);
      sweep(all.reverse(), [[1, 0], [0, 1], [1, 1], [-1, 1]]);
      return found;
    };
    const [within, without] = [side(1), side(0)];
    return within.map((distance, at) => (inside[at] ? distance - 0.5 : 0.5 - without[at]));
  };

  // strokes are stored as a draft at once, and sent again until the server has them

  const changed = () => {
    state.version += 1;
    say("…");
    clearTimeout(changed.timer);
    changed.timer = setTimeout(store, AUTOSAVE);
  };
  const store = () => {
    if (state.sending || state.stored === state.version || !state.scan) return state.sending;
    const { scan, version } = state;
    state.sending = postMask(ofCase(scan.name, "draft"), state.drawing.mask, { stamp: scan.stamp, draft: scan.draft })
      .then(async (answer) => {
        scan.draft = (await answer.json()).draft;
        if (state.scan !== scan) return;
        state.stored = version;
        say(`Strokes stored at ${new Date().toLocaleTimeString()}`);
      })
      .catch((error) => {
        if (error.status !== 409) return say(state.isLost ? "Not stored yet" : `Not stored: ${error.message}`);
        if (state.scan !== scan) return;
        state.stored = version; // the server has kept them
        overtake(error.message);
      })
      .finally(() => {
        state.sending = null;
        if (state.stored !== state.version) changed.timer = setTimeout(store, 1000);
      });
    return state.sending;
  };
  const overtake = (message) => { // another window has drawn on the scan; no strokes until its mask is shown
    state.isOvertaken = true;
    say("");
    warn(message, "Show its mask", () => open(state.scan.name));
    updateButtons();
  };
  const settle = async () => { // stop storing strokes
    clearTimeout(changed.timer);
    await state.sending;
    clearTimeout(changed.timer);
  };
  const flush = async () => {
    await settle();
    await store();
    if (state.stored !== state.version) throw new Error(`${state.scan.name} stays open: its last strokes are not stored yet.`);
  };
  addEventListener("beforeunload", (event) => { if (state.stored !== state.version) event.preventDefault(); });

  // one scan

  const presets = () => { // of the channel
    const { scan, channel } = state;
    return { full: scan.windows[channel], ...(scan.is_ct[channel] ? CT : {}) };
  };
  const chooseChannel = (channel) => {
    state.channel = channel;
    const all = Object.values(presets());
    state.limits = [Math.min(...all.map(([low]) => low)), Math.max(...all.map(([, high]) => high))];
    $("preset").replaceChildren(...Object.keys(presets()).map((one) => new Option(one)));
    state.drawing.setChannel(channel);
    choosePreset("full");
  };
  const applyWindow = () => {
    if (!state.drawing) return;
    const [low, high] = state.limits;
    const width = Math.max(1e-6, Number($("width").value) * (high - low));
    const level = low + Number($("level").value) * (high - low);
    state.drawing.setRange([level - width / 2, level + width / 2]);
  };
  const choosePreset = (name) => {
    const range = presets()[name];
    const [low, high] = state.limits;
    $("preset").value = name;
    $("level").value = ((range[0] + range[1]) / 2 - low) / (high - low);
    $("width").value = (range[1] - range[0]) / (high - low);
    applyWindow();
  };

  // one action at a time, and no stroke during it: NiiVue has a single drawing for all scans
  const busily = async (action) => {
    if (state.isBusy) return;
    state.isBusy = true;
    updateButtons();
    await action().catch(complain);
    Object.assign(state, { isBusy: false, wanted: "" });
    updateButtons();
  };
  const open = (name) => {
    state.wanted = name; // also while another scan is being loaded
    return busily(showWanted);
  };
  const showWanted = async () => {
    while (state.wanted) {
      const name = state.wanted;
      state.wanted = "";
      await flush();
      await load(name);
    }
  };
  const load = async (name) => {
    document.body.dataset.ready = "";
    $("empty").textContent = "Loading the scan. The first prediction takes longer.";
    $("empty").hidden = false;
    warn("");
    try {
      const scan = await getJson(ofCase(name, "description"));
      const [image, mask] = await Promise.all([getBytes(ofCase(name, "image")), getBytes(ofCase(name, "mask"))]);
      state.drawing?.close();
      state.drawing = null; // an uncertainty map that arrives now is of the last scan
      state.drawing = scan.dims === 3 ? await Volume.open(scan, image, mask) : new Picture(scan, image, mask);
      show(scan);
    } catch (error) {
      if (error.status) state.damaged.add(name); // not the next one again
      state.drawing?.close();
      Object.assign(state, { drawing: null, scan: null });
      $("empty").textContent = "This scan cannot be shown.";
      complain(error);
    }
    showQueue();
  };

  const show = (scan) => {
    Object.assign(state, { scan, version: 0, stored: 0, force: false, isOvertaken: false });
    $("empty").hidden = true;
    $("name").textContent = scan.name;
    const words = { predicted: "from the prediction", labeled: "from the label", unlabeled: "from an empty mask", corrected: "from the label" };
    $("start").textContent = (scan.draft ? "unsaved strokes restored, " : "") + words[scan.start]
      + (scan.versions ? `, ${scan.versions} earlier version${scan.versions > 1 ? "s" : ""}` : "");
    $("channel").replaceChildren(...scan.channels.map((one, index) => new Option(one, index)));
    $("channel-choice").hidden = scan.channels.length < 2 || (scan.dims === 2 && scan.channels.length === 3);
    $("uncertainty-choice").hidden = !scan.has_uncertainty;
    $("uncertainty").checked = false;
    $("planes").hidden = $("interpolate").hidden = scan.dims === 2;
    if (state.pen >= scan.classes.length) state.pen = 1;
    $("classes").replaceChildren($("classes").querySelector("legend"), ...scan.classes.slice(1).map((one, index) => {
      const button = document.createElement("button");
      const swatch = document.createElement("i");
      swatch.style.background = one.color;
      button.append(swatch, one.name);
      if (index < CLASS_KEYS.length) button.dataset.key = CLASS_KEYS[index];
      button.dataset.pen = index + 1;
      button.onclick = () => choose({ pen: index + 1, tool: state.tool === "eraser" || state.tool === "move" ? "pen" : state.tool });
      return button;
    }));
    state.drawing.setSize(Number($("size").value));
    state.drawing.setOpacity(Number($("opacity").value));
    chooseChannel(0);
    choose({});
    say("");
    if (scan.opened_elsewhere) warn(ELSEWHERE);
    document.body.dataset.ready = scan.name;
  };

  const choose = (changes) => {
    Object.assign(state, changes);
    state.drawing?.setTool();
    if (changes.plane || !Object.keys(changes).length) state.drawing?.setPlane();
    for (const [key, value] of [["tool", state.tool], ["plane", state.plane], ["pen", String(state.pen)]]) {
      for (const button of document.querySelectorAll(`[data-${key}]`)) button.setAttribute("aria-pressed", button.dataset[key] === value);
    }
    titles();
  };

  const nextName = (after) => {
    const isOpen = (one) => one.name !== after && !state.damaged.has(one.name) && ["predicted", "unlabeled"].includes(one.state);
    return state.queue.find(isOpen)?.name;
  };
  const finish = async (name) => {
    Object.assign(state, { scan: null, version: 0, stored: 0 });
    await poll();
    state.wanted ||= nextName(name) ?? "";
    if (state.wanted) return showWanted();
    state.isOvertaken = false;
    state.drawing?.close();
    state.drawing = null;
    $("name").textContent = $("start").textContent = $("place").textContent = "";
    $("empty").textContent = "No scan is left: each one has a label, was skipped or cannot be read.";
    $("empty").hidden = false;
    document.body.dataset.ready = "none";
  };
  const save = () => busily(async () => {
    const { scan } = state;
    await settle();
    try {
      await postMask(ofCase(scan.name, "label"), state.drawing.mask, { stamp: scan.stamp, draft: scan.draft, force: state.force ? "1" : "" });
    } catch (error) {
      state.force = error.status === 409;
      store();
      throw error;
    }
    await finish(scan.name);
    say(`Saved ${scan.name}`);
  });
  const skip = () => busily(async () => {
    const { name } = state.scan;
    await flush();
    await post(ofCase(name, "skip"));
    await finish(name);
    say(`Skipped ${name}`);
  });
  const discard = () => busily(async () => {
    const { name, draft } = state.scan;
    if ((draft || state.version) && !confirm(`Discard all strokes on ${name} that are not saved as a label?`)) return;
    await settle();
    await post(ofCase(name, "discard"), { draft: state.scan.draft });
    state.stored = state.version;
    state.wanted ||= name;
    await showWanted();
  });
  const updateButtons = () => {
    for (const id of ["save", "skip", "discard"]) $(id).disabled = !state.scan || state.isBusy;
    for (const id of ["undo", "interpolate"]) $(id).disabled = !state.scan || state.isBusy || state.isOvertaken || state.isLost;
    $("stage").inert = state.isBusy || state.isOvertaken || state.isLost;
  };

  // the queue and training

  const showQueue = () => {
    const known = new Map([...$("queue").children].map((item) => [item.dataset.name, item]));
    const items = state.queue.map((one) => {
      const item = known.get(one.name) ?? document.createElement("li");
      const isCurrent = one.name === state.scan?.name;
      const print = JSON.stringify([one, isCurrent]);
      if (item.dataset.print === print) return item;
      const image = item.querySelector("img") ?? Object.assign(new Image(), { alt: "", loading: "lazy" });
      const address = `${ofCase(one.name, "thumbnail")}?${new URLSearchParams({ key: one.picture })}`;
      image.onerror = () => { delete item.dataset.print; delete image.dataset.address; };  // busy: ask again with the next poll
      if (image.dataset.address !== address) Object.assign(image, { src: address }).dataset.address = address;
      const button = document.createElement("button");
      const words = document.createElement("span");
      const title = Object.assign(document.createElement("b"), { textContent: one.name, title: one.name });
      const mark = Object.assign(document.createElement("span"), { textContent: one.state, className: `state ${one.state}` });
      const reason = document.createElement("small");
      reason.append(mark, one.has_draft ? "unsaved strokes. " : "", one.reason);
      words.append(title, reason);
      button.append(image, words);
      button.onclick = () => open(one.name);
      if (isCurrent) button.setAttribute("aria-current", "true");
      Object.assign(item.dataset, { print, name: one.name, state: one.state });
      item.replaceChildren(button);
      return item;
    });
    const isSame = items.length === $("queue").children.length && items.every((item, at) => item === $("queue").children[at]);
    if (!isSame) $("queue").replaceChildren(...items);
    if (showQueue.scan !== state.scan) $("queue").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
    showQueue.scan = state.scan;
  };

  const plot = (svg, points, xName, yName) => {
    svg.toggleAttribute("hidden", !points.length);
    if (!points.length) return;
    const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const place = ([x, y]) => [34 + (238 * (x - left)) / (right - left || 1), 76 - (56 * (y - low)) / (high - low || 1)];
    const path = points.map((point) => place(point).map((one) => one.toFixed(1)).join(",")).join(" ");
    const dots = points.length > 30 ? "" : points.map((point) => { const [x, y] = place(point); return `<circle cx="${x}" cy="${y}" r="2.5" fill="var(--accent)"/>`; }).join("");
    const digits = high - low < 0.1 ? 3 : 2;
    const text = (x, y, words, anchor) => `<text x="${x}" y="${y}" text-anchor="${anchor}" font-size="10" fill="var(--soft)">${words}</text>`;
    svg.innerHTML = `<path d="M34 18V78H274" fill="none" stroke="var(--line)"/><polyline points="${path}" fill="none" stroke="var(--accent)" stroke-width="1.5"/>${dots}`
      + text(31, 78, low.toFixed(digits), "end") + (high > low ? text(31, 24, high.toFixed(digits), "end") : "")
      + text(34, 90, left, "start") + (right > left ? text(274, 90, right, "end") : "")
      + text(154, 90, xName, "middle") + text(34, 10, yName, "start");
  };

  const showTraining = (training, labels) => {
    const { rounds, curve } = training;
    const last = rounds[rounds.length - 1];
    state.isTraining = training.is_running;
    const step = curve.length ? `${curve[curve.length - 1][0]}${training.steps ? ` of ${training.steps}` : ""}` : "";
    $("training-state").textContent = training.is_running
      ? `Training${training.fold ? ` fold ${training.fold}` : ""}${step ? `: step ${step}` : " starts"}`
      : training.stopped
        ? `Run ${training.stopped} was stopped${step ? ` at step ${step}` : ""}.`
      : last
        ? `Run ${last.folder}: trained on ${last.labels} label${last.labels === 1 ? "" : "s"}${last.dice === null ? "" : `, expected Dice ${last.dice.toFixed(3)}`}.`
          + (labels > last.labels ? ` ${labels - last.labels} new.` : "")
        : `No run yet. ${labels ? "" : "Label a few scans from empty masks. "}After training, masks start from predictions.`;
    $("train").textContent = training.is_running ? "Stop" : "Train";
    $("train").disabled = !training.is_running && !labels;
    $("steps").disabled = $("folds").disabled = training.is_running;
    plot($("curve"), curve, "step", "labeled loss");
    plot($("dice"), rounds.filter((one) => one.dice !== null).map((one) => [one.labels, one.dice]), "labels", "expected Dice");
    $("advice").hidden = !training.advice;
    $("advice").textContent = training.advice;
    $("failure").hidden = !training.failure;
    $("failure").textContent = training.failure;
  };

  const poll = async () => {
    try {
      const asked = state.scan;
      const found = await getJson("queue", { case: asked?.name ?? "", draft: asked?.draft ?? "" });
      state.queue = found.scans;
      $("count").textContent = `${found.labels} of ${found.scans.length} labeled`;
      $("ranking").hidden = !(found.ranking || found.problem);
      $("ranking").textContent = [found.problem, found.ranking].filter(Boolean).join(" ");
      showTraining(found.training, found.labels);
      const now = found.scans.find((one) => one.name === state.scan?.name);
      const isShown = now && asked === state.scan && !state.isBusy;
      if (isShown && now.stamp !== state.scan.stamp) {
        warn("Another window or program has saved a label of this scan.", "Show it", discard);
      } else if (isShown && found.is_overtaken) {
        if (!state.isOvertaken) overtake("Another window has drawn on this scan.");
      } else if (isShown && !now.stamp && !now.has_draft && !state.version && ![state.scan.weights, ""].includes(found.weights)) {
        warn(NEWER, "Show its mask", () => open(state.scan.name));
      } else if (found.opened_elsewhere) {
        if ($("banner").hidden) warn(ELSEWHERE);
      } else if ([ELSEWHERE, NEWER].includes($("banner-text").textContent)) {
        warn("");
      }
      showQueue();
      if (poll.isLost) { poll.isLost = false; warn(""); }
    } catch (error) {
      poll.isLost = true;
      complain(error);
    }
  };
  const train = () => {
    if (state.isTraining) return post("stop").then(poll).catch(complain);
    return post("train", { steps: $("steps").value, folds: $("folds").checked ? "1" : "" })
      .then(() => { warn(""); return poll(); })
      .catch(complain);
  };

  // controls and their keys

  const nudge = (id, by) => {
    const input = $(id);
    input.value = Number(input.value) + by;
    input.dispatchEvent(new Event("input"));
  };
  const tenth = () => 0.1 * Number($("width").value); // of the window: CT presets are narrow
  const cycle = () => {
    if (!state.scan) return;
    const names = [...$("preset").options].map((option) => option.value);
    choosePreset(names[(names.indexOf($("preset").value) + 1) % names.length]);
  };
  const hide = () => {
    const isShown = Number($("opacity").value) > 0;
    if (isShown) hide.before = $("opacity").value;
    $("opacity").value = isShown ? 0 : hide.before ?? 0.5;
    $("opacity").dispatchEvent(new Event("input"));
  };
  const neighbor = (by) => {
    const at = state.queue.findIndex((one) => one.name === state.scan?.name);
    const other = state.queue[at + by];
    if (other) open(other.name);
  };
  const showUncertainty = async () => {
    const { scan, drawing } = state;
    if (!scan?.has_uncertainty) return;
    const bytes = $("uncertainty").checked ? await getBytes(ofCase(scan.name, "uncertainty")) : null;
    if (state.drawing === drawing) await drawing.setUncertainty(bytes);
  };
  const EXTRA_KEYS = { // keys without a button: words, action, and the control that must be shown
    "[": ["smaller pen", () => nudge("size", -1)],
    "]": ["larger pen", () => nudge("size", 1)],
    o: ["less opacity", () => nudge("opacity", -0.1)],
    p: ["more opacity", () => nudge("opacity", 0.1)],
    h: ["hide or show the mask", hide],
    w: ["next window preset", cycle],
    "-": ["darker", () => nudge("level", tenth())],
    "+": ["brighter", () => nudge("level", -tenth())],
    "<": ["more contrast", () => nudge("width", -tenth())],
    ">": ["less contrast", () => nudge("width", tenth())],
    u: ["uncertainty", () => { $("uncertainty").checked = !$("uncertainty").checked; showUncertainty().catch(complain); }, "uncertainty-choice"],
    g: ["next channel", () => { const list = $("channel"); list.selectedIndex = (list.selectedIndex + 1) % list.length; list.dispatchEvent(new Event("change")); }, "channel-choice"],
    x: ["cross-validate when training", () => { $("folds").checked = !$("folds").checked; }],
    ".": ["zoom in", () => state.drawing?.zoom(1.2)],
    ",": ["zoom out", () => state.drawing?.zoom(1 / 1.2)],
    ArrowUp: ["next slice", () => state.drawing?.step(1), "planes"],
    ArrowDown: ["previous slice", () => state.drawing?.step(-1), "planes"],
    n: ["next scan in the list", () => neighbor(1)],
    j: ["previous scan in the list", () => neighbor(-1)],
  };
  const titles = () => {
    for (const button of document.querySelectorAll("[data-key]")) button.title = `${button.textContent} (${button.dataset.key})`;
  };
  const help = () => {
    const shown = [...document.querySelectorAll("[data-key]")].filter((button) => !button.closest("[hidden]"));
    const rows = shown.map((button) => [button.dataset.key, button.textContent]);
    const others = Object.entries(EXTRA_KEYS).filter(([, [, , control]]) => !control || !$(control).hidden);
    rows.push(...others.map(([key, [words]]) => [key, words]));
    $("keys").replaceChildren(...rows.map(([key, words]) => {
      const row = document.createElement("tr");
      row.innerHTML = "<td><kbd></kbd></td><td></td>";
      row.querySelector("kbd").textContent = key;
      row.lastChild.textContent = words;
      return row;
    }));
    $("help").showModal();
  };
  addEventListener("keydown", (event) => { // before NiiVue, which has keys of its own
    const isTyping = event.target.matches("input[type=number], select");
    if (event.key === "?" && $("help").open) return $("help").close();
    if (isTyping || event.ctrlKey && event.key !== "z" || event.metaKey && event.key !== "z" || event.altKey || $("help").open) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const button = [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key && !one.closest("[hidden]"));
    const isOnButton = key === "Enter" && event.target.matches("button");
    if (isOnButton) return;
    if (button || EXTRA_KEYS[key]) {
      event.preventDefault();
      if (!button) EXTRA_KEYS[key][1]();
      else if (!event.repeat) button.click(); // a key held too long saves one scan only
    }
    event.stopImmediatePropagation();
  }, { capture: true });
  // keys belong to the page after a click, not to what was clicked
  addEventListener("click", (event) => { if (event.detail) event.target.closest("button")?.blur(); });
  for (const list of document.querySelectorAll("select")) list.addEventListener("change", () => list.blur());
  for (const button of document.querySelectorAll("[data-tool]")) button.onclick = () => choose({ tool: button.dataset.tool });
  for (const button of document.querySelectorAll("[data-plane]")) button.onclick = () => choose({ plane: button.dataset.plane });
  $("undo").onclick = () => state.drawing?.undo();
  $("interpolate").onclick = () => state.drawing?.interpolate?.();
  $("size").oninput = () => state.drawing?.setSize(Number($("size").value));
  $("opacity").oninput = () => state.drawing?.setOpacity(Number($("opacity").value));
  $("level").oninput = $("width").oninput = applyWindow;
  $("preset").onchange = () => choosePreset($("preset").value);
  $("channel").onchange = () => { if (state.drawing) chooseChannel(Number($("channel").value)); };
  $("uncertainty").onchange = () => showUncertainty().catch(complain);
  $("help-button").onclick = help;
  $("save").onclick = save;
  $("skip").onclick = skip;
  $("discard").onclick = discard;
  $("train").onclick = train;
  $("stage").addEventListener("wheel", (event) => { // before NiiVue, where the wheel moves through the slices
    if (!event.ctrlKey && state.scan?.dims !== 2) return;
    event.preventDefault();
    event.stopPropagation();
    state.drawing?.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event);
  }, { capture: true, passive: false });
  addEventListener("resize", () => state.drawing?.fit());

  titles();
  updateButtons();
  poll().then(() => {
    const first = nextName("") ?? state.queue[0]?.name;
    if (first) open(first);
    setInterval(poll, POLL);
  });
})();
