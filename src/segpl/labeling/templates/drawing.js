// masks that are drawn with the mouse: a picture on a plain canvas, and a volume in NiiVue

const UNDO = 30; // strokes
const HEAT = [255, 95, 210]; // color of uncertainty in a picture
const $ = (id) => document.getElementById(id);
const rgb = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));

export const brush = { tool: "pen", pen: 1, plane: "multi" };

class Drawing {
  start(onChange) { // once the initial mask is loaded
    this.onChange = onChange;
    this.strokes = [];
    this.before = this.mask.slice();
  }

  finish() { // end a stroke: remember what it replaced
    const { mask, before } = this;
    let count = 0;
    for (let at = 0; at < mask.length; at++) if (mask[at] !== before[at]) count++;
    if (!count) return;
    const stroke = { places: new Uint32Array(count), values: new Uint8Array(count) };
    for (let at = 0, next = 0; next < count; at++) {
      if (mask[at] === before[at]) continue;
      stroke.places[next] = at;
      stroke.values[next++] = before[at];
      before[at] = mask[at];
    }
    this.strokes = [...this.strokes, stroke].slice(-UNDO);
    this.onChange();
  }

  undo() {
    const stroke = this.strokes.pop();
    if (!stroke) return;
    const { mask, before } = this;
    stroke.places.forEach((place, index) => { mask[place] = before[place] = stroke.values[index]; });
    this.draw();
    this.onChange();
  }

  get isEmpty() { return !this.mask.some(Boolean); }
}

