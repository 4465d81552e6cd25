"use strict";
// Draws the view that a reader chooses. Without it a static figure is shown; nothing is fetched from anywhere.
for (const explorer of document.querySelectorAll(".explorer")) {
  const data = JSON.parse(explorer.querySelector("script[type='application/json']").textContent);
  const part = name => explorer.querySelector("." + name);
  const [first, second, position] = ["first", "second", "position"].map(part);
  const SVG = "http://www.w3.org/2000/svg", INK = "#1a2027", BLUE = "#0072b2", RED = "#d55e00", GREY = "#515c68";

  const unpack = ([low, high, text]) => {
    const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0)), view = new DataView(bytes.buffer);
    return Array.from({length: bytes.length / 2}, (_, i) => {
      const number = view.getUint16(2 * i, true);
      return number ? low + (number - 1) / 65534 * (high - low) : NaN;
    });
  };
  const show = (value, digits = 3) => {
    if (!Number.isFinite(value)) return "not known";
    const size = Math.abs(value);
    if (size >= 1e5 || (size > 0 && size < 1e-3)) {
      const [head, power] = value.toExponential(digits - 1).split("e");
      return `${Number(head)} × 10^${Number(power)}`.replaceAll("-", "−");
    }
    return String(Number(value.toPrecision(digits))).replaceAll("-", "−");
  };
  const range = lists => {
    const known = lists.flat().filter(Number.isFinite), low = Math.min(...known), high = Math.max(...known);
    return low < high ? [low, high] : [low - 0.5, low + 0.5];
  };
  const ticksOf = ([low, high], count) => {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find(one => one * power >= raw * 0.999);
    const start = Math.ceil(low / step - 1e-9);
    return Array.from({length: Math.floor(high / step + 1e-9) - start + 1}, (_, i) => (start + i) * step);
  };
  const element = (name, attributes, parent, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return parent.appendChild(made);
  };
  const label = (svg, x, y, text, more = {}) =>
    element("text", {x, y, fill: INK, "font-size": 13, "text-anchor": "middle", ...more}, svg, text);
  const pathOf = points => points.map(([x, y]) => Number.isFinite(y) ? `${x.toFixed(1)},${y.toFixed(1)}` : "")
    .join(" ").split(/ {2,}/).map(run => run.trim()).filter(Boolean).map(run => "M" + run.replaceAll(" ", "L")).join("");

  // A chart of a mean with its bands, and of what was observed; `at` is the chosen position.
  function drawLines(svg, {x, mean, bands, truth, marks, names, at}) {
    const width = Math.max(300, Math.min(760, part("charts").clientWidth - 18)), height = 330;
    const [left, right, top, bottom] = [62, width - 12, 40, height - 46];
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    const across = range([x]), up = range([...bands.flatMap(band => [band.low, band.high]), mean, truth ?? []]);
    const px = value => left + (value - across[0]) / (across[1] - across[0]) * (right - left);
    const py = value => bottom - (value - up[0]) / (up[1] - up[0]) * (bottom - top);
    for (const tick of ticksOf(up, 5)) {
      element("line", {x1: left, x2: right, y1: py(tick), y2: py(tick), stroke: "#d5dbe1"}, svg);
      label(svg, left - 7, py(tick) + 4, show(tick), {"text-anchor": "end"});
    }
    for (const tick of ticksOf(across, width < 500 ? 4 : 7)) {
      element("line", {x1: px(tick), x2: px(tick), y1: bottom, y2: bottom + 5, stroke: INK}, svg);
      label(svg, px(tick), bottom + 19, show(tick));
    }
    element("line", {x1: left, x2: right, y1: bottom, y2: bottom, stroke: INK}, svg);
    label(svg, (left + right) / 2, height - 6, names[0]);
    label(svg, 14, (top + bottom) / 2, names[1], {transform: `rotate(-90 14 ${(top + bottom) / 2})`});
    const along = list => x.map((value, i) => [px(value), py(list[i])]);
    const opacity = [0.2, 0.28, 0.4], keys = [];
    bands.forEach((band, i) => {
      const ends = [...along(band.low), ...along(band.high).reverse()].filter(([, y]) => Number.isFinite(y));
      element("path", {d: pathOf(ends) + "Z", fill: BLUE, "fill-opacity": opacity[i]}, svg);
      keys.push([`${band.level} band`, {fill: BLUE, "fill-opacity": opacity.slice(0, i + 1).reduce((a, b) => a + b), height: 11, width: 18}]);
    });
    for (const mark of marks ?? []) element("line", {x1: px(mark), x2: px(mark), y1: bottom - 7, y2: bottom, stroke: GREY}, svg);
    if (truth) {
      element("path", {d: pathOf(along(truth)), fill: "none", stroke: RED, "stroke-width": 2, "stroke-dasharray": "7 4"}, svg);
      keys.push(["held-out field", {fill: RED, height: 3, width: 18}]);
    }
    element("path", {d: pathOf(along(mean)), fill: "none", stroke: INK, "stroke-width": 2}, svg);
    keys.unshift(["mean", {fill: INK, height: 3, width: 18}]);
    if (at !== undefined) {
      element("line", {x1: px(x[at]), x2: px(x[at]), y1: top, y2: bottom, stroke: INK, "stroke-dasharray": "2 3"}, svg);
      element("circle", {cx: px(x[at]), cy: py(mean[at]), r: 4.5, fill: INK}, svg);
    }
    let [kx, ky] = [left, 12];
    for (const [name, shape] of keys) {
      const space = 42 + 7.4 * name.length;
      if (kx + space > width) [kx, ky] = [left, ky + 18];
      element("rect", {x: kx, y: ky - shape.height / 2, ...shape}, svg);
      label(svg, kx + 23, ky + 4, name, {"text-anchor": "start"});
      kx += space;
    }
  }

  // A heat map with its colour bar; `cut` is the row that the cut goes through.
  function drawImage(svg, {title, values, limits, colours, cut}) {
    const [width, height, left, top, size] = [300, 268, 46, 26, 186];
    const rows = unpack(data.rows), columns = unpack(data.columns);
    const paint = (list, w, h) => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [w, h];
      const pen = canvas.getContext("2d");
      list.forEach((value, i) => {
        if (!Number.isFinite(value)) return;
        const share = Math.min(1, Math.max(0, (value - limits[0]) / (limits[1] - limits[0])));
        pen.fillStyle = colours[Math.round(share * (colours.length - 1))];
        pen.fillRect(i % w, h - 1 - Math.floor(i / w), 1, 1);
      });
      return canvas.toDataURL();
    };
    const place = (href, x, w) => element("image", {href, x, y: top, width: w, height: size, preserveAspectRatio: "none",
      style: "image-rendering: pixelated"}, svg);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    label(svg, left + size / 2, 16, title, {"font-weight": 600});
    place(paint(values, columns.length, rows.length), left, size);
    place(paint(Array.from({length: 64}, (_, i) => limits[0] + i / 63 * (limits[1] - limits[0])), 1, 64), left + size + 10, 12);
    for (const share of [0, 0.5, 1]) {
      const value = limits[0] + share * (limits[1] - limits[0]);
      label(svg, left + size + 26, top + size - share * (size - 10) + 1, show(value, 2), {"text-anchor": "start", "font-size": 12});
    }
    const y = top + size - (cut + 0.5) / rows.length * size;
    for (const [stroke, dash] of [["#ffffff", "none"], [INK, "5 4"]])
      element("line", {x1: left, x2: left + size, y1: y, y2: y, stroke, "stroke-width": 2, "stroke-dasharray": dash}, svg);
    for (const share of [0, 0.5, 1]) {
      const anchor = ["start", "middle", "end"][2 * share];
      label(svg, left + share * size, top + size + 16, show(columns[0] + share * (columns.at(-1) - columns[0])), {"text-anchor": anchor});
      label(svg, left - 5, top + size - share * (size - 9), show(rows[0] + share * (rows.at(-1) - rows[0])), {"text-anchor": "end"});
    }
    label(svg, left + size / 2, top + size + 36, data.names[1]);
    label(svg, 12, top + size / 2, data.names[0], {transform: `rotate(-90 12 ${top + size / 2})`});
  }

  const charts = {};
  const chart = (name, kind) => {
    if (!charts[name]) {
      charts[name] = element("svg", {role: "img", class: kind, "data-name": name}, part("charts"));
      charts[name].addEventListener("pointerdown", event => pick(event, name));
    }
    return charts[name];
  };
  function pick(event, name) { // a click chooses the position, as the slider does
    if (name === "cut") return;
    const svg = charts[name], box = svg.getBoundingClientRect(), {width, height} = svg.viewBox.baseVal;
    const share = name === "lines" ? ((event.clientX - box.left) / box.width * width - 62) / (width - 74)
      : 1 - ((event.clientY - box.top) / box.height * height - 26) / 186;
    if (share < 0 || share > 1) return;
    position.value = Math.round(share * position.max);
    draw();
  }

  function drawChosenLines() {
    const view = data.views[first.value][second?.value ?? 0];
    const seen = {...view, x: unpack(view.x), mean: unpack(view.mean), truth: view.truth && unpack(view.truth),
      marks: view.marks && unpack(view.marks),
      bands: view.bands.map(band => ({...band, low: unpack(band.low), high: unpack(band.high)}))};
    position.max = seen.x.length - 1;
    const at = Number(position.value), band = seen.bands[0];
    drawLines(chart("lines", "lines"), {...seen, at});
    const found = seen.truth ? `, held-out value ${show(seen.truth[at])}` : "";
    return [view.text, `At ${view.names[0]} = ${show(seen.x[at], 4)}: mean ${show(seen.mean[at], 4)}${found}, ${band.level} band ` +
      `from ${show(band.low[at], 4)} to ${show(band.high[at], 4)}.`];
  }

  function drawChosenImages() {
    const view = data.views[first.value], columns = unpack(data.columns), rows = unpack(data.rows);
    const [truth, mean, low, high] = ["truth", "mean", "low", "high"].map(name => unpack(view[name]));
    position.max = rows.length - 1;
    const cut = Number(position.value), error = mean.map((value, i) => value - truth[i]);
    const half = high.map((value, i) => (value - low[i]) / 2), both = range([truth, mean]);
    const largest = Math.max(...error.filter(Number.isFinite).map(Math.abs), 1e-300);
    const {field, error: diverging} = data.colours;
    const images = [["held-out field", truth, both, field], ["predicted mean", mean, both, field],
      ["error: mean − held-out", error, [-largest, largest], diverging],
      [`half width of ${data.level} band`, half, [0, Math.max(...half.filter(Number.isFinite))], field]];
    images.forEach(([title, values, limits, colours], i) => {
      drawImage(chart(`image${i}`, "image"), {title, values, limits, colours, cut});
      charts[`image${i}`].setAttribute("aria-label", `${title}: from ${show(Math.min(...values.filter(Number.isFinite)))} to ` +
        `${show(Math.max(...values.filter(Number.isFinite)))}`);
    });
    const through = list => list.slice(cut * columns.length, (cut + 1) * columns.length);
    drawLines(chart("cut", "lines"), {x: columns, mean: through(mean), truth: through(truth), names: data.names.slice(1),
      bands: [{level: data.level, low: through(low), high: through(high)}]});
    const inside = through(truth).filter((value, i) => value >= through(low)[i] && value <= through(high)[i]).length;
    const worst = Math.max(...through(error).filter(Number.isFinite).map(Math.abs));
    return [view.text, `In the cut at ${data.names[0]} = ${show(rows[cut])}: largest error ${show(worst)}, and ${inside} of ` +
      `${columns.length} shown locations are inside the ${data.level} band.`];
  }

  function draw() {
    const texts = data.colours ? drawChosenImages() : drawChosenLines();
    const said = texts.join(" ");
    if (part("status").textContent !== said) part("status").textContent = said;
    for (const name of ["lines", "cut"]) charts[name]?.setAttribute("aria-label", `Mean, band and data. ${said}`);
    position.setAttribute("aria-valuetext", texts[1].split(":")[0]);
  }

  for (const control of [first, second]) control?.addEventListener("change", draw);
  position.addEventListener("input", draw);
  part("static").hidden = true;
  part("live").hidden = false;
  position.max = 1000;
  draw();
  position.value = Math.round(position.max / 2);
  draw();
  addEventListener("resize", draw);
}

// Paper has no folds to open.
const folds = [...document.querySelectorAll("details")];
let closed = [];
addEventListener("beforeprint", () => { closed = folds.filter(fold => !fold.open); closed.forEach(fold => { fold.open = true; }); });
addEventListener("afterprint", () => closed.forEach(fold => { fold.open = false; }));

// A link of the contents opens the part that it leads to.
const openTarget = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = target && target.querySelector(":scope > details");
  if (fold) fold.open = true;
};
addEventListener("hashchange", openTarget);
openTarget();
