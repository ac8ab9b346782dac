import { Picture, Volume, brush } from "./drawing.js";

const $ = (id) => document.getElementById(id);
const WINDOW = Math.random().toString(36).slice(2); // identifies this browser window
const AUTOSAVE = 300; // ms after a stroke
const POLL = 3000; // ms
const CT = { brain: [0, 80], "soft tissue": [-160, 240], lung: [-1350, 150], bone: [-200, 800], liver: [-45, 105] };
const CLASS_KEYS = "123456789";
const LOST = "No connection to segpl label. Drawing is paused. If the program has stopped, start it again.";
const RESTARTED = "segpl label has restarted with a new address. Drawing is paused here. "
  + "Open the new address in this browser to restore strokes that are not stored yet.";
const SMALLEST_PEN = 25; // of the largest sizes
const NEWER = "A new run can predict this scan.";
const ELSEWHERE = "This scan is also open in another window. Draw in one of them only.";
const state = {
  scan: null, drawing: null, channel: 0, queue: [], folder: "", version: 0, stored: 0, kept: 0, sending: null, lost: "",
  force: false, isBusy: false, overtaken: "", wanted: "", isTraining: false, damaged: new Set(),
};

// requests

const request = async (path, options = {}) => {
  const { query = {}, ...rest } = options;
  const answer = await fetch(`${path}?${new URLSearchParams({ window: WINDOW, ...query })}`, rest).catch(() => null);
  const lost = !answer ? LOST : answer.status === 403 ? RESTARTED : ""; // 403: the token of an earlier start
  if (state.lost !== lost) {
    state.lost = lost;
    if (lost) warn(lost);
    else showOvertaken();
    updateButtons();
  }
  if (lost) throw new Error(lost);
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({ error: answer.statusText }));
  throw Object.assign(new Error(error), { status: answer.status });
};
const getJson = async (path, query) => (await request(path, { query })).json();
const getBytes = async (path, query) => (await request(path, { query })).arrayBuffer();
const ofCase = (name, what) => `case/${encodeURIComponent(name)}/${what}`;
const packed = (bytes) =>
  new Response(new Blob([bytes]).stream().pipeThrough(new CompressionStream("gzip"))).arrayBuffer();
const postMask = (path, body, query) => request(path, { method: "POST", query, body, headers: { "Content-Encoding": "gzip" } });
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
const showOvertaken = () => // no strokes until the mask of another window is shown; otherwise hides the banner
  (state.overtaken ? warn(state.overtaken, "Show its mask", () => open(state.scan.name)) : warn(""));

// strokes that the server has not stored yet are kept in the browser, for the next page