export class Picture extends Drawing {
  constructor(scan, image, mask) {
    super();
    this.scan = scan;
    [this.height, this.width] = scan.shape;
    this.values = new Float32Array(image);
    this.mask = new Uint8Array(mask);
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

  fit() { // the largest size that keeps the aspect ratio of the pixels
    const [down, across] = this.scan.spacing;
    const [high, wide] = [this.height * down, this.width * across];
    const room = $("stage").getBoundingClientRect();
    const scale = Math.min((room.width - 16) / wide, (room.height - 16) / high) * (this.scale ?? 1);
    this.canvas.style.width = `${wide * scale}px`;
    this.canvas.style.height = `${high * scale}px`;
    this.canvas.style.imageRendering = scale * Math.min(down, across) < 1 ? "auto" : "pixelated";
  }

  draw(...rectangle) { // at the next frame: the whole picture, or the rectangle left, top, right, bottom
    const [left, top, right, bottom] = rectangle.length ? rectangle : [0, 0, this.width, this.height];
    const dirty = this.dirty ?? [left, top, right, bottom];
    this.dirty = [
      Math.max(0, Math.min(dirty[0], left)), Math.max(0, Math.min(dirty[1], top)),
      Math.min(this.width, Math.max(dirty[2], right)), Math.min(this.height, Math.max(dirty[3], bottom)),
    ];
    this.frame ??= requestAnimationFrame(() => this.paint());
  }

  paint() {
    const { width, values, mask, shading, opacity, dirty: [left, top, right, bottom] } = this;
    this.frame = this.dirty = null;
    if (!this.range || right <= left || bottom <= top) return; // the range is set last when a scan is opened
    const size = mask.length;
    const [low, high] = this.range;
    const slope = 255 / (high - low);
    const colors = this.scan.classes.flatMap((one) => rgb(one.color));
    const picture = this.context.createImageData(right - left, bottom - top);
    const isColor = this.scan.channels.length === 3;
    for (let row = top, to = 0; row < bottom; row++) {
      for (let at = row * width + left; at < row * width + right; at++, to += 4) {
        const heat = shading ? shading[at] / 255 / 1.3 : 0;
        for (let band = 0; band < 3; band++) {
          let shade = (values[(isColor ? band : this.channel) * size + at] - low) * slope;
          shade = shade < 0 ? 0 : shade > 255 ? 255 : shade;
          if (heat) shade += (HEAT[band] - shade) * heat;
          if (mask[at]) shade += (colors[3 * (mask[at] - 1) + band] - shade) * opacity;
          picture.data[to + band] = shade;
        }
        picture.data[to + 3] = 255;
      }
    }
    this.context.putImageData(picture, left, top);
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
    if (brush.tool === "move") {
      this.grip = [event.clientX, event.clientY];
      return;
    }
    this.points = [this.place(event)];
    this.dab(this.points[0]);
  }

  move(event) {
    if (this.grip) {
      $("picture").scrollBy(this.grip[0] - event.clientX, this.grip[1] - event.clientY);
      this.grip = [event.clientX, event.clientY];
    }
    if (!this.points.length) return;
    const to = this.place(event);
    const from = this.points[this.points.length - 1];
    const pace = brush.tool === "fill" ? 1 : Math.max(1, this.size / 8); // a quarter of the radius looks smooth
    const steps = Math.max(1, Math.ceil(Math.max(Math.abs(to[0] - from[0]), Math.abs(to[1] - from[1])) / pace));
    for (let step = 1; step <= steps; step++) {
      this.dab([0, 1].map((axis) => Math.round(from[axis] + ((to[axis] - from[axis]) * step) / steps)));
    }
    this.points.push(to);
  }

  release() {
    this.grip = null;
    if (!this.points.length) return;
    if (brush.tool === "fill") this.fill(this.points);
    this.points = [];
    this.finish();
  }

  dab([x, y]) {
    const radius = brush.tool === "fill" ? 0 : (this.size - 1) / 2;
    const reach = Math.ceil(radius);
    const value = brush.tool === "eraser" ? 0 : brush.pen;
    for (let row = Math.max(0, y - reach); row <= Math.min(this.height - 1, y + reach); row++) {
      for (let column = Math.max(0, x - reach); column <= Math.min(this.width - 1, x + reach); column++) {
        if (Math.hypot(row - y, column - x) <= radius + 0.25) this.mask[row * this.width + column] = value;
      }
    }
    this.draw(x - reach, y - reach, x + reach + 1, y + reach + 1);
  }

  fill(points) { // even-odd rule, at the centers of the pixels
    const rows = points.map(([, y]) => y);
    const [top, bottom] = [Math.max(0, Math.min(...rows)), Math.min(this.height - 1, Math.max(...rows))];
    for (let row = top; row <= bottom; row++) {
      const crossings = [];
      points.forEach(([x, y], index) => {
        const [nextX, nextY] = points[(index + 1) % points.length];
        if (y > row !== nextY > row) crossings.push(x + ((row - y) / (nextY - y)) * (nextX - x));
      });
      crossings.sort((a, b) => a - b);
      for (let index = 0; index + 1 < crossings.length; index += 2) {
        const first = Math.max(0, Math.ceil(crossings[index]));
        const last = Math.min(this.width - 1, Math.floor(crossings[index + 1]));
        for (let column = first; column <= last; column++) this.mask[row * this.width + column] = brush.pen;
      }
    }
    this.draw(0, top, this.width, bottom + 1);
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

  setTool() { this.canvas.style.cursor = brush.tool === "move" ? "grab" : "crosshair"; }
  setPlane() {}
  step() {}
  setSize(size) { this.size = size; }
  setOpacity(opacity) { this.opacity = opacity; this.draw(); }
  setRange(range) { this.range = range; this.draw(); }
  setChannel(channel) { this.channel = channel; this.draw(); }
  setUncertainty(bytes) { this.shading = bytes && new Uint8Array(bytes); this.draw(); }
  close() {
    cancelAnimationFrame(this.frame);
    $("picture").hidden = true;
    this.canvas.onpointerdown = null;
  }
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
    dragAndDropEnabled: false, isRadiologicalConvention: true, loadingText: "", maxDrawUndoBitmaps: 1,
    backColor: [0, 0, 0, 1], crosshairColor: [0.35, 0.7, 1, 0.8], fontColor: [1, 0.85, 0.3, 1], logLevel: "error",
    multiplanarShowRender: niivue.SHOW_RENDER[isSlow ? "NEVER" : "ALWAYS"], multiplanarLayout: niivue.MULTIPLANAR_TYPE.GRID,
    isOrientationTextVisible: true, crosshairGap: 6, crosshairWidth: 0.3, crosshairWidthUnit: "percent", isNearestInterpolation: true,
  });
  await viewer.attachToCanvas($("volume"));
  viewer.onLocationChange = ({ vox, values }) => {
    if (vox) $("place").textContent = `voxel ${vox.map((one) => one + 1).join(", ")}: ${Number(values[0]?.value ?? 0).toFixed(1)}`;
  };
  const { drawPenLine } = viewer;
  viewer.drawPenLine = (to, from, value) => { // NiiVue leaves out the voxel under the pointer
    drawPenLine.call(viewer, to, from, value);
    viewer.drawPt(...to, value);
  };
  return viewer;
};

