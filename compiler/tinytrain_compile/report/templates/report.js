"use strict";
(function () {
  var LABEL = 12, STEP = 13;
  var memory = document.getElementById("memory");
  var canvas = memory.querySelector(".canvas");
  var arena = memory.querySelector(".arena");
  var axis = memory.querySelector(".bytes");
  var tip = document.getElementById("tip");
  var cross = document.getElementById("cross");
  var choice = document.getElementById("choice");
  var boxes = memory.querySelectorAll(".box");
  var labels = memory.querySelectorAll(".label");
  var stepRows = document.querySelectorAll("#steps tbody tr");
  var steps = Number(arena.getAttribute("data-steps"));
  var details = {};
  var zoom = { wide: 1, high: 1 };

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
    var width = canvas.clientWidth, height = arena.clientHeight, character = characterWidth();
    if (!width) { return; } // not laid out (hidden, or in a background frame): the resize event comes later
    labels.forEach(function (label) {
      var name = label.getAttribute("data-name");
      var high = parseFloat(label.getAttribute("height"));
      var room = Math.floor((width * parseFloat(label.getAttribute("width")) / 100 - 12) / character);
      var shown = room >= Math.min(5, name.length) && (high !== high || height * high / 100 >= LABEL);
      if (label.classList.contains("phase-bar")) { shown = room >= name.length; high = 100; }
      label.classList.toggle("hide", !shown);
      if (shown) { label.querySelector("text").textContent = shorten(name, room); }
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

  function resize(key, factor) {
    zoom[key] = Math.min(Math.max(zoom[key] * factor, 1), key === "wide" ? 16 : 4);
    canvas.style.width = 100 * zoom.wide + "%";
    arena.style.height = axis.style.height = 520 * zoom.high + "px";
    fitLabels();
  }

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

  canvas.addEventListener("mousemove", showTip);
  canvas.addEventListener("mouseleave", hideTip);
  arena.addEventListener("click", function (event) { choose(event.target.closest(".box")); });
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") { choose(null); hideTip(); } });
  document.querySelectorAll("a[data-box]").forEach(function (link) {
    link.addEventListener("click", function (event) {
      event.preventDefault();
      var box = document.getElementById(link.getAttribute("data-box"));
      choose(box);
      memory.scrollIntoView({ block: "start" });
      var scroll = memory.querySelector(".scroll"), area = box.getBoundingClientRect();
      scroll.scrollLeft += area.left - scroll.getBoundingClientRect().left - 40;
    });
  });
  memory.querySelectorAll("button").forEach(function (button) {
    button.addEventListener("click", function () { resize(button.getAttribute("data-way"), Number(button.getAttribute("data-factor"))); });
  });
  memory.querySelector(".tools").hidden = false;
  choice.setAttribute("data-hint", choice.textContent);
  window.addEventListener("resize", fitLabels);
  fitLabels();
}());