const database = new Promise((resolve, reject) => {
  const asked = indexedDB.open("segpl-label", 1);
  asked.onupgradeneeded = () => asked.result.createObjectStore("strokes", { keyPath: ["folder", "name", "window"] });
  asked.onsuccess = () => resolve(asked.result);
  asked.onerror = () => reject(asked.error);
});
const transact = async (mode, act) => {
  const transaction = (await database).transaction("strokes", mode);
  const asked = act(transaction.objectStore("strokes"));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(asked.result);
    transaction.onabort = () => reject(transaction.error);
  });
};
const keep = (record) => transact("readwrite", (store) => store.put(record));
const drop = ({ folder, name, window, version }) => transact("readwrite", (store) => { // unless there are newer ones
  const asked = store.get([folder, name, window]);
  asked.onsuccess = () => { if (asked.result?.version <= version) store.delete([folder, name, window]); };
  return asked;
}).catch(() => {});
const dropAll = () => {
  state.stored = state.version;
  return drop({ folder: state.folder, name: state.scan.name, window: WINDOW, version: state.version });
};
// each page holds the lock of its window. The records of an earlier start of segpl label are free: its address differs
const lockOf = (window) => `${location.pathname}${window}`;
navigator.locks.request(lockOf(WINDOW), () => new Promise(() => {}));
const sendKept = async () => { // strokes of closed pages; returns error messages
  const range = IDBKeyRange.bound([state.folder], [state.folder, []]);
  const keys = await transact("readonly", (store) => store.getAllKeys(range)).catch(() => []);
  const names = new Set(state.queue.map((one) => one.name));
  const problems = [];
  for (const key of keys.filter(([, name, window]) => names.has(name) && window !== WINDOW)) {
    await navigator.locks.request(lockOf(key[2]), { ifAvailable: true }, async (lock) => {
      const problem = lock && await sendRecord(key);
      if (problem) problems.push(problem);
    });
  }
  return problems.join(" ");
};
const sendRecord = async (key) => {
  const found = await transact("readonly", (store) => store.get(key)).catch(() => null); // its page may have dropped it
  if (!found) return "";
  const { body, ...record } = found;
  const { name, window, stamp, draft } = record;
  const answer = await postMask(ofCase(name, "draft"), body, { window, stamp, draft }).catch((error) => error);
  // 409: the server keeps them in `versions`; 413, 422: too large for the scan, or do not fit it
  if (answer.ok || [409, 413, 422].includes(answer.status)) await drop(record);
  if (answer.ok) return "";
  return [413, 422].includes(answer.status)
    ? `${name}: strokes kept in this browser were discarded because they do not fit the scan.`
    : `${name}: ${answer.message}`;
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
  state.sending = send().finally(() => {
    state.sending = null;
    const isDone = state.version === (state.lost === RESTARTED ? state.kept : state.stored);
    if (!isDone) changed.timer = setTimeout(store, 1000);
  });
  return state.sending;
};
const send = async () => {
  const { scan, version, folder } = state;
  const { name, stamp, draft } = scan;
  const record = { folder, name, window: WINDOW, version, stamp, draft };
  const body = await packed(state.drawing.mask);
  if (state.kept !== version) await keep({ ...record, body }).then(() => { state.kept = version; }, () => {});
  if (state.lost === RESTARTED) return say("Not stored yet"); // the next page sends them
  try {
    const answer = await postMask(ofCase(name, "draft"), body, { stamp, draft });
    scan.draft = (await answer.json()).draft;
    drop(record);
    if (state.scan !== scan) return;
    state.stored = version;
    say(`Strokes stored at ${new Date().toLocaleTimeString()}`);
  } catch (error) {
    if (error.status !== 409) return say(state.lost ? "Not stored yet" : `Not stored: ${error.message}`);
    drop(record);
    if (state.scan !== scan) return;
    state.stored = version; // the server has kept them
    overtake(error.message);
  }
};
const overtake = (message) => { // another window has drawn on the scan
  state.overtaken = message;
  say("");
  showOvertaken();
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
addEventListener("beforeunload", (event) => {
  const isSafe = state.version === (state.lost === RESTARTED ? state.kept : state.stored);
  if (!isSafe) event.preventDefault();
});

addEventListener("pagehide", () => navigator.sendBeacon(`close?${new URLSearchParams({ window: WINDOW })}`, ""));

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
  const problems = await sendKept();
  try {
    const scan = await getJson(ofCase(name, "description"));
    const [image, mask] = await Promise.all([getBytes(ofCase(name, "image")), getBytes(ofCase(name, "mask"))]);
    state.drawing?.close();
    state.drawing = null; // an uncertainty map that arrives now belongs to the last scan
    state.drawing = scan.dims === 3 ? await Volume.open(scan, image, mask) : new Picture(scan, image, mask);
    state.drawing.start(changed);
    state.damaged.delete(name);
    show(scan);
    if (problems) warn(problems);
  } catch (error) {
    if (error.status) state.damaged.add(name); // not the next one again
    showNone(`${name} cannot be shown.`);
    complain(error);
  }
  showQueue();
};

const showNone = (why) => {
  state.drawing?.close();
  Object.assign(state, { scan: null, drawing: null, overtaken: "" });
  for (const id of ["name", "start", "place"]) $(id).textContent = "";
  $("empty").textContent = why;
  $("empty").hidden = false;
};
const show = (scan) => {
  Object.assign(state, { scan, version: 0, stored: 0, kept: 0, force: false, overtaken: "" });
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
  if (brush.pen > scan.classes.length) brush.pen = 1;
  $("classes").classList.toggle("many", scan.classes.length > 4);
  $("classes").replaceChildren($("classes").querySelector("legend"), ...scan.classes.map((one, index) => {
    const button = document.createElement("button");
    const swatch = document.createElement("i");
    swatch.style.background = one.color;
    button.append(swatch, one.name);
    if (index < CLASS_KEYS.length) button.dataset.key = CLASS_KEYS[index];
    button.dataset.pen = index + 1;
    button.onclick = () => choose({ pen: index + 1, tool: brush.tool === "fill" ? "fill" : "pen" });
    return button;
  }));
  const [, side] = [...scan.shape].sort((a, b) => b - a);
  $("size").max = Math.max(SMALLEST_PEN, Math.round(side / 10));
  state.drawing.setSize(Number($("size").value));
  state.drawing.setOpacity(Number($("opacity").value));
  chooseChannel(0);
  choose({});
  say("");
  if (scan.opened_elsewhere) warn(ELSEWHERE);
  document.body.dataset.ready = scan.name;
};