export class Volume extends Drawing {
  static async open(scan, image, mask) {
    $("volume").hidden = false;
    const drawing = new Volume(scan, await openViewer());
    await drawing.load(image, mask);
    return drawing;
  }

  constructor(scan, nv) {
    super();
    Object.assign(this, { scan, nv });
    nv.onDrawingChanged = (action) => { if (action === "draw") this.finish(); };
  }

  async load(image, mask) {
    const { nv, scan } = this;
    nv.closeDrawing();
    await this.setUncertainty(null);
    for (const volume of [...nv.volumes]) nv.removeVolume(volume);
    await nv.loadFromArrayBuffer(image, "scan.nii");
    nv.createEmptyDrawing();
    if (nv.drawBitmap.length !== mask.byteLength) throw new Error("the scan could not be shown");
    nv.drawBitmap.set(new Uint8Array(mask));
    const classes = [{ name: "background", color: [0, 0, 0, 0] }, ...scan.classes.map(({ name, color }) => ({ name, color: [...rgb(color), 255] }))];
    const [R, G, B, A] = [0, 1, 2, 3].map((band) => classes.map(({ color }) => color[band]));
    nv.setDrawColormap({ R, G, B, A, labels: classes.map(({ name }) => name) });
    this.draw();
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

  draw() {
    this.nv.drawAddUndoBitmap(); // NiiVue fills outlines on its copy of the mask
    this.nv.refreshDrawing(true);
  }

  get mask() { return this.nv.drawBitmap; }
  get axis() { return { sagittal: 0, coronal: 1 }[brush.plane] ?? 2; }

  setTool() {
    this.nv.setDrawingEnabled(brush.tool !== "move");
    this.nv.setPenValue(brush.tool === "eraser" ? 0 : brush.pen, brush.tool === "fill");
    this.nv.opts.penSize = brush.tool === "fill" ? 1 : this.size;
  }

  setPlane() {
    const kinds = { axial: 0, coronal: 1, sagittal: 2, multi: 3, render: 4 };
    this.nv.setSliceType(kinds[brush.plane]);
    this.nv.setOpacity(0, brush.plane === "render" ? 0.3 : 1); // to see the mask inside
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

  setSize(size) {
    this.size = size;
    this.setTool();
  }

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

  interpolate() { // between drawn slices of the class, by signed distance; other classes stay
    const { mask, axis, scan: { shape } } = this;
    const strides = [1, shape[0], shape[0] * shape[1]];
    const [u, v] = [0, 1, 2].filter((one) => one !== axis);
    const read = (slice) => {
      const inside = new Uint8Array(shape[u] * shape[v]);
      for (let b = 0, at = 0; b < shape[v]; b++) {
        for (let a = 0; a < shape[u]; a++, at++) {
          inside[at] = mask[slice * strides[axis] + a * strides[u] + b * strides[v]] === brush.pen ? 1 : 0;
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
              if (!mask[place] && from[at] * (1 - share) + to[at] * share > 0) mask[place] = brush.pen;
            }
          }
        }
      }
      last = { slice, inside };
    }
    this.draw();
    this.finish();
    return count > 0;
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
