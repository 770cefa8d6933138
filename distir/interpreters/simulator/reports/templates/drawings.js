"use strict";
// The drawings and tables of a simulated step. The report of one step and the page of
// `distir explore` both use them; `data` is what `report_data` returns.

const by = id => document.getElementById(id);

// Every string goes through textContent: none of the program's is ever markup.
function node(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function scaled(value, units) {
  for (const [unit, scale] of units)
    if (Math.abs(value) >= scale) return `${Number((value / scale).toPrecision(4))} ${unit}`;
  const [unit, scale] = units[units.length - 1];
  return `${Number((value / scale).toPrecision(4))} ${unit}`;
}
const seconds = v => v === 0 ? "0 s" : scaled(v, [["s", 1], ["ms", 1e-3], ["us", 1e-6], ["ns", 1e-9]]);
const bytes = v => scaled(v, [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]);
const count = v => scaled(v, [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1]]);
const percent = v => `${(100 * v).toFixed(1)} %`;
const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function fill(table, headings, rows, left = 1) {
  table.replaceChildren();
  const head = table.createTHead().insertRow();
  headings.forEach((text, i) => head.append(node("th", text, i < left ? "left" : "")));
  const body = table.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    cells.forEach((cell, i) => {
      const td = node("td", undefined, i < left ? "left" : "");
      td.append(cell);
      row.append(td);
    });
  }
}
function legend(id, entries) {
  by(id).replaceChildren(...entries.map(([text, name]) => {
    const entry = node("span");
    const swatch = node("i");
    swatch.style.background = `var(--${name})`;
    entry.append(swatch, text);
    return entry;
  }));
}
function groupText(group) {
  return `${group.name}: ${group.count === 1 ? "device" : `${group.count} devices,`} ${group.devices}`;
}
function tip(event, text) {
  const box = by("tip");
  box.style.display = text ? "block" : "none";
  box.textContent = text || "";
  box.style.left = `${Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.min(event.clientY + 14, window.innerHeight - box.offsetHeight - 8)}px`;
}

const timeNames = [["compute", "compute"], ["exposed communication", "communication"], ["waiting", "waiting"]];

// A bar of the shares of a step. `parts` are the seconds of each of `timeNames`.
function bar(parts, step) {
  const made = node("div", undefined, "bar");
  parts.forEach((value, i) => {
    const part = node("i");
    part.style.width = `${step ? 100 * value / step : 0}%`;
    part.style.background = `var(--${timeNames[i][1]})`;
    part.title = `${timeNames[i][0]}: ${seconds(value)}`;
    made.append(part);
  });
  return made;
}

// The table of what each group of devices does in a step.
function fillDevices(table, data) {
  fill(table,
    ["devices", "share of the step", "computes", "communicates", "waits", "sends", "FLOPs", "peak memory", "of"],
    data.groups.map(g => {
      const peak = node("span", bytes(g.peak_memory_bytes), g.peak_memory_bytes > g.memory_bytes ? "bad" : "");
      const values = [g.compute_s, g.exposed_communication_s, g.waiting_s];
      return [groupText(g), bar(values, data.step_time_s), ...values.map(seconds),
        bytes(g.communication_bytes), count(g.flops), peak, bytes(g.memory_bytes)];
    }));
}

function sized(element, h) {
  const ratio = window.devicePixelRatio || 1;
  element.style.height = `${h}px`;
  element.width = Math.max(1, Math.round(element.clientWidth * ratio));
  element.height = Math.round(h * ratio);
  const context = element.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, element.clientWidth, h);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  return context;
}
function niceStep(span, parts) {
  const raw = span / parts, power = 10 ** Math.floor(Math.log10(raw));
  return power * ([1, 2, 5].find(f => f * power >= raw) || 10);
}
function firstAfter(blocks, time) {
  let low = 0, high = blocks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (blocks[middle][0] + blocks[middle][1] < time) low = middle + 1; else high = middle;
  }
  return low;
}

// Sentences on what the timeline leaves out.
function timelineNote(data) {
  const shown = data.timelines.length, notes = [];
  if (data.groups.some(g => g.count > 1)) notes.push("One device stands for all of a group that do the same.");
  if (data.groups_in_all > shown) notes.push(`${shown} of ${data.groups_in_all} groups of devices are shown.`);
  if (data.resolution_s > 0)
    notes.push(`Ops closer than ${seconds(data.resolution_s)} are drawn as one block; its height is divided between computing and communicating.`);
  return notes.join(" ");
}
const timelineNames = [...timeNames.slice(0, 2), ["functions that the program calls", "calls"],
  ["communication beside other work", "sends"]];

// A timeline on a canvas, which can be zoomed and moved with the mouse and with arrow keys.
class Timeline {
  labelWidth = 120;
  axisHeight = 22;
  drag = null;