const choose = (changes) => {
  Object.assign(brush, changes);
  state.drawing?.setTool();
  if (changes.plane || !Object.keys(changes).length) state.drawing?.setPlane();
  for (const [key, value] of [["tool", brush.tool], ["plane", brush.plane], ["pen", String(brush.pen)]]) {
    for (const button of document.querySelectorAll(`[data-${key}]`)) button.setAttribute("aria-pressed", button.dataset[key] === value);
  }
  titles();
  document.querySelector(`[data-pen="${brush.pen}"]`)?.scrollIntoView({ block: "nearest" });
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
  showNone("Nothing is left to label: every scan is labeled, skipped or unreadable.");
  document.body.dataset.ready = "none";
};
const save = async () => {
  if (!state.scan || state.isBusy) return;
  if (state.scan.stamp || !state.drawing.isEmpty) return write();
  $("empty-name").textContent = state.scan.name;
  $("empty-mask").showModal();
};
$("empty-mask").onclose = () => {
  const action = { save: write, skip }[$("empty-mask").returnValue];
  $("empty-mask").returnValue = "";
  action?.();
};
const write = () => busily(async () => {
  const { scan } = state;
  await settle();
  try {
    await postMask(ofCase(scan.name, "label"), await packed(state.drawing.mask), { stamp: scan.stamp, draft: scan.draft, force: state.force ? "1" : "" });
  } catch (error) {
    store();
    state.force = error.status === 409;
    if (!state.force) throw error;
    return warn(error.message, "Show its mask", discard);
  }
  await dropAll();
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
  await dropAll();
  state.wanted ||= name;
  await showWanted();
});
const updateButtons = () => {
  for (const id of ["save", "skip", "discard"]) $(id).disabled = !state.scan || state.isBusy;
  for (const id of ["undo", "interpolate"]) $(id).disabled = !state.scan || state.isBusy || state.overtaken || state.lost;
  $("stage").inert = Boolean(state.isBusy || state.overtaken || state.lost);
};

// the queue and training

