"use strict";
// The page of `distir explore`. Its state is the query of its URL; the server answers a
// query with lines of JSON, of which a newer request takes the place.

const client = Math.random().toString(36).slice(2);
const timeline = new Timeline(by("timeline"));
let fields = [];          // the fields of the form, as the server describes them
let commands = {};
let report = null;        // the data of the drawings
let waiting = null;       // the request whose answer is awaited
let started = 0, phase = "";
let isDragging = false;   // whether the present change is one state of the history already

const field = name => fields.find(f => f.name === name);
const numberOf = name => { const f = field(name); return f ? Number(f.value) || 1 : 1; };

// The query of the settings of the form. Defaults are left out.
function queryOfForm() {
  const query = new URLSearchParams();
  for (const f of fields) {
    if (f.value === f.default) continue;
    const values = f.several ? f.value.split(/\s+/).filter(Boolean) : [f.value];
    for (const value of values) if (value !== "" || f.default !== "") query.append(f.name, value);
  }
  return query.toString();
}

// Requests

// Calls `take` for each line that the server answers. Returns false if another request
// took the place of this one.
async function lines(path, query, signal, take) {
  const response = await fetch(`${path}?${query}`, {headers: {"X-Client": client}, signal});
  if (!response.ok) throw new Error(`the server answers ${response.status}: ${(await response.text()).trim()}`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n");
    rest = parts.pop();
    for (const part of parts) take(JSON.parse(part));
  }
}

async function load(query) {
  if (waiting) waiting.abort();
  const request = waiting = new AbortController();
  started = performance.now();
  phase = "";
  showStatus();
  let isAnswered = false, failed = "";
  const isNew = () => waiting === request;
  try {
    await lines("/answer", query, request.signal, part => {
      if (!isNew()) return;
      if (part.phase) phase = part.phase;
      if (part.fields) showSettings(part);
      if (part.numbers) { isAnswered = true; showNumbers(part); showFront(part.front); }
      if (part.report) showReport(part.report);
      if (part.error) failed = part.error;
    });
  } catch (error) {
    if (error.name === "AbortError") return;
    failed = error instanceof TypeError
      ? "The server does not answer. Start `distir explore` again, and reload this page." : error.message;
  }
  if (!isNew()) return;
  waiting = null;
  if (failed) {
    showError(failed);
    // So that there is a form with which to go on.
    if (!fields.length) await lines("/answer", "", undefined, part => { if (part.fields && !fields.length) showSettings({...part, query}); });
  } else if (isAnswered) showError("");
  showStatus();
}

function showStatus() {
  const results = document.querySelector("main");
  const lasts = (performance.now() - started) / 1000;
  results.classList.toggle("stale", Boolean(waiting) && lasts > 0.2);
  results.setAttribute("aria-busy", String(Boolean(waiting)));
  by("status").textContent = waiting && lasts > 0.2 ? `${phase || "waiting"} (${lasts.toFixed(1)} s)` : "";
}
setInterval(() => { if (waiting) showStatus(); }, 200);

function showError(text) {
  by("error").hidden = !text;
  by("error").textContent = text;
  if (text) {
    document.querySelector("main").classList.remove("stale");
    by("tiles").replaceChildren();
    by("notes").replaceChildren();
  }
}

// Settings

function showSettings(part) {
  fields = part.fields;
  commands = part.commands;
  showForm();
  history.replaceState(null, "", `?${part.query}`);
  by("link").href = `?${part.query}`;
  showCommand();
  const model = field("model").value, size = field("size");
  by("title").textContent = `${model}${size && size.value ? ` ${size.value}` : ""} on ${field("cluster").value}`;
  document.title = `${by("title").textContent}: DistIR`;
}

function showCommand() {
  by("command").textContent = commands[by("which").value] || "";
}

function showForm() {
  const active = document.activeElement;
  for (const group of ["model", "sizes", "cluster", "degrees", "how", "more"]) {
    const box = by(`group-${group}`), own = fields.filter(f => f.group === group);
    // Elements stay where they are, so that a slider can be dragged on.
    const known = new Map([...box.children].map(made => [made.dataset.field, made]));
    box.replaceChildren(...own.map(f => {
      const key = `${f.name} ${f.kind}`, made = known.get(key) || made_(f, key);
      refresh(made, f);
      return made;
    }));
  }
  by("sizes").hidden = !fields.some(f => f.group === "sizes");
  if (active && active.id && document.activeElement !== active && by(active.id)) by(active.id).focus();
  showUsed();
}

