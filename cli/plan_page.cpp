#include "cli/plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include "cli/layouts.h"

namespace refit::cli {
namespace {

constexpr std::size_t kMostCells = 64;   // a side of the matrix; more are added up in blocks
constexpr std::size_t kMostPorts = 48;   // of the time line

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  return out;
}

// Rows and columns of the matrix: at most kMostCells, each a block of neighbours.
struct Axis {
  std::vector<std::uint32_t> numbers;
  std::size_t block = 1;
  explicit Axis(const std::set<std::uint32_t>& all) : numbers(all.begin(), all.end()) {
    block = (numbers.size() + kMostCells - 1) / kMostCells;
    block = std::max<std::size_t>(1, block);
  }
  std::size_t cells() const { return (numbers.size() + block - 1) / block; }
  std::size_t at(std::uint32_t number) const {
    return static_cast<std::size_t>(std::lower_bound(numbers.begin(), numbers.end(), number) - numbers.begin()) / block;
  }
  std::string label(std::size_t cell, const plan::World& w, const char* side) const {
    const auto name = [&](std::uint32_t n) { return w.by_host ? w.hosts[n] : std::string(side) + ":" + std::to_string(n); };
    const std::size_t last = std::min(numbers.size(), (cell + 1) * block) - 1;
    return last == cell * block ? name(numbers[last]) : name(numbers[cell * block]) + " to " + name(numbers[last]);
  }
};

std::string matrix(const plan::World& w) {
  std::set<std::uint32_t> from, to;
  for (const plan::Link& l : w.links) from.insert(l.from), to.insert(l.to);
  if (from.empty()) return "<p>No bytes move.</p>";
  const Axis rows(from), columns(to);
  std::vector<std::int64_t> bytes(rows.cells() * columns.cells());
  for (const plan::Link& l : w.links) bytes[rows.at(l.from) * columns.cells() + columns.at(l.to)] += l.bytes;
  const auto most = static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
  const std::size_t cell = std::max<std::size_t>(6, std::min<std::size_t>(28, 640 / std::max(rows.cells(), columns.cells())));
  std::string out = fmt::format("<svg role=\"img\" aria-label=\"bytes from each source to each target\" width=\"{}\" height=\"{}\">\n",
                                columns.cells() * cell + 2, rows.cells() * cell + 2);
  for (std::size_t r = 0; r < rows.cells(); ++r)
    for (std::size_t c = 0; c < columns.cells(); ++c) {
      const std::int64_t n = bytes[r * columns.cells() + c];
      out += fmt::format("<rect class=\"c\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" style=\"--v:{:.3f}\"><title>{} → {}: {} ({} bytes)</title></rect>\n",
                         c * cell + 1, r * cell + 1, cell - 1, cell - 1, most > 0 ? static_cast<double>(n) / most : 0,
                         escaped(rows.label(r, w, "source")), escaped(columns.label(c, w, "target")), human_bytes(n), n);
    }
  out += "</svg>\n<p class=\"note\">Rows: sources, from " + escaped(rows.label(0, w, "source")) + " down. Columns: targets, from " +
         escaped(columns.label(0, w, "target")) + " on. Darkest: " + human_bytes(static_cast<std::int64_t>(most)) + ".";
  if (rows.block > 1 || columns.block > 1)
    out += fmt::format(" A cell is {} × {} neighbours.", rows.block, columns.block);
  return out + "</p>\n";
}

std::string time_line(const plan::Cost& cost) {
  if (cost.ports.empty()) return "<p>No link of the table carries anything.</p>";
  const std::size_t shown = std::min(kMostPorts, cost.ports.size());
  const double whole = std::max(cost.expected_s, 1e-12);
  std::string out = fmt::format("<svg role=\"img\" aria-label=\"how long each port is busy\" width=\"760\" height=\"{}\">\n", shown * 20 + 24);
  for (std::size_t i = 0; i < shown; ++i) {
    const plan::Port& p = cost.ports[i];
    const std::string name = p.name + (p.local ? " local" : "") + (p.out ? " out" : " in");
    out += fmt::format("<text x=\"150\" y=\"{}\" text-anchor=\"end\">{}</text><rect class=\"{}\" x=\"156\" y=\"{}\" width=\"{:.1f}\" height=\"14\">"
                       "<title>{}: {} at {:.0f} Gb/s, {:.4f} s</title></rect>\n",
                       i * 20 + 15, escaped(name), p.out ? "o" : "i", i * 20 + 4, std::max(1.0, 590 * p.seconds / whole), escaped(name),
                       human_bytes(p.bytes), p.rate * 8e-9, p.seconds);
  }
  const double bound = 156 + 590 * cost.bound_s / whole;
  out += fmt::format("<line class=\"b\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"0\" y2=\"{1}\"/><line class=\"e\" x1=\"746\" x2=\"746\" y1=\"0\" y2=\"{1}\"/>"
                     "<text x=\"{0:.1f}\" y=\"{2}\" text-anchor=\"end\">bound {3:.3f} s</text><text x=\"746\" y=\"{4}\" text-anchor=\"end\">expected {5:.3f} s</text>\n</svg>\n",
                     bound, shown * 20 + 2, shown * 20 + 12, cost.bound_s, shown * 20 + 22, cost.expected_s);
  if (shown < cost.ports.size()) out += fmt::format("<p class=\"note\">The {} busiest of {} ports.</p>\n", shown, cost.ports.size());
  return out;
}

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--faint:#6a737d;--cell:3,102,214;--out:#0366d6;--in:#2a9d5c;--mark:#c2410c}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--faint:#8b949e;--cell:88,166,255;--out:#58a6ff;--in:#56d38f;--mark:#ffa657}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;padding:0 1rem}
svg{display:block;max-width:100%;overflow:auto;font:11px system-ui,sans-serif}text{fill:var(--ink)}
.c{fill:rgba(var(--cell),calc(.06 + .94*var(--v)))}.o{fill:var(--out)}.i{fill:var(--in)}.b{stroke:var(--mark)}.e{stroke:var(--faint);stroke-dasharray:4}
table{border-collapse:collapse}td{padding:.15rem .8rem .15rem 0;vertical-align:top}.note{color:var(--faint)}
)";

