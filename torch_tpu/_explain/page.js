"use strict";
// Draws the timeline from the page's JSON, and sorts tables by a click on a column's head.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent).timeline;
  const canvas = document.getElementById("timeline");
  if (canvas) draw_timeline(data, canvas);
  document.querySelectorAll("th").forEach((head) => head.addEventListener("click", () => sort_by(head)));

  // Lanes of each thread. Moments (no duration) are marks over the lane of launches.
  function draw_timeline(data, canvas) {
    const lanes = ["compile", "launch", "transfer", "fallback"];
    const lane_of = {
      compile: 0, compile_failed: 0, load_from_disk: 0, launch: 1, op_launch: 1, replay: 1, cut: 1,
      miss: 1, warning: 1, host_read: 2, upload: 2, fallback: 3,
    };
    const marks = new Set(["cut", "miss", "warning"]);
    const height = 18, gap = 14, left = 150, axis = 22;
    const rows = data.rows.map(([kind, thread, text, start, duration, program, nodes, bytes]) => ({
      kind: data.kinds[kind], thread, text: data.texts[text], start, duration,
      program: data.programs[program], nodes, bytes,
    }));
    const threads = [...new Set(rows.map((row) => row.thread))].sort((a, b) => a - b);
    const tops = new Map(), used = [];
    let y = axis;
    for (const thread of threads) {
      const present = new Set(rows.filter((r) => r.thread === thread).map((r) => lane_of[r.kind]));
      for (const lane of [...present].sort()) {
        tops.set(thread * 8 + lane, y);
        used.push({ y, name: `${data.threads[thread]}: ${lanes[lane]}` });
        y += height + 2;
      }
      y += gap;
    }
    const total = y;
    const first = rows.reduce((low, row) => Math.min(low, row.start), Infinity);
    const last = rows.reduce((high, row) => Math.max(high, row.start + row.duration), 0);
    let from = first, to = Math.max(last, first + 1);
    const width = () => canvas.clientWidth - left;
    const x_of = (time) => left + ((time - from) / (to - from)) * width();
    const time_of = (x) => from + ((x - left) / width()) * (to - from);
    const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);

    function draw() {
      const ratio = window.devicePixelRatio || 1;
      canvas.style.height = `${total}px`;
      canvas.width = canvas.clientWidth * ratio;
      canvas.height = total * ratio;
      const c = canvas.getContext("2d");
      c.scale(ratio, ratio);
      c.font = "12px system-ui, sans-serif";
      c.textBaseline = "middle";
      const colors = lanes.map(color), mark = color("mark"), dim = color("dim"), line = color("line");
      const step = nice_step((to - from) / Math.max(2, width() / 110));
      for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
        c.fillStyle = line;
        c.fillRect(x_of(time), axis - 4, 1, total);
        c.fillStyle = dim;
        c.fillText(show_time(time, step), x_of(time) + 3, axis / 2);
      }
      c.save();
      c.beginPath();
      c.rect(left, 0, width(), total);
      c.clip();
      const drawn = new Map();  // a pixel column of a lane is painted once
      for (const row of rows) {
        if (row.start > to || row.start + row.duration < from) continue;
        const lane = row.thread * 8 + lane_of[row.kind], is_mark = marks.has(row.kind);
        const x = x_of(row.start), w = Math.max(1, x_of(row.start + row.duration) - x);
        if (w <= 1 && drawn.get(lane + (is_mark ? 4 : 0)) === Math.floor(x)) continue;
        drawn.set(lane + (is_mark ? 4 : 0), Math.floor(x));
        const top = tops.get(lane);
        c.fillStyle = is_mark ? mark : colors[lane_of[row.kind]];
        c.fillRect(x, top, w, is_mark ? 5 : height);
        if (w > 60 && !is_mark) {
          c.fillStyle = color("back");
          c.fillText(row.text, x + 4, top + height / 2, w - 8);
        }
      }
      c.restore();
      c.fillStyle = dim;
      for (const lane of used) c.fillText(lane.name, 6, lane.y + height / 2, left - 10);
    }

    function nice_step(rough) {
      const power = 10 ** Math.floor(Math.log10(rough));
      return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    }
    function show_time(us, step) {
      if (step >= 1e5) return `${(us / 1e6).toFixed(1)} s`;
      if (step >= 1e3) return `${(us / 1e3).toFixed(0)} ms`;
      return `${(us / 1e3).toFixed(3)} ms`;
    }
    function at(event) {
      const box = canvas.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top;
      const near = 3 * (to - from) / width(), time = time_of(x);
      let best = null;
      for (const row of rows) {
        const top = tops.get(row.thread * 8 + lane_of[row.kind]);
        if (y < top || y > top + height) continue;
        if (time < row.start - near || time > row.start + row.duration + near) continue;
        if (!best || row.duration < best.duration) best = row;
      }
      return best;
    }
    function clamp() {
      const span = Math.min(Math.max(to - from, 0.5), last - first + 1);
      from = Math.min(Math.max(from, first), last + 1 - span);
      to = from + span;
    }

    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const center = time_of(event.clientX - canvas.getBoundingClientRect().left);
      const factor = Math.exp(event.deltaY * 0.002);
      from = center - (center - from) * factor;
      to = center + (to - center) * factor;
      clamp();
      draw();
    }, { passive: false });
    let grabbed = null;
    canvas.addEventListener("pointerdown", (event) => {
      grabbed = { x: event.clientX, from, to };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => { grabbed = null; });
    canvas.addEventListener("pointermove", (event) => {
      const tip = document.getElementById("tip");
      if (grabbed) {
        const moved = ((grabbed.x - event.clientX) / width()) * (grabbed.to - grabbed.from);
        from = grabbed.from + moved;
        to = grabbed.to + moved;
        clamp();
        draw();
      }
      const row = at(event);
      tip.style.display = row ? "block" : "none";
      if (!row) return;
      tip.textContent = [
        `${row.kind.replaceAll("_", " ")}: ${row.text}`,
        row.duration ? `${(row.duration / 1e3).toFixed(3)} ms` : "",
        row.nodes ? `${row.nodes} ops` : "",
        row.bytes ? `${row.bytes} bytes` : "",
        row.program ? `program ${row.program}` : "",
      ].filter(Boolean).join("\n");
      tip.style.left = `${event.clientX + 14}px`;
      tip.style.top = `${event.clientY + 14}px`;
    });
    canvas.addEventListener("pointerleave", () => {
      document.getElementById("tip").style.display = "none";
    });
    canvas.addEventListener("dblclick", () => { from = first; to = last + 1; draw(); });
    window.addEventListener("resize", draw);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { legend(); draw(); });

    function legend() {
      const names = [...lanes.map((lane) => [lane, lane]), ["mark", "cut, miss, warning"]];
      document.getElementById("legend").replaceChildren(...names.map(([name, text]) => {
        const item = document.createElement("span"), box = document.createElement("i");
        box.style.background = `var(--${name})`;
        item.append(box, text);
        return item;
      }));
    }
    legend();
    draw();
  }

  // "1.2 ms" and "3 KiB" by what they mean.
  function value_of(text) {
    const units = { ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, B: 1, KiB: 1024, MiB: 1048576, GiB: 1073741824 };
    const match = /^([\d.e+-]+)(?: (\w+))?$/.exec(text);
    return match && (!match[2] || match[2] in units) ? Number(match[1]) * (units[match[2]] || 1) : null;
  }
  function sort_by(head) {
    const index = [...head.parentNode.children].indexOf(head);
    const body = head.closest("table").tBodies[0];
    const down = head.dataset.down !== "1";
    head.dataset.down = down ? "1" : "";
    // Rows without a first cell go with the row above them.
    const groups = [];
    for (const row of body.rows) {
      if (row.cells[0].textContent === "" && groups.length) groups[groups.length - 1].push(row);
      else groups.push([row]);
    }
    const key = (group) => group[0].cells[index].textContent;
    groups.sort((a, b) => {
      const x = value_of(key(a)), y = value_of(key(b));
      const order = x !== null && y !== null ? x - y : key(a).localeCompare(key(b));
      return down ? -order : order;
    });
    body.append(...groups.flat());
  }
})();
