"use strict";
(function () {
  var LABEL = 12, STEP = 13, DRAG = 6, HEIGHT = 520;
  var memory = document.getElementById("memory");
  var canvas = memory.querySelector(".canvas");
  var scroll = memory.querySelector(".scroll");
  var arena = memory.querySelector(".arena");
  var axis = memory.querySelector(".bytes");
  var load = memory.querySelector(".load .space");
  var ground = document.getElementById("ground");
  var tip = document.getElementById("tip");
  var cross = document.getElementById("cross");
  var band = document.getElementById("band");
  var choice = document.getElementById("choice");
  var unfold = document.getElementById("unfold");
  var find = document.getElementById("find");
  var found = document.getElementById("found");
  var boxes = Array.from(memory.querySelectorAll(".box"));
  var labels = memory.querySelectorAll(".label");
  var stepRows = document.querySelectorAll("#steps tbody tr");
  var steps = Number(arena.getAttribute("data-steps"));
  var height = Number(arena.getAttribute("data-height"));
  var highest = Number(arena.getAttribute("data-highest")); // of all lines: above it is room for its caption
  var folded = Number(arena.getAttribute("data-folded"));
  var peakLoad = Number(arena.getAttribute("data-load"));
  var details = {};
  var zoom = { wide: 1, high: 1 };
  var isFolded = folded > 0;
  var shown = { low: 0, high: height }; // addresses at the lower and the upper edge
  var matches = [], match = 0;

  // The native tooltip of <title> would cover ours; without this script it is the hover text.
  boxes.forEach(function (box) {
    var title = box.querySelector("title");
    details[box.id] = title.textContent;
    title.remove();
  });

  // Fonts differ from machine to machine: how wide is a character here?
  function characterWidth() {
    var sample = document.createElementNS(arena.namespaceURI, "text");
    sample.textContent = "b14_pointwise1_conv/Conv.ConvGradWeight";
    arena.appendChild(sample);
    var width = sample.getComputedTextLength() / sample.textContent.length;
    sample.remove();
    return 1.06 * width || 7;
  }

  function shorten(name, room) {
    if (name.length <= room) { return name; }
    var tail = room < 18 ? 0 : Math.floor((room - 1) / 2);
    return name.slice(0, room - 1 - tail) + "\u2026" + name.slice(name.length - tail);
  }

  function fitLabels() {
    var width = canvas.clientWidth, tall = arena.clientHeight * height / (shown.high - shown.low);
    var character = characterWidth();
    if (!width) { return; } // not laid out (hidden, or in a background frame): the resize event comes later
    labels.forEach(function (label) {
      var name = label.getAttribute("data-name");
      var high = parseFloat(label.getAttribute("height"));
      var room = Math.floor((width * parseFloat(label.getAttribute("width")) / 100 - 12) / character);
      var visible = room >= Math.min(5, name.length) && (high !== high || tall * high / 100 >= LABEL);
      if (label.classList.contains("phase-bar")) { visible = room >= name.length; high = 100; }
      label.classList.toggle("hide", !visible);
      if (visible) { label.querySelector("text").textContent = shorten(name, room); }
    });
    var stride = Math.max(Math.ceil(STEP * steps / width), 1);
    memory.querySelectorAll(".names .tick").forEach(function (tick, index) {
      tick.classList.toggle("hide", index % stride !== 0 && !tick.classList.contains("always"));
    });
    thinAroundPeak(stride);
  }

  // The name of the peak step is always there; its neighbours make room.
  function thinAroundPeak(stride) {
    var ticks = memory.querySelectorAll(".names .tick");
    ticks.forEach(function (tick, index) {
      if (!tick.classList.contains("always")) { return; }
      for (var near = index - stride + 1; near < index + stride; near += 1) {
        if (near !== index && ticks[near]) { ticks[near].classList.add("hide"); }
      }
    });
  }

  // ---- which addresses and steps are shown --------------------------------------------------------------------------

  function bytesText(size) {
    if (size >= 1048576) { return Number((size / 1048576).toFixed(2)) + " MB"; }
    return size >= 1024 ? Number((size / 1024).toFixed(2)) + " KB" : size + " B";
  }

  function drawTicks() {
    if (!arena.hasAttribute("data-flat")) { return; } // several memories: each begins at 0, as the page has it
    var space = arena.querySelector(".space"), side = axis.querySelector(".window"), step = 1;
    while ((shown.high - shown.low) / step > 8) { step *= 2; }
    space.querySelectorAll(".grid").forEach(function (line) { line.remove(); });
    side.textContent = "";
    for (var value = Math.ceil(shown.low / step) * step; value <= shown.high; value += step) {
      var line = document.createElementNS(arena.namespaceURI, "line");
      var text = document.createElementNS(arena.namespaceURI, "text");
      [["x1", 0], ["x2", steps], ["y1", height - value], ["y2", height - value]].forEach(function (pair) { line.setAttribute(pair[0], pair[1]); });
      line.setAttribute("class", "grid");
      space.insertBefore(line, space.firstChild);
      var share = (shown.high - value) / (shown.high - shown.low);
      text.setAttribute("x", "58");
      text.setAttribute("y", 100 * (height - value) / height + "%");
      text.setAttribute("dy", share > 0.98 ? "-2" : share < 0.02 ? "11" : "4");
      text.textContent = bytesText(value);
      side.appendChild(text);
    }
  }

  function showAddresses(low, high) {
    shown = { low: low, high: high };
    memory.querySelectorAll(".window").forEach(function (svg) {
      svg.setAttribute("height", 100 * height / (high - low) + "%");
      svg.setAttribute("y", -100 * (height - high) / (high - low) + "%");
    });
    drawTicks();
    fitLabels();
  }

  function fold(now) {
    isFolded = now && folded > 0;
    memory.querySelectorAll(".fold").forEach(function (svg) { svg.classList.toggle("hide", !isFolded); });
    if (folded) {
      load.setAttribute("height", isFolded ? 100 * peakLoad / (peakLoad - folded) + "%" : "100%");
      ground.textContent = isFolded ? ground.getAttribute("data-folded") : "0";
      unfold.textContent = unfold.textContent.replace(/^\S+/, isFolded ? "show" : "fold");
      unfold.setAttribute("aria-pressed", String(!isFolded));
    }
    showAddresses(isFolded ? folded : 0, isFolded ? highest + (highest - folded) * (height / highest - 1) : height);
  }

  function resize(key, factor) {
    zoom[key] = Math.min(Math.max(zoom[key] * factor, 1), key === "wide" ? Math.max(16, steps / 4) : 4);
    canvas.style.width = 100 * zoom.wide + "%";
    arena.style.height = axis.style.height = HEIGHT * zoom.high + "px";
    fitLabels();
  }

  function showWhole() {
    resize("wide", 0);
    resize("high", 0);
    fold(isFolded);
  }

  // ---- dragging -----------------------------------------------------------------------------------------------------

  var drag = null, dragged = false;

  function pointIn(event) {
    var area = arena.getBoundingClientRect();
    function share(value, from, size) { return Math.min(Math.max((value - from) / size, 0), 1); }
    return { x: share(event.clientX, area.left, area.width), y: share(event.clientY, area.top, area.height) };
  }

  function bandOf(event) {
    var to = pointIn(event);
    return {
      left: Math.min(drag.x, to.x), right: Math.max(drag.x, to.x),
      top: Math.min(drag.y, to.y), bottom: Math.max(drag.y, to.y)
    };
  }

  function startDrag(event) {
    dragged = false;
    if (event.button !== 0 || event.pointerType === "touch") { return; } // a finger scrolls
    drag = pointIn(event);
    drag.clientX = event.clientX;
    drag.clientY = event.clientY;
  }

  function moveDrag(event) {
    if (!drag) { return; }
    if (Math.abs(event.clientX - drag.clientX) + Math.abs(event.clientY - drag.clientY) < DRAG) { return; }
    var area = bandOf(event);
    dragged = true;
    hideTip();
    band.hidden = false;
    band.style.left = 100 * area.left + "%";
    band.style.width = 100 * (area.right - area.left) + "%";
    band.style.top = area.top * arena.clientHeight + "px";
    band.style.height = (area.bottom - area.top) * arena.clientHeight + "px";
  }

  function endDrag(event) {
    if (drag && dragged) {
      var area = bandOf(event), span = shown.high - shown.low, top = shown.high;
      if ((area.right - area.left) * arena.clientWidth >= DRAG) {
        resize("wide", scroll.clientWidth / (canvas.clientWidth * (area.right - area.left)));
        scroll.scrollLeft = area.left * canvas.clientWidth;
      }
      if ((area.bottom - area.top) * arena.clientHeight >= 2 * DRAG) {
        showAddresses(top - span * area.bottom, top - span * area.top);
      }
    }
    drag = null;
    band.hidden = true;
  }

  // ---- details ------------------------------------------------------------------------------------------------------

  function stepAt(event) {
    var area = canvas.getBoundingClientRect();
    return Math.min(Math.max(Math.floor((event.clientX - area.left) / area.width * steps), 0), steps - 1);
  }

  function addLine(text, kind) {
    var line = document.createElement(kind === "step" ? "div" : "b");
    line.className = kind;
    line.textContent = text;
    tip.appendChild(line);
  }

  function showTip(event) {
    if (drag && dragged) { return; }
    var step = stepAt(event), box = event.target.closest(".box"), row = stepRows[step];
    tip.textContent = "";
    if (box) {
      var lines = details[box.id].split("\n");
      addLine(lines[0], "title");
      tip.appendChild(document.createTextNode(lines.slice(1).join("\n")));
    }
    if (row) { addLine("step " + step + ": " + row.cells[1].textContent + "\n" + row.getAttribute("data-live") + " live", "step"); }
    tip.hidden = false;
    cross.hidden = false;
    cross.style.left = (step + 0.5) / steps * 100 + "%";
    var left = event.clientX + 16, top = event.clientY + 16;
    if (left + tip.offsetWidth > window.innerWidth - 8) { left = event.clientX - tip.offsetWidth - 12; }
    if (top + tip.offsetHeight > window.innerHeight - 8) { top = event.clientY - tip.offsetHeight - 12; }
    tip.style.left = Math.max(left, 4) + "px";
    tip.style.top = Math.max(top, 4) + "px";
  }

  function hideTip() { tip.hidden = true; cross.hidden = true; }

  function choose(box) {
    boxes.forEach(function (other) { other.classList.toggle("chosen", other === box); });
    arena.classList.toggle("picked", Boolean(box));
    choice.textContent = box ? details[box.id] : choice.getAttribute("data-hint");
  }

  // Makes a buffer visible: unfolds the permanent ones, leaves a zoom that it is not in, scrolls sideways.
  function reveal(box) {
    var offset = Number(box.getAttribute("data-offset"));
    if (isFolded && offset < folded) { fold(false); }
    if (offset < shown.low || offset >= shown.high) { fold(isFolded); }
    choose(box);
    var area = box.getBoundingClientRect(), view = scroll.getBoundingClientRect();
    if (area.right < view.left + 20 || area.left > view.right - 20) { scroll.scrollLeft += area.left - view.left - 40; }
  }

  // The buffer of exactly this name comes first, then those that need no unfolding.
  function rank(box, words) {
    if (details[box.id].split("\n")[0].toLowerCase() === words) { return 0; }
    return Number(box.getAttribute("data-offset")) < folded ? 2 : 1;
  }

  function search() {
    var words = find.value.trim().toLowerCase();
    matches = !words ? [] : boxes.filter(function (box) {
      return (details[box.id].split("\n")[0] + " " + (box.getAttribute("data-values") || "")).toLowerCase().indexOf(words) >= 0;
    });
    match = 0;
    matches.sort(function (one, other) { return rank(one, words) - rank(other, words); });
    boxes.forEach(function (box) { box.classList.toggle("found", matches.indexOf(box) >= 0); });
    arena.classList.toggle("searched", matches.length > 0);
    showMatch();
  }

  function showMatch() {
    if (!find.value.trim()) { found.textContent = ""; choose(null); return; }
    found.textContent = matches.length ? match + 1 + " of " + matches.length + (matches.length > 1 ? ", Enter: next" : "") : "not found";
    if (matches.length) { reveal(matches[match]); } else { choose(null); }
  }

  canvas.addEventListener("mousemove", showTip);
  canvas.addEventListener("mouseleave", hideTip);
  arena.addEventListener("pointerdown", startDrag);
  window.addEventListener("pointermove", moveDrag);
  window.addEventListener("pointerup", endDrag);
  arena.addEventListener("dblclick", showWhole);
  arena.addEventListener("click", function (event) { if (!dragged) { choose(event.target.closest(".box")); } });
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") { choose(null); hideTip(); } });
  document.querySelectorAll("a[data-box]").forEach(function (link) {
    link.addEventListener("click", function (event) {
      event.preventDefault();
      reveal(document.getElementById(link.getAttribute("data-box")));
      memory.scrollIntoView({ block: "start" });
    });
  });
  memory.querySelectorAll("button[data-way]").forEach(function (button) {
    button.addEventListener("click", function () { resize(button.getAttribute("data-way"), Number(button.getAttribute("data-factor"))); });
  });
  document.getElementById("whole").addEventListener("click", showWhole);
  if (unfold) { unfold.addEventListener("click", function () { fold(!isFolded); }); }
  memory.querySelectorAll(".canvas .fold").forEach(function (svg) { svg.addEventListener("click", function () { fold(false); }); });
  find.addEventListener("input", search);
  find.addEventListener("keydown", function (event) {
    if (event.key !== "Enter" || !matches.length) { return; }
    match = (match + 1) % matches.length;
    showMatch();
  });
  memory.querySelector(".tools").hidden = false;
  choice.setAttribute("data-hint", choice.textContent);
  window.addEventListener("resize", fitLabels);
  fold(isFolded);
}());
