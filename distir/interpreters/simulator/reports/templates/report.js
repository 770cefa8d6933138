const data = JSON.parse(by("data").textContent);
const step = data.step_time_s;

// Summary
document.title = `${data.title}: DistIR simulation`;
by("title").textContent = data.title;
by("subtitle").textContent =
  `simulated on ${data.devices} device${data.devices === 1 ? "" : "s"} of @${data.cluster}, ${data.ops.toLocaleString("en")} ops`;
for (const [text, value] of [
  ["step time", seconds(step)],
  ["samples/s", count(data.throughput_samples_per_s)],
  ["MFU", percent(data.mfu)],
  ["HFU", percent(data.hfu)],
  ["exposed communication", percent(data.exposed_communication)],
  ["bubble (waiting)", percent(data.bubble_fraction)],
  ["highest peak memory", bytes(Math.max(0, ...data.groups.map(g => g.peak_memory_bytes)))],
]) {
  const tile = node("div", undefined, "tile");
  tile.append(node("b", value), node("span", text));
  by("tiles").append(tile);
}
if (data.too_small)
  by("subtitle").append(" ", node("span", `does not fit into the memory of devices ${data.too_small}`, "bad"));
legend("time-legend", timeNames);
fillDevices(by("devices"), data);

// Timeline
by("timeline-note").textContent = timelineNote(data);
legend("timeline-legend", timelineNames);
const timeline = new Timeline(by("timeline"));
by("zoom-in").onclick = () => timeline.zoom(0.5);
by("zoom-out").onclick = () => timeline.zoom(2);
by("zoom-all").onclick = () => timeline.show(0, step || 1);

// Memory
const options = () => data.memory.map((_, i) => {
  const option = node("option", groupText(data.groups[i]));
  option.value = i;
  return option;
});
by("memory-group").append(...options());
by("causes-group").append(...options());
by("memory-group").value = fullestGroup(data);
by("causes-group").value = data.busiest;
legend("memory-legend", memoryNames(data));
function showMemory() {
  const index = Number(by("memory-group").value), memory = data.memory[index];
  by("memory-note").textContent = drawMemory(by("memory"), data, index);
  fillMemory(by("by-kind"), by("by-scope"), data, index);
  fill(by("largest"), ["value", "kind", "bytes"],
    memory.largest.map(v => [v.scope && !v.name.startsWith(v.scope) ? `${v.name} (${v.scope})` : v.name, v.kind, bytes(v.bytes)]), 2);
  by("savings").replaceChildren(...(memory.savings.length ? memory.savings.map(s =>
    node("p", `${s.kind}: ${bytes(s.bytes)} are ${s.why}; ${s.how}, up to ${bytes(s.saved_bytes)} less.`)) :
    [node("p", "Nothing is kept twice that an axis could divide.")]));
}
by("memory-group").onchange = showMemory;

// Time by module
function drawCauses() {
  const wanted = by("causes-filter").value.toLowerCase();
  const rows = data.causes[Number(by("causes-group").value)]
    .filter(([scope, op]) => `${scope} ${op}`.toLowerCase().includes(wanted));
  const total = i => rows.reduce((sum, row) => sum + row[i], 0);
  const line = (first, second, parts) => [first, second, bar(parts, step),
    ...parts.map(seconds), step ? percent(parts.reduce((a, b) => a + b) / step) : ""];
  fill(by("causes"), ["module", "op", "share of the step", "computes", "communicates", "waits", "of the step"],
    [line("all of these", "", [2, 3, 4].map(total)),
      ...rows.map(([scope, op, ...parts]) => line(scope || "(none)", op, parts))], 2);
}
by("causes-group").onchange = drawCauses;
by("causes-filter").oninput = drawCauses;

fill(by("arguments"), ["argument", "role", "how many", "shape", "split", "on a device", "bytes"],
  data.arguments.map(([name, number, role, shape, split, local, size]) =>
    [name, role, count(number), shape, split, local, bytes(size)]), 2);
fill(by("sent"), ["module", "collective", "over", "messages", "bytes"],
  data.sent.map(([scope, op, axes, times, size]) =>
    [scope || "(none)", op, axes, count(times), bytes(size)]), 2);
fill(by("configuration"), ["", ""], data.configuration, 2);

redraw(() => { timeline.draw(); showMemory(); });
timeline.set(data);
showMemory();
drawCauses();
