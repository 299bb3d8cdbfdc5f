// What a program can say about how a page looks and works, told as sentences. Evaluated in the
// page by audit.py; `audit` has the checks, each of which returns a list of faults.

(() => {
  const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex]";
  const SMALL = 4.5;
  const LARGE = 3; // also of the parts of controls

  const about = (element) => {
    const name = element.localName + (element.id ? `#${element.id}` : "")
      + [...element.classList].map((word) => `.${word}`).join("");
    const text = (element.getAttribute("aria-label") ?? element.textContent).trim();
    return `${name} ${JSON.stringify(text.replace(/\s+/g, " ").slice(0, 40))}`;
  };

  const is_seen = (element) => element.checkVisibility(
    { opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true });

  // Texts for screen readers only: a box of a pixel.
  const is_away = (element) => element.closest(".away, .skip") !== null;

  // ---- colours ----
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();

  /** Any colour of CSS as [red, green, blue, alpha], the last from 0 to 1. */
  function rgba(text) {
    if (!known.has(text)) {
      const plain = text.match(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/);
      if (plain) {
        known.set(text, [...plain.slice(1, 4).map(Number), plain[4] === undefined ? 1 : Number(plain[4])]);
      } else {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        known.set(text, [r, g, b, a / 255]);
      }
    }
    return known.get(text);
  }

  const over = ([r, g, b, a], below) => [r, g, b].map((part, i) => a * part + (1 - a) * below[i]);
  const faded = ([r, g, b, a], opacity) => [r, g, b, a * opacity];

  function luminance(colour) {
    const [r, g, b] = colour.map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  function contrast(one, two) {
    const [high, low] = [luminance(one), luminance(two)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  }

  const grounds = new Map(); // of one check: colours change between them

  /** What is painted behind the content of an element, and how opaque that content is. */
  function ground(element) {
    if (!(element instanceof Element)) {
      const is_dark = getComputedStyle(document.documentElement).colorScheme === "dark";
      return { painted: is_dark ? [18, 18, 18] : [255, 255, 255], opacity: 1 };
    }
    if (!grounds.has(element)) {
      const above = ground(element.parentElement);
      const style = getComputedStyle(element);
      const opacity = above.opacity * Number(style.opacity);
      const is_shape = element instanceof SVGElement && !(element instanceof SVGSVGElement);
      const own = faded(rgba(style.backgroundColor), opacity);
      grounds.set(element, { painted: is_shape ? above.painted : over(own, above.painted), opacity });
    }
    return grounds.get(element);
  }

  /** Shapes of the same drawing that lie below the middle of a text. */
  function below(text, painted) {
    const svg = text.ownerSVGElement;
    const box = text.getBoundingClientRect();
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    let found = painted;
    for (const shape of svg.querySelectorAll("path, rect, circle, ellipse, polygon")) {
      if (text.compareDocumentPosition(shape) & Node.DOCUMENT_POSITION_FOLLOWING) continue;
      const edge = shape.getBoundingClientRect();
      if (x < edge.left || x > edge.right || y < edge.top || y > edge.bottom) continue;
      const style = getComputedStyle(shape);
      if (style.fill === "none" || style.fill.startsWith("url") || !is_seen(shape)) continue;
      const matrix = shape.getScreenCTM();
      if (!matrix || !shape.isPointInFill(new DOMPoint(x, y).matrixTransform(matrix.inverse()))) continue;
      let opacity = Number(style.fillOpacity);
      for (let at = shape; at !== svg; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
      found = over(faded(rgba(style.fill), opacity), found);
    }
    return found;
  }

  const needed = (style) => {
    const size = parseFloat(style.fontSize);
    const is_bold = Number(style.fontWeight) >= 700;
    return size >= 24 || (is_bold && size >= 18.66) ? LARGE : SMALL;
  };

  const is_disabled = (element) => element.closest(":disabled, [aria-disabled=true], .off") !== null;

  function text_fault(element, style, colour, what) {
    let { painted, opacity } = ground(element);
    if (element instanceof SVGElement) {
      painted = below(element, painted);
      opacity *= Number(style.fillOpacity);
    }
    const ratio = contrast(over(faded(rgba(colour), opacity * what.opacity), painted), painted);
    const least = needed(style);
    if (ratio >= least - 0.005) return null;
    return `contrast ${ratio.toFixed(2)} of ${what.name}, not ${least}: ${about(element)}`;
  }

  function contrast_of_texts() {
    grounds.clear();
    const faults = new Set();
    const seen = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement;
      if (!node.data.trim() || seen.has(element)) continue;
      seen.add(element);
      if (!is_seen(element) || is_away(element) || is_disabled(element)) continue;
      if (element.closest("script, style, template, noscript, option, title")) continue;
      const style = getComputedStyle(element);
      const colour = element instanceof SVGElement ? style.fill : style.color;
      faults.add(text_fault(element, style, colour, { name: "text", opacity: 1 }));
    }
    for (const element of document.body.querySelectorAll("*")) {
      for (const part of ["::before", "::after"]) {
        const style = getComputedStyle(element, part);
        if (!/^".*\p{L}|^"[!?\d]/u.test(style.content) || !is_seen(element)) continue;
        const painted = over(faded(rgba(style.backgroundColor), 1), ground(element).painted);
        const ratio = contrast(over(rgba(style.color), painted), painted);
        if (ratio < SMALL) faults.add(`contrast ${ratio.toFixed(2)} of ${part}: ${about(element)}`);
      }
    }
    faults.delete(null);
    return [...faults];
  }

  function contrast_of_controls() {
    grounds.clear();
    const faults = [];
    for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
      if (!is_seen(field) || is_disabled(field)) continue;
      const style = getComputedStyle(field);
      if (field.placeholder && !field.value) {
        const hint = getComputedStyle(field, "::placeholder");
        faults.push(text_fault(field, hint, hint.color, { name: "placeholder", opacity: Number(hint.opacity) }));
      }
      if (field.type === "checkbox" || field.type === "radio") continue; // drawn by the browser
      const { painted } = ground(field.parentElement);
      const edges = [style.backgroundColor, ...(parseFloat(style.borderTopWidth) ? [style.borderTopColor] : [])];
      const best = Math.max(...edges.map((edge) => contrast(over(rgba(edge), painted), painted)));
      if (best < LARGE - 0.005) faults.push(`contrast ${best.toFixed(2)} of an edge, not ${LARGE}: ${about(field)}`);
    }
    return faults.filter(Boolean);
  }

  // ---- structure ----
  function structure() {
    const faults = [];
    if (!document.documentElement.lang) faults.push("the page has no language");
    if (!document.title.trim()) faults.push("the page has no title");
    const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(is_seen);
    const levels = headings.map((heading) => Number(heading.localName[1]));
    if (levels.filter((level) => level === 1).length !== 1) faults.push("the page has not one h1");
    levels.forEach((level, place) => {
      if (level > (levels[place - 1] ?? 0) + 1) faults.push(`a level of headings is left out: ${about(headings[place])}`);
    });
    for (const image of document.querySelectorAll("img:not([alt])")) faults.push(`no alt: ${about(image)}`);
    const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
    const twice = ids.filter((id, place) => ids.indexOf(id) !== place);
    if (twice.length) faults.push(`ids that are there twice: ${[...new Set(twice)].slice(0, 5).join(", ")}`);
    if (document.querySelectorAll("main").length !== 1) faults.push("the page has not one main");
    return faults;
  }

  // ---- width ----
  function width() {
    const faults = [];
    const root = document.documentElement;
    if (root.scrollWidth > innerWidth) {
      const widest = [...document.body.querySelectorAll("*")]
        .filter((element) => is_seen(element) && element.getBoundingClientRect().right > innerWidth + 1)
        .map(about).slice(-1);
      faults.push(`the page is ${root.scrollWidth} wide, at ${innerWidth}: ${widest}`);
    }
    const clips = (element) => getComputedStyle(element).overflowX !== "visible";
    for (const item of document.querySelectorAll("nav a, nav button, header a, header button, header select")) {
      if (!is_seen(item)) continue;
      const box = item.getBoundingClientRect();
      for (let at = item.parentElement; at; at = at.parentElement) {
        const edge = at === document.body ? { left: 0, right: innerWidth } : at.getBoundingClientRect();
        const is_cut = box.right > edge.right + 1 || box.left < edge.left - 1;
        if ((at === document.body || clips(at)) && is_cut) faults.push(`cut off: ${about(item)}`);
      }
    }
    for (const svg of document.querySelectorAll("svg[role]")) {
      if (!is_seen(svg)) continue;
      const box = svg.getBoundingClientRect();
      for (let at = svg.parentElement; at !== document.body; at = at.parentElement) {
        if (clips(at) && box.right > at.getBoundingClientRect().right + 1) faults.push(`a drawing is wider than its box: ${about(svg)}`);
      }
    }
    return [...new Set(faults)];
  }

  /** Texts of a drawing that lie over each other, or stand out of it. */
  function drawings() {
    const faults = [];
    for (const svg of document.querySelectorAll("svg[role]")) {
      if (!is_seen(svg)) continue;
      const home = svg.getBoundingClientRect();
      const texts = [...svg.querySelectorAll("text")].filter(is_seen);
      const boxes = texts.map((text) => text.getBoundingClientRect());
      boxes.forEach((box, place) => {
        if (box.left < home.left - 2 || box.right > home.right + 2) faults.push(`out of its drawing: ${about(texts[place])}`);
        for (let other = place + 1; other < boxes.length; other += 1) {
          const two = boxes[other];
          const across = Math.min(box.right, two.right) - Math.max(box.left, two.left);
          const up = Math.min(box.bottom, two.bottom) - Math.max(box.top, two.top);
          if (across > 3 && up > 0.5 * Math.min(box.height, two.height)) {
            faults.push(`over each other: ${about(texts[place])} and ${about(texts[other])}`);
          }
        }
        if (box.height < 9 && texts[place].textContent.trim() && box.width > box.height) {
          faults.push(`letters of ${box.height.toFixed(0)} px: ${about(texts[place])}`);
        }
      });
    }
    return faults;
  }

  /** Texts of different elements that lie over each other, such as a label over a curve. */
  function overlaps() {
    const faults = [];
    for (const figure of document.querySelectorAll("figure")) {
      if (!is_seen(figure)) continue;
      const svg = figure.querySelector("svg")?.getBoundingClientRect();
      for (const text of figure.querySelectorAll("p, figcaption, span")) {
        const box = text.getBoundingClientRect();
        if (svg && box.bottom > svg.top + 1 && box.top < svg.bottom - 1 && box.right > svg.left + 1 && box.left < svg.right - 1) {
          faults.push(`over its drawing: ${about(text)}`);
        }
      }
    }
    return faults;
  }

  // ---- keyboard ----
  let order = [];

  const looks = (element) => {
    const parts = [element, ...(element instanceof SVGElement ? element.querySelectorAll("path, circle, rect") : [])];
    return parts.map((part) => {
      const style = getComputedStyle(part);
      const outline = style.outlineStyle === "none" ? "" : `${style.outlineStyle} ${style.outlineWidth} ${style.outlineColor}`;
      return [outline, style.boxShadow, style.borderTopColor, style.backgroundColor, style.stroke, style.strokeWidth].join("|");
    }).join(";");
  };

  function reachable() {
    const radios = new Set();
    return [...document.querySelectorAll(CONTROLS)].filter((element) => {
      if (element.type === "hidden" || is_disabled(element) || element.tabIndex < 0 || !is_seen(element)) return false;
      if (element.closest("details:not([open])") && element.localName !== "summary") return false;
      if (element.closest("dialog:not([open]), [inert]")) return false;
      if (element.type !== "radio") return true;
      const is_first = !radios.has(element.name);
      radios.add(element.name);
      return is_first;
    });
  }

  /** Listens to what the Tab key reaches; returns how many elements it should. */
  function begin_keys() {
    grounds.clear();
    // From the top, also where the page has put the focus somewhere.
    const top = Object.assign(document.createElement("span"), { tabIndex: -1 });
    document.body.prepend(top);
    top.focus();
    top.remove();
    scrollTo(0, 0);
    const all = reachable();
    order = [];
    const before = new Map(all.map((element) => [element, looks(element)]));
    document.addEventListener("focusin", (event) => {
      const element = event.target;
      const is_visible = before.get(element) !== looks(element);
      const style = getComputedStyle(element);
      const has_outline = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
      const ratio = has_outline
        ? contrast(over(rgba(style.outlineColor), ground(element.parentElement).painted), ground(element.parentElement).painted)
        : LARGE;
      const box = element.getBoundingClientRect();
      order.push({ element, is_visible, ratio, box });
    });
    return all.length;
  }

  function end_keys() {
    const faults = [];
    const reached = new Map(order.map((item) => [item.element, item]).reverse());
    const all = reachable();
    for (const element of all) {
      const item = reached.get(element);
      if (!item) faults.push(`Tab does not reach ${about(element)}`);
      else if (!item.is_visible) faults.push(`one cannot see that it has the focus: ${about(element)}`);
      else if (item.ratio < LARGE) faults.push(`contrast ${item.ratio.toFixed(2)} of the focus, not ${LARGE}: ${about(element)}`);
    }
    for (const element of document.querySelectorAll("[tabindex]")) {
      if (element.tabIndex > 0) faults.push(`jumps the queue by its tabindex: ${about(element)}`);
    }
    const first_round = [];
    for (const { element } of order) {
      if (first_round.includes(element)) break;
      first_round.push(element);
    }
    first_round.slice(1).forEach((element, place) => {
      const back = first_round[place].compareDocumentPosition(element) & Node.DOCUMENT_POSITION_PRECEDING;
      const is_inside = first_round[place].contains(element) || element.contains(first_round[place]);
      if (back && !is_inside) faults.push(`comes before what stands before it: ${about(element)}`);
    });
    for (const scroller of document.querySelectorAll("body *")) {
      const style = getComputedStyle(scroller);
      const scrolls = /auto|scroll/.test(style.overflowX) && scroller.scrollWidth > scroller.clientWidth + 1;
      if (!scrolls || !is_seen(scroller) || scroller.closest("details:not([open])")) continue;
      if (scroller.tabIndex < 0 && !scroller.querySelector("a[href], button, input, select")) {
        faults.push(`scrolls, but not by keys: ${about(scroller)}`);
      }
    }
    return faults;
  }

  function skip_link() {
    if (!document.querySelector("nav a")) return [];
    const first = order[0]?.element;
    const target = first?.matches("a[href^='#']") ? document.querySelector(first.getAttribute("href")) : null;
    if (!target?.matches("main, main *")) return ["no skip link comes first"];
    const { box } = order[0];
    return box.top >= 0 && box.left >= 0 && box.height > 10 ? [] : ["the skip link is not seen when it has the focus"];
  }

  globalThis.audit = { contrast_of_texts, contrast_of_controls, structure, width, drawings, overlaps, begin_keys, end_keys, skip_link };
})();
