"""Long generation: whether a continuation repeats itself, beside the real text that follows."""

import numpy as np

REPEATED, COPIED, DISTINCT = 4, 8, 4  # tokens of the n-grams that are looked at
MEASURES = ("repeated", "copied", *(f"{n}-grams" for n in range(1, DISTINCT + 1)))


def grams(tokens: list[int], n: int) -> list[tuple[int, ...]]:
    """The n-grams of a text in their order."""
    return [tuple(tokens[k : k + n]) for k in range(len(tokens) - n + 1)]


def window_measures(prompt: list[int], text: list[int], size: int) -> np.ndarray:
    """The MEASURES of a text that follows a prompt, in successive windows, (6, windows).

    These are the share of REPEATED-grams that stood before in the text, the share of COPIED-grams
    that stand in the prompt, and the share of different ones among the n-grams for n up to
    DISTINCT. An n-gram belongs to a window of `size` >= COPIED tokens if all of it is there.
    """
    of_text, of_prompt, windows = grams(text, REPEATED), set(grams(prompt, COPIED)), []
    first = {gram: place for place, gram in reversed([*enumerate(of_text)])}
    repeated = [first[gram] < place for place, gram in enumerate(of_text)]
    for start in range(0, len(text) - size + 1, size):
        window = text[start : start + size]
        again = np.mean(repeated[start : start + size - REPEATED + 1])
        copied = np.mean([gram in of_prompt for gram in grams(window, COPIED)])
        distinct = [len(set(grams(window, n))) / (size - n + 1) for n in range(1, DISTINCT + 1)]
        windows.append([again, copied, *distinct])
    return np.array(windows).T
