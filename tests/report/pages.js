// What tests/report/test_browser.py asks of every page.
function luminance(color) {
  var parts = color.match(/[\d.]+/g).map(Number).slice(0, 3).map(function (part) {
    part /= 255;
    return part <= 0.03928 ? part / 12.92 : Math.pow((part + 0.055) / 1.055, 2.4);
  });
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
}

function contrast(one, other) {
  var pair = [luminance(one), luminance(other)].sort();
  return (Math.max.apply(null, pair) + 0.05) / (Math.min.apply(null, pair) + 0.05);
}

function isClear(color) { return color === "transparent" || /, 0\)$/.test(color); }

// The background of an element; of text in a drawing, the colours that may be below it.
function backgrounds(window, element) {
  var svg = element.closest("svg");
  if (element.closest(".label:not(.phase-bar)")) { return all(window, ".box rect:not(.ring)", "fill"); }
  if (element.closest(".canvas .phase-bars")) { return all(window, ".phase-bars rect", "fill"); }
  if (svg && element.closest(".canvas .arena, .plot")) { return all(window, ".arena > rect, .plot > rect", "fill"); }
  for (var up = element; up; up = up.parentElement) {
    var color = window.getComputedStyle(up).backgroundColor;
    if (!isClear(color)) { return [color]; }
  }
  return ["rgb(255, 255, 255)"];
}

function all(window, selector, property) {
  var found = {};
  window.document.querySelectorAll(selector).forEach(function (one) { found[window.getComputedStyle(one)[property]] = true; });
  return Object.keys(found);
}

function poorTexts(window, document) {
  var poor = {}, seen = 0;
  document.querySelectorAll("main *").forEach(function (element) {
    var own = Array.from(element.childNodes).some(function (node) { return node.nodeType === 3 && node.textContent.trim(); });
    if (!own || /^(title|desc|script|style)$/.test(element.localName)) { return; }
    var style = window.getComputedStyle(element), ink = element.closest("svg") ? style.fill : style.color;
    seen += 1;
    backgrounds(window, element).forEach(function (behind) {
      var ratio = contrast(ink, behind);
      if (ratio < 4.5) { poor[element.localName + "." + (element.getAttribute("class") || "") + " " + ink + " on " + behind] = ratio.toFixed(2); }
    });
  });
  return { poor: poor, seen: seen };
}

function tooWide(document) {
  var wide = document.documentElement.clientWidth;
  return Array.from(document.querySelectorAll("main *")).filter(function (element) {
    return !element.closest(".table, .scroll, svg") && element.getBoundingClientRect().right > wide + 0.5;
  }).map(function (element) { return element.localName + "." + element.className; });
}

function boxTop(document, name) {
  var at = Array.from(document.querySelectorAll(".box")).filter(function (box) { return box.id === name; })[0];
  return at.getBoundingClientRect().top - document.querySelector(".arena").getBoundingClientRect().bottom;
}

// Works the controls of the memory picture in the order of a person's hands.
function handled(window, document) {
  var found = {}, hidden = document.querySelector(".canvas .fold"), unfold = document.getElementById("unfold");
  var find = document.getElementById("find"), canvas = document.querySelector(".canvas");
  var permanent = document.querySelector(".box[data-offset='0']").id;
  function type(text) {
    find.value = text;
    find.dispatchEvent(new window.Event("input"));
    return document.getElementById("found").textContent + " | " + document.getElementById("choice").textContent.split("\n")[0];
  }
  found.foldedAtFirst = !hidden.classList.contains("hide") && boxTop(document, permanent) >= -1;
  found.buttonAtFirst = unfold.textContent;
  unfold.click();
  found.unfolded = hidden.classList.contains("hide") && boxTop(document, permanent) < -1;
  unfold.click();
  found.foldedAgain = boxTop(document, permanent) >= -1;
  found.search = type("RELU");
  found.nothing = type("no such tensor");
  found.permanent = type("fc1_w");
  found.unfoldedBySearch = boxTop(document, document.querySelector(".box.chosen").id) < -1;
  type("");
  var area = document.querySelector(".arena").getBoundingClientRect(), before = canvas.clientWidth;
  function point(kind, x, y) {
    var at = { bubbles: true, button: 0, pointerType: "mouse", clientX: area.left + x * area.width, clientY: area.top + y * area.height };
    document.querySelector(".arena").dispatchEvent(new window.PointerEvent(kind, at));
  }
  point("pointerdown", 0.25, 0.25);
  point("pointermove", 0.75, 0.75);
  found.band = !document.getElementById("band").hidden;
  point("pointerup", 0.75, 0.75);
  found.zoomed = canvas.clientWidth / before;
  found.ticks = Array.from(document.querySelectorAll(".bytes text")).map(function (text) { return text.textContent; });
  document.getElementById("whole").click();
  found.whole = canvas.clientWidth / before;
  return found;
}

function probe(window, document, name) {
  var found = { width: document.documentElement.scrollWidth, tooWide: tooWide(document), text: poorTexts(window, document) };
  found.charts = document.querySelectorAll(".chart .plot").length;
  if (name === "handled") { found.handled = handled(window, document); }
  return found;
}