const NO_PICTURE = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="; // one transparent pixel: keeps the place of a picture that is missing
const seen = new IntersectionObserver((changes) => {
  for (const { target, isIntersecting } of changes) {
    target.isSeen = isIntersecting;
    fetchPicture(target);
  }
}, { rootMargin: "300px" });
const fetchPicture = async (image) => { // once for each address; a busy server is asked again with the next poll
  const { address } = image.dataset;
  if (!image.isSeen || image.asked === address) return;
  image.asked = address;
  const answer = await fetch(address).catch(() => null);
  const isBusy = !answer || answer.status === 204;
  const picture = answer?.ok && !isBusy ? await answer.blob().catch(() => null) : null;
  if (image.dataset.address !== address) return;
  if (isBusy) image.asked = "";
  if (!picture) return;
  URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(picture);
};
const showQueue = () => {
  const known = new Map([...$("queue").children].map((item) => [item.dataset.name, item]));
  const items = state.queue.map((one) => {
    const item = known.get(one.name) ?? document.createElement("li");
    const isCurrent = one.name === state.scan?.name;
    const print = JSON.stringify([one, isCurrent]);
    if (item.dataset.print === print) return item;
    const image = item.querySelector("img") ?? Object.assign(new Image(), { alt: "", src: NO_PICTURE });
    const address = `${ofCase(one.name, "thumbnail")}?${new URLSearchParams({ key: one.picture })}`;
    image.dataset.address = address;
    seen.observe(image);
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
  for (const image of $("queue").querySelectorAll("img")) fetchPicture(image);
};

const plot = (svg, points, xName, yName) => { // points: x, y, and half the length of an error bar
  svg.toggleAttribute("hidden", !points.length);
  if (!points.length) return;
  const xs = points.map(([x]) => x);
  const ys = points.flatMap(([, y, error = 0]) => [y - error, y + error]);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const place = ([x, y]) => [34 + (238 * (x - left)) / (right - left || 1), 76 - (56 * (y - low)) / (high - low || 1)];
  const path = points.map((point) => place(point).map((one) => one.toFixed(1)).join(",")).join(" ");
  const dots = points.length > 30 ? "" : points.map((point) => {
    const [x, y] = place(point);
    const [top, bottom] = [1, -1].map((side) => place([point[0], point[1] + side * (point[2] ?? 0)])[1]);
    return `<path d="M${x} ${top}V${bottom}" stroke="var(--accent)"/><circle cx="${x}" cy="${y}" r="2.5" fill="var(--accent)"/>`;
  }).join("");
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
    : training.failure
      ? "Training failed."
    : training.stopped
      ? `Run ${training.stopped} was stopped${step ? ` at step ${step}` : ""}.`
    : last
      ? `Run ${last.folder}: trained on ${last.labels} label${last.labels === 1 ? "" : "s"}${last.dice === null ? "" : `, expected Dice ${last.dice.toFixed(3)}`}.`
        + (labels > last.labels ? ` ${labels - last.labels} new.` : "")
        + (last.dice === null ? " To estimate the Dice on new scans, check cross-validate and train again." : "")
      : `No run yet. ${labels ? "" : "Label a few scans from empty masks. "}After training, masks start from predictions.`;
  $("train").textContent = training.is_running ? "Stop" : "Train";
  $("train").disabled = !training.is_running && !labels;
  $("steps").disabled = $("folds").disabled = training.is_running;
  plot($("curve"), curve, "step", "labeled loss");
  plot($("dice"), rounds.filter((one) => one.dice !== null).map((one) => [one.labels, one.dice, one.error]), "labels", "expected Dice");
  $("advice").hidden = !training.advice;
  $("advice").textContent = training.advice;
  $("failure").hidden = !training.failure;
  $("failure").textContent = training.failure;
};

const poll = async () => {
  if (state.lost === RESTARTED) return;
  try {
    const asked = state.scan;
    const found = await getJson("queue", { case: asked?.name ?? "", draft: asked?.draft ?? "" });
    state.queue = found.scans;
    state.folder = found.folder;
    $("count").textContent = `${found.labels} of ${found.scans.length} labeled`;
    $("ranking").hidden = !(found.ranking || found.problem);
    $("ranking").textContent = [found.problem, found.ranking].filter(Boolean).join(" ");
    showTraining(found.training, found.labels);
    const now = found.scans.find((one) => one.name === state.scan?.name);
    const isShown = now && asked === state.scan && !state.isBusy;
    if (isShown && now.stamp !== state.scan.stamp) {
      if ($("banner").hidden) state.force = false;
      if (!state.force) warn("Another window or program has saved a label of this scan.", "Show its mask", discard);
    } else if (isShown && found.is_overtaken) {
      if (!state.overtaken) overtake("Another window has drawn on this scan.");
    } else if (isShown && !now.stamp && !now.has_draft && !state.version && ![state.scan.weights, ""].includes(found.weights)) {
      warn(NEWER, "Show its mask", () => open(state.scan.name));
    } else if (found.opened_elsewhere) {
      if ($("banner").hidden) warn(ELSEWHERE);
    } else if ([ELSEWHERE, NEWER].includes($("banner-text").textContent)) {
      warn("");
    }
    showQueue();
    if (poll.problem && $("banner-text").textContent === poll.problem) showOvertaken();
    poll.problem = "";
  } catch (error) {
    poll.problem = error.message;
    complain(error);
  }
};
const train = () => {
  if (state.isTraining) return post("stop").then(poll).catch(complain);
  return post("train", { steps: $("steps").value, folds: $("folds").checked ? "1" : "" })
    .then(() => { showOvertaken(); return poll(); })
    .catch(complain);
};

// controls and their keys

const nudge = (id, by) => {
  const input = $(id);
  input.value = Number(input.value) + by;
  input.dispatchEvent(new Event("input"));
};
const penStep = () => Math.ceil(Number($("size").value) / 10);
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
const turnClass = (by) => {
  const buttons = [...document.querySelectorAll("[data-pen]")];
  buttons[(brush.pen - 1 + by + buttons.length) % buttons.length]?.click();
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
  "[": ["smaller pen", () => nudge("size", -penStep())],
  "]": ["larger pen", () => nudge("size", penStep())],
  l: ["next class", () => turnClass(1)],
  q: ["previous class", () => turnClass(-1)],
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
  if (document.querySelector("dialog[open]")) return event.key === "Enter" && event.repeat ? event.preventDefault() : null;
  if (isTyping || event.ctrlKey && event.key !== "z" || event.metaKey && event.key !== "z" || event.altKey) return;
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
$("interpolate").onclick = () => {
  if (!state.drawing.interpolate()) say("Nothing to interpolate: no empty slice lies between two drawn ones.");
};
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
