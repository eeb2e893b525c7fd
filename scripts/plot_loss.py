#!/usr/bin/python3
"""plot_loss.py RUN_FOLDER: the loss curve of a run, in the terminal and as RUN_FOLDER/loss.png (needs matplotlib)."""
import json
import math
import pathlib
import sys

WIDTH, HEIGHT = 72, 16


def read(folder):
    """(steps, losses) of training and of validation."""
    training, validation = ([], []), ([], [])
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for curve, key in ((training, "loss"), (validation, "validation_loss")):
            if record.get(key) is not None and math.isfinite(record[key]):
                curve[0].append(record["step"])
                curve[1].append(record[key])
    return training, validation


def chart(training, validation):
    """Training as dots (eight to a character cell, in Braille), validation as circles."""
    steps, losses = (training[i] + validation[i] for i in (0, 1))
    first, last, low, high = min(steps), max(steps), min(losses), max(losses)
    columns, rows = 2 * WIDTH - 1, 4 * HEIGHT - 1

    def place(step, loss):
        return (round((step - first) / max(last - first, 1) * columns),
                round((high - loss) / max(high - low, 1e-12) * rows))

    cells = [[0] * WIDTH for _ in range(HEIGHT)]
    for x, y in map(place, *training):
        cells[y // 4][x // 2] |= ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))[y % 4][x % 2]
    text = [[chr(0x2800 + dots) if dots else " " for dots in row] for row in cells]
    for x, y in map(place, *validation):
        text[y // 4][x // 2] = "o"

    lines = []
    for i, row in enumerate(text):
        value = high - (high - low) * i / (HEIGHT - 1)
        lines.append((f"{value:7.3f} |" if i % 5 == 0 else "        |") + "".join(row).rstrip())
    lines.append("        +" + "-" * WIDTH)
    lines.append(f"         {first:<{WIDTH - 12}}{'step ' + str(last):>12}")
    return "\n".join(lines)


def picture(training, validation, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    axes.plot(*training, linewidth=0.9, color="tab:blue", alpha=0.7, label="training")
    if validation[0]:
        axes.plot(*validation, "o-", markersize=4, linewidth=1.3, color="tab:red", label="validation")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    try:
        training, validation = read(folder)
    except OSError as error:
        sys.exit(f"plot_loss.py: {error}")
    if not training[0]:
        sys.exit(f"plot_loss.py: {folder}/metrics.jsonl holds no finite loss yet")
    print(f"Loss of {folder} (dots: training; o: validation)\n")
    print(chart(training, validation))
    if validation[0]:
        print(f"\nvalidation loss after step {validation[0][-1]}: {validation[1][-1]:.4f}")
    try:
        picture(training, validation, folder / "loss.png")
        print(f"picture: {folder / 'loss.png'}")
    except ImportError:
        print("no picture: python3-matplotlib is missing (scripts/setup run)")


if __name__ == "__main__":
    main()
