"""Prints sentences of common English words, the same on every machine; argument: the number of bytes."""

import sys

WORDS = ("the of and to in a is that it was for on are as with they be at one have this from or had by word but not "
         "what all were we when your can said there use each which she do how their if will up other about out many "
         "then them these so some her would make like him into time has look two more write go see number no way "
         "could people my than first water been call who its now find long down day did get come made may part").split()


def sentences(size):
    state, text = 12345, ""
    while len(text) < size:
        words = []
        for _ in range(4 + len(text) % 9):
            state = (1103515245 * state + 12345) % 2**31
            words.append(WORDS[(state >> 16) % len(WORDS)])
        text += " ".join(words).capitalize() + ".\n"
    return text[:size]


if __name__ == "__main__":
    sys.stdout.write(sentences(int(sys.argv[1])))
