"""Programs for slime: `tools`, a model that calls functions of yours, and `function`, an async function of yours."""