  constructor(canvas) {
    this.canvas = canvas;
    canvas.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX);
    }, {passive: false});
    canvas.addEventListener("pointerdown", event => {
      this.drag = {x: event.clientX, view: [...this.view]};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => { this.drag = null; });
    canvas.addEventListener("keydown", event => {
      const span = this.view[1] - this.view[0];
      const moves = {ArrowLeft: [-0.2, -0.2], ArrowRight: [0.2, 0.2], ArrowUp: [0.2, -0.2], ArrowDown: [-0.5, 0.5]};
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      this.show(this.view[0] + move[0] * span, this.view[1] + move[1] * span);
    });
    canvas.addEventListener("pointermove", event => this.point(event));
    canvas.addEventListener("pointerleave", event => tip(event, ""));
  }

  // Shows the whole step of `data`.
  set(data) {
    this.data = data;
    this.step = data.step_time_s;
    let y = this.axisHeight;
    this.lanes = data.timelines.map((timeline, i) => {
      const rows = [];
      if (timeline.calls.length) rows.push(["calls", timeline.calls, 14]);
      rows.push(["blocks", timeline.blocks, 22]);
      if (timeline.sends.length) rows.push(["beside", timeline.sends, 8]);
      const lane = {name: data.groups[i].name, rows, top: y};
      for (const row of rows) { row.push(y); y += row[2] + 2; }
      lane.bottom = y;
      y += 8;
      return lane;
    });
    this.height = y;
    this.view = [0, this.step || 1];
    this.draw();
  }

  draw() {
    if (!this.data) return;
    const {canvas, height, labelWidth, axisHeight} = this;
    const context = sized(canvas, height), width = canvas.clientWidth;
    const area = Math.max(1, width - labelWidth), [from, to] = this.view, scale = area / (to - from);
    const colors = Object.fromEntries(
      ["text", "dim", "line", "card", "compute", "communication", "waiting", "sends", "calls"].map(n => [n, color(n)]));
    const tick = niceStep(to - from, Math.max(2, area / 110));
    for (let t = Math.ceil(from / tick) * tick; t <= to; t += tick) {
      const x = labelWidth + (t - from) * scale;
      context.fillStyle = colors.line;
      context.fillRect(x, axisHeight - 4, 1, height - axisHeight);
      context.fillStyle = colors.dim;
      context.fillText(seconds(Math.abs(t) < tick / 2 ? 0 : t), x + 3, 9);
    }
    for (const lane of this.lanes) {
      for (const [kind, blocks, size, top] of lane.rows) {
        if (kind === "blocks") {
          context.globalAlpha = 0.35;
          context.fillStyle = colors.waiting;
          context.fillRect(labelWidth, top, area, size);
          context.globalAlpha = 1;
        }
        for (let i = firstAfter(blocks, from); i < blocks.length; i++) {
          const [begin, lasts, communicates, label, called] = blocks[i];
          if (begin > to) break;
          const x = labelWidth + Math.max(0, (begin - from) * scale);
          const w = Math.max(0.6, Math.min(width, labelWidth + (begin + lasts - from) * scale) - x);
          if (kind === "blocks") {
            const part = lasts ? size * communicates / lasts : 0;
            context.fillStyle = colors.compute;
            context.fillRect(x, top, w, size - part);
            context.fillStyle = colors.communication;
            context.fillRect(x, top + size - part, w, part);
          } else {
            context.fillStyle = colors[kind === "calls" ? "calls" : "sends"];
            context.fillRect(x, top, w, size);
          }
          if (w > 3 && kind !== "beside") {
            context.fillStyle = colors.card;
            context.fillRect(x + w - 0.5, top, 0.5, size);
          }
          if (w > 48 && kind !== "beside") {
            context.save();
            context.beginPath();
            context.rect(x, top, w, size);
            context.clip();
            context.fillStyle = colors.card;
            context.fillText(this.data.names[kind === "calls" ? called : label], x + 3, top + size / 2);
            context.restore();
          }
        }
      }
      context.fillStyle = colors.card;
      context.fillRect(0, lane.top, labelWidth, lane.bottom - lane.top);
      context.fillStyle = colors.text;
      context.fillText(lane.name, 2, (lane.top + lane.bottom) / 2, labelWidth - 8);
    }
  }

  show(from, to) {
    const whole = this.step || 1, span = Math.min(whole, Math.max(to - from, whole * 1e-7));
    const start = Math.min(Math.max(0, from), whole - span);
    this.view = [start, start + span];
    this.draw();
  }

  // Shows a span that is `factor` times as long, with the moment at `x` in its place.
  zoom(factor, x = this.labelWidth + (this.canvas.clientWidth - this.labelWidth) / 2) {
    const area = this.canvas.clientWidth - this.labelWidth, [from, to] = this.view;
    const at = from + (to - from) * Math.min(1, Math.max(0, (x - this.labelWidth) / area));
    this.show(at - (at - from) * factor, at + (to - at) * factor);
  }

  point(event) {
    if (!this.data) return;
    const {canvas, labelWidth, view, data} = this;
    const area = Math.max(1, canvas.clientWidth - labelWidth), scale = (view[1] - view[0]) / area;
    if (this.drag) {
      const moved = (this.drag.x - event.clientX) * scale;
      const span = this.drag.view[1] - this.drag.view[0];
      this.show(this.drag.view[0] + moved, this.drag.view[0] + moved + span);
      return;
    }
    const time = view[0] + (event.offsetX - labelWidth) * scale;
    let text = "";
    for (const lane of this.lanes)
      for (const [kind, blocks, size, top] of lane.rows) {
        if (event.offsetY < top || event.offsetY > top + size || event.offsetX < labelWidth) continue;
        const block = blocks[firstAfter(blocks, time - scale)];
        if (block && block[0] <= time + scale) {
          const [begin, lasts, communicates, label, called, ops] = block;
          text = data.names[kind === "calls" ? called : label];
          if (ops > 1) text += kind === "calls" ? ` (${ops} ops)` : ` and ${ops - 1} more ops`;
          if (kind === "blocks" && data.names[called]) text += `\nin a call of @${data.names[called]}`;
          text += `\n${seconds(lasts)}, from ${seconds(begin)} on`;
          if (communicates && communicates < lasts) text += `, of which communication ${seconds(communicates)}`;
        } else if (kind === "blocks") text = "waits";
      }
    tip(event, text);
  }
}