std::string row(const std::string& name, const std::string& value) {
  return "<tr><td>" + name + "</td><td>" + escaped(value) + "</td></tr>\n";
}

}  // namespace

std::string plan_page(const PlanPage& p) {
  const plan::World& w = p.world;
  std::string out = "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n<title>" +
                    escaped(p.title) + "</title>\n<style>" + kStyle + "</style>\n<h1>" + escaped(p.title) + "</h1>\n<table>\n";
  out += row("plan", w.id.hex());
  out += row("needed, moved", human_bytes(w.bytes_needed) + ", " + human_bytes(w.bytes_moved));
  out += row("in", fmt::format("{} segments, {} buckets", w.segments, w.buckets));
  if (p.cost) {
    out += row("lower bound", fmt::format("{:.3f} s: {} {}", p.cost->bound_s, p.cost->ports.empty() ? "" : p.cost->ports.front().name,
                                          p.cost->ports.empty() ? "" : p.cost->ports.front().out ? "sends" : "receives"));
    out += row("expected", fmt::format("{:.3f} s", p.cost->expected_s));
  }
  if (p.published) {
    out += row("published", p.published->published + " s");
    out += row("says", p.published->source);
    out += row("assumed here", p.published->assumed);
  }
  out += "</table>\n<h2>Bytes from each source to each target</h2>\n" + matrix(w);
  if (p.cost)
    out += "<h2>How long each port is busy</h2>\n" + time_line(*p.cost) +
           "<p class=\"note\">Every port begins at 0 and runs at the table's rate; what waits for what is not in it.</p>\n";
  return out + "</html>\n";
}

Status write_plan_page(const std::string& path, const PlanPage& page) {
  std::ofstream out(path);
  out << plan_page(page);
  out.flush();
  if (!out) return Error(Code::kInvalid, "--html " + path + ": " + std::strerror(errno));
  return {};
}

}  // namespace refit::cli