// The element of a field.
function made_(f, key) {
  const box = node(f.kind === "switch" ? "label" : "div", undefined, f.kind === "switch" ? "switch" : "field");
  box.dataset.field = key;
  const id = `field-${f.name}`;
  let input;
  if (f.kind === "switch") {
    input = node("input");
    input.type = "checkbox";
    box.append(input, node("span", f.label));
  } else {
    const label = node("label", f.label);
    label.htmlFor = id;
    if (f.flag && f.flag.length === 2) label.append(" ", node("code", f.flag));
    input = node(f.kind === "select" ? "select" : "input");
    if (f.kind !== "select") input.type = f.kind === "text" ? "text" : "number";
    if (input.type === "number") { input.min = 1; input.step = 1; }
    box.append(label, input);
  }
  input.id = id;
  if (f.help) box.title = f.help;
  const read = () => f.kind === "switch" ? (input.checked ? "on" : "off") : input.value.trim();
  input.addEventListener(f.kind === "text" ? "change" : "input", () => change(f.name, read()));
  input.addEventListener("change", () => { isDragging = false; });
  if (f.kind === "slider") {
    const range = node("input");
    range.type = "range";
    range.id = `${id}-range`;
    range.min = 0;
    range.setAttribute("aria-label", f.label);
    range.addEventListener("input", () => change(f.name, field(f.name).values[Number(range.value)]));
    range.addEventListener("change", () => { isDragging = false; });
    box.append(range);
  }
  return box;
}

function refresh(box, f) {
  const input = box.querySelector(`#field-${f.name}`), range = box.querySelector("input[type=range]");
  if (f.kind === "switch") { input.checked = f.value === "on"; return; }
  if (f.kind === "select") {
    const texts = [...input.options].map(o => o.value);
    if (texts.join("\n") !== f.values.join("\n"))
      input.replaceChildren(...f.values.map(value => {
        const option = node("option", value || "default");
        option.value = value;
        return option;
      }));
  }
  if (input.value !== f.value && document.activeElement !== input || f.kind === "select") input.value = f.value;
  if (range) {
    range.max = Math.max(0, f.values.length - 1);
    range.disabled = f.values.length < 2;
    // Between two values of the slider, the lower one.
    const place = f.values.findLastIndex(value => Number(value) <= Number(f.value));
    range.value = Math.max(0, place);
    range.setAttribute("aria-valuetext", f.value);
  }
}

const others = ["t", "p", "c", "e", "r"];

function showUsed() {
  const used = others.reduce((all, name) => all * numberOf(name), numberOf("d"));
  by("used").textContent = `${used} of ${field("devices").value} devices`;
  by("used").classList.toggle("bad", used > numberOf("devices"));
}

// Takes a new value of a field over, and asks for the answer.
function change(name, value) {
  field(name).value = value;
  // What belongs to another model, or to another of its sizes, goes.
  if (name === "model") fields = fields.filter(f => !["model", "sizes"].includes(f.group) || f.name === "model");
  if (name === "size") fields = fields.filter(f => f.group !== "sizes");
  if (name === "cluster") fields = fields.filter(f => f.name !== "devices");
  if (name === "d") by("fill").checked = false;
  if (by("fill").checked && (others.includes(name) || name === "devices")) fillDevices_();
  for (const f of fields) {
    const box = document.querySelector(`[data-field="${f.name} ${f.kind}"]`);
    if (box) refresh(box, f);
  }
  if (field("devices")) showUsed();
  go(queryOfForm());
}

// Gives the data degree the devices that the other degrees leave.
function fillDevices_() {
  const rest = numberOf("devices") / others.reduce((all, name) => all * numberOf(name), 1);
  if (Number.isInteger(rest) && rest > 0) field("d").value = String(rest);
}

function go(query) {
  const url = `?${query}`;
  if (isDragging) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  isDragging = true;
  load(query);
}

// Results

