// Typesets what pymdownx.arithmatex marks, and makes displayed formulas that are too wide for the page smaller.
const formulas = [...document.querySelectorAll(".arithmatex")]

for (const formula of formulas) {
  const source = formula.textContent.trim().slice(2, -2) // without \( \) or \[ \]
  katex.render(source, formula, { displayMode: formula.tagName === "DIV", throwOnError: false })
}

function fit() {
  for (const formula of formulas.filter((each) => each.tagName === "DIV")) {
    formula.style.fontSize = ""
    const share = formula.clientWidth / formula.scrollWidth
    if (share < 1) formula.style.fontSize = `${Math.floor(100 * share)}%`
  }
}

document.fonts.ready.then(fit)
window.addEventListener("resize", fit)
