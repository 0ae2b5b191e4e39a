// How the search ranks what it finds: by Sphinx's numbers, but a page about a word comes before a list of words.
var Scorer = {
  score: ([page, title, anchor, description, score, file, kind]) =>
    page === "reference/changelog" || (page === "reference/glossary" && kind === "index") ? score / 4 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