// The index of the group of devices whose memory is fullest.
const fullestGroup = data =>
  data.memory.reduce((best, m, i) => m.peak_bytes > data.memory[best].peak_bytes ? i : best, 0);

// Draws the memory of the group `index` over the step. Returns a sentence on its peak.
function drawMemory(canvas, data, index) {
  const memory = data.memory[index], group = data.groups[index], step = data.step_time_s;
  const height = 240, left = 70;
  const context = sized(canvas, height), width = canvas.clientWidth;
  const bottom = height - 20, area = width - left;
  const top = Math.max(1, memory.peak_bytes * 1.08);
  const h = value => bottom - (bottom - 8) * value / top;
  const moments = memory.curve[0].length, column = area / moments;
  const base = new Array(moments).fill(0);
  memory.curve.forEach((values, kind) => {
    context.fillStyle = color(`kind${kind}`);
    values.forEach((value, i) => {
      if (!value) return;
      context.fillRect(left + i * column, h(base[i] + value), column + 0.5, h(base[i]) - h(base[i] + value));
      base[i] += value;
    });
  });
  context.fillStyle = color("dim");
  const tick = niceStep(top, 5);
  for (let v = 0; v <= top; v += tick) {
    context.fillText(bytes(v), 2, h(v));
    context.globalAlpha = 0.25;
    context.fillRect(left, h(v), area, 1);
    context.globalAlpha = 1;
  }
  const every = niceStep(step || 1, Math.max(2, area / 110));
  for (let t = 0; t <= step; t += every)
    context.fillText(seconds(t), left + area * t / (step || 1), height - 8);
  const limit = group.memory_bytes;
  if (limit < top) {
    context.fillStyle = color("bad");
    context.fillRect(left, h(limit), area, 1.5);
    context.fillText("memory of the device", left + 4, h(limit) - 8);
  }
  context.fillStyle = color("text");
  const x = left + (step ? area * memory.peak_time_s / step : 0);
  context.fillRect(Math.min(x, width - 1), h(memory.peak_bytes), 1, bottom - h(memory.peak_bytes));
  return `Peak ${bytes(memory.peak_bytes)} of ${bytes(limit)}, first reached at ${seconds(memory.peak_time_s)}` +
    (memory.peak_op ? ` by ${memory.peak_op}.` : " when the program begins.");
}
const memoryNames = data => data.kinds.map((kind, i) => [kind, `kind${i}`]);

// Tables of what memory holds at the peak of a group: by kind and by module.
function fillMemory(byKind, byScope, data, index) {
  const memory = data.memory[index];
  const share = v => memory.peak_bytes ? percent(v / memory.peak_bytes) : "";
  fill(byKind, ["kind", "bytes", "share"],
    data.kinds.filter(k => memory.by_kind[k]).map(k => [k, bytes(memory.by_kind[k]), share(memory.by_kind[k])]));
  fill(byScope, ["module", "bytes", "share"],
    memory.by_scope.map(s => [s.scope || "(none)", bytes(s.bytes), share(s.bytes)]));
}

// Calls `draw` again when the window or the colours change.
function redraw(draw) {
  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
