"""Draws the rewards that examples/rl_loop.py --out wrote:  reward_curve.py IN.json OUT.svg"""
import json
import pathlib
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 320, 48, 36, 16


def main():
    rewards = json.loads(pathlib.Path(sys.argv[1]).read_text())
    span = max(1, len(rewards) - 1)

    def x(step):
        return LEFT + step * (WIDTH - LEFT - 16) / span

    def y(reward):
        return HEIGHT - BOTTOM - reward * (HEIGHT - BOTTOM - TOP)

    grid = "".join(f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{y(r):.1f}" y2="{y(r):.1f}" stroke="#8884"/><text x="{LEFT - 8}" y="{y(r) + 4:.1f}" text-anchor="end">{r:g}</text>'
                   for r in (0, 0.25, 0.5, 0.75, 1))
    ticks = "".join(f'<text x="{x(s):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{s}</text>' for s in range(0, len(rewards), max(1, len(rewards) // 6)))
    line = " ".join(f"{x(s):.1f},{y(r):.1f}" for s, r in enumerate(rewards))
    pathlib.Path(sys.argv[2]).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="#777">{grid}{ticks}'
        f'<polyline points="{line}" fill="none" stroke="#2a78d6" stroke-width="2"/>'
        f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">optimizer step (one refit each)</text>'
        f'<text x="{LEFT + 8}" y="{TOP + 4}">mean reward of {len(rewards)} rollouts</text></svg>\n')


if __name__ == "__main__":
    main()