function showNumbers(part) {
  const n = part.numbers, tiles = by("tiles");
  const tile = (value, text, className = "") => {
    const made = node("div", undefined, `tile ${className}`.trim());
    made.append(node("b", value), node("span", text));
    return made;
  };
  const memory = tile(n.memory, `peak memory of ${n.available}`, n.fits ? "" : "bad");
  const gauge = node("span", undefined, n.fits ? "gauge" : "gauge full"), filled = node("i");
  filled.style.width = `${Math.min(100, 100 * n.share)}%`;
  gauge.append(filled);
  memory.append(gauge);
  memory.title = `${n.reserved} reserved, fragments of the allocator included`;
  const step = tile(n.step_time, "step time");
  step.dataset.number = "step-time";
  memory.dataset.number = "memory";
  tiles.replaceChildren(step, tile(n.throughput, "samples/s"), memory, tile(n.mfu, "MFU"),
    tile(n.exposed, "exposed communication"), tile(n.bubble, "bubble (waiting)"));
  const notes = n.fits ? part.notes : [`${n.reserved} are needed on a device that has ${n.available}.`, ...part.notes];
  by("notes").replaceChildren(...notes.map(text => node("li", text)));
  by("subtitle").textContent = `simulated on ${n.devices} device${n.devices === 1 ? "" : "s"}, ` +
    `${n.ops.toLocaleString("en")} ops, ${n.profiles.length ? `with the profile ${n.profiles.join(" and ")}` : "as data sheets say"}`;
  document.querySelector("main").classList.remove("stale");
}

function showFront(front) {
  if (!front) return;
  const drawing = new DOMParser().parseFromString(front.svg, "image/svg+xml").documentElement;
  drawing.setAttribute("role", "group");
  drawing.setAttribute("aria-label", `Step time over peak memory of ${front.plans} plans`);
  by("front").replaceChildren(document.importNode(drawing, true));
  const here = location.search.slice(1);
  fill(by("rows"), ["plan", "time", "memory", ""], front.rows.map(([words, query, time, memory, kind]) => {
    const link = node("a", words);
    link.href = `?${query}`;
    return [link, time, memory, kind];
  }));
  for (const link of by("rows").querySelectorAll("a"))
    link.closest("tr").classList.toggle("now", link.search.slice(1) === here);
}

function showReport(data) {
  report = data;
  by("timeline-note").textContent = timelineNote(data);
  timeline.set(data);
  fillDevices(by("devices"), data);
  const select = by("memory-group");
  select.replaceChildren(...data.memory.map((_, i) => {
    const option = node("option", groupText(data.groups[i]));
    option.value = i;
    return option;
  }));
  select.value = fullestGroup(data);
  legend("memory-legend", memoryNames(data));
  showMemory();
}
function showMemory() {
  if (!report) return;
  const index = Number(by("memory-group").value);
  by("memory-note").textContent = drawMemory(by("memory"), report, index);
  fillMemory(by("by-kind"), by("by-scope"), report, index);
}

// The search for other plans

let searching = null;
async function search() {
  if (searching) { searching.abort(); return; }
  const request = searching = new AbortController();
  by("search").textContent = "Stop";
  by("progress").hidden = false;
  by("progress").removeAttribute("value");
  let last = "";
  try {
    await lines("/search", location.search.slice(1), request.signal, part => {
      if (part.error) { last = part.error; return; }
      if (part.total === undefined) return;
      by("progress").max = part.total;
      by("progress").value = part.done;
      by("searched").textContent = last = `${part.done} of ${part.total} plans`;
      showFront(part.front);
    });
  } catch (error) {
    if (error.name !== "AbortError") last = "The server does not answer.";
    else last = last && `stopped after ${last}`;
  }
  searching = null;
  by("search").textContent = "Look at other plans";
  by("progress").hidden = true;
  by("searched").textContent = last;
}

// Events

by("search").onclick = search;
by("which").onchange = showCommand;
by("memory-group").onchange = showMemory;
by("zoom-in").onclick = () => timeline.zoom(0.5);
by("zoom-out").onclick = () => timeline.zoom(2);
by("zoom-all").onclick = () => report && timeline.show(0, report.step_time_s || 1);
by("fill").onchange = () => {
  if (!by("fill").checked) return;
  fillDevices_();
  isDragging = false;
  change("devices", field("devices").value);
  isDragging = false;
};
by("form").onsubmit = event => event.preventDefault();
by("copy").onclick = async () => {
  const button = by("copy");
  try {
    await navigator.clipboard.writeText(by("command").textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(by("command"));
    button.textContent = "Selected: press Ctrl-C";
  }
  setTimeout(() => { button.textContent = "Copy the command"; }, 1500);
};
// Links to plans change the page instead of loading it again.
document.addEventListener("click", event => {
  const link = event.target.closest("#front a, #rows a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const query = (link.getAttribute("href") || "").slice(1);
  isDragging = false;
  by("fill").checked = true;
  go(query);
  isDragging = false;
});
window.addEventListener("popstate", () => { isDragging = false; load(location.search.slice(1)); });
redraw(() => { timeline.draw(); showMemory(); });

legend("timeline-legend", timelineNames);
load(location.search.slice(1));
